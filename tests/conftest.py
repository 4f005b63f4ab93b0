"""Models and prompts that many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from harness.backends.hf import HF


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: a long file that starts last leaves all other processes idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # stable


@pytest.fixture(scope="session")
def tiny_engine() -> Callable[..., HF]:
    """Build (once per distinct recipe) an engine on a tiny random model; unset cache rows are NaN."""
    from harness.backends.hf_rope import shape_of
    from harness.backends.hf_tiny import Tiny

    made: dict[tuple[tuple[str, Any], ...], HF] = {}

    def build(chunk: int = 4096, block: int = 1024, **recipe: Any) -> HF:
        key = tuple(sorted({"chunk": chunk, "block": block, **recipe}.items()))
        if key not in made:
            loaded = Tiny(**recipe).load()
            made[key] = HF(chunk=chunk, block=block, poison=True).attach(loaded.model, shape_of(loaded.model))
        return made[key]

    return build
