"""One engine on a tiny model for all tests of this folder: a process holds one, and its start is what takes time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from harness.backends.hf_tiny import Tiny

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine

TINY = Tiny(head_dim=32, kv_heads=2, heads=4, layers=4, context=2048)
"""vLLM's attention on a CPU wants a head of 32 dimensions at least."""


@pytest.fixture(scope="session")
def running() -> Iterator[Engine]:
    """The engine, able to skip gaps."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")
    from harness.backends.vllm_engine import Engine, Settings

    torch.set_num_threads(1)  # on busy cores, threads of kernels this small spend their time waiting for each other
    method = {"_target_": "methods.full_reuse.FullReuse"}
    engine = Engine(Settings(TINY.folder(), method, gaps=True, dtype="float32", cache_gib=0.1, context=2048))
    yield engine
    engine.close()


@pytest.fixture
def engine(running: Engine) -> Iterator[Engine]:
    """The engine with an empty cache, no open trajectories and gaps switched on."""
    running.drain()
    running.vllm.reset_prefix_cache()
    running.directory.gaps = running.directory.encodes = True
    yield running
    running.drain()
