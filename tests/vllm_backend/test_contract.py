"""What we rely on of vLLM's internals: another version that changes it fails here, and not in a run."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness.backends.vllm import MODULE, NAME, register

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_hooks_of_a_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

    expected = {
        "get_num_new_matched_tokens": ["self", "request", "num_computed_tokens"],
        "update_state_after_alloc": ["self", "request", "blocks", "num_external_tokens"],
        "build_connector_meta": ["self", "scheduler_output"],
        "update_connector_output": ["self", "connector_output"],
        "register_kv_caches": ["self", "kv_caches"],
        "get_finished": ["self", "finished_req_ids"],
        "on_new_request": ["self", "request"],
    }
    assert {name: parameters(getattr(KVConnectorBase_V1, name)) for name in expected} == expected
    assert parameters(KVConnectorBase_V1.start_load_kv)[:2] == ["self", "forward_context"]
    assert parameters(SupportsHMA.request_finished_all_groups) == ["self", "request", "block_ids"]


def test_the_methods_of_the_scheduler() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    expected = ["self", "request", "num_computed_tokens", "num_new_tokens"]
    assert parameters(Scheduler._reserve_prefill_lookahead) == expected
    assert parameters(Scheduler._build_kv_connector_meta) == ["self", "connector", "scheduler_output"]
    source = inspect.getsource(Scheduler.schedule)
    assert source.count("self._reserve_prefill_lookahead(") == 2, "asked for waiting and for running requests"


def test_the_plugin_registers_once_and_again() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    group = "vllm.general_plugins"
    assert EntryPoint("kvcmas", declared[group]["kvcmas"], group).load() is register
    for _ in range(2):
        register()
    made = KVConnectorFactory._registry[NAME]()
    assert (made.__module__, made.__name__) == (MODULE, NAME)
