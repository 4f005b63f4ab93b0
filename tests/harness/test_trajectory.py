"""Whole trajectories on tiny models: what must be equal to dense is, and routes and records say what happened."""

from __future__ import annotations

from typing import Any

import pytest

from harness.backends.hf import HF
from harness.backends.hf_tiny import Tiny
from harness.records import Route
from harness.workflow import Workflow
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from tests.harness.trajectories import QUESTIONS, ids, run_all, script

FAMILIES = [{"family": "llama", "rope": "llama3"}, {"family": "qwen2", "rope": "yarn"}]
GRAPHS = [
    Workflow("full", "full", max_new_tokens=6),
    Workflow("chain", "chain", final_reads="sinks", max_new_tokens=6),
    Workflow("fan_in", "fan_in", max_new_tokens=6, layout="contiguous"),
    Workflow("fan_out", "fan_out", max_new_tokens=6),
    Workflow("loop", "loop", rounds=2, max_new_tokens=6, layout="contiguous"),
]
FULL = GRAPHS[0]


@pytest.fixture(params=FAMILIES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tiny().tokenizer()


@pytest.mark.parametrize("workflow", GRAPHS, ids=lambda w: w.name)
def test_threshold_zero_equals_dense_token_for_token(engine: HF, tokenizer: Any, workflow: Workflow) -> None:
    chat = script(tokenizer, workflow, QUESTIONS[:2])
    truth = run_all(DenseMethod(), engine, chat)
    found = run_all(KVCMAS(tau=0.0), engine, chat)
    assert ids(found) == ids(truth)
    assert all(hop.route is not Route.reuse for f in found for hop in f.hops)


@pytest.mark.parametrize("workflow", GRAPHS, ids=lambda w: w.name)
@pytest.mark.parametrize(
    "method",
    [KVCMAS(tau=2.0), KVCMAS(gate="always", min_anchors=0), FullReuse("rotated")],
    ids=["tau2", "always", "full"],
)
def test_the_first_agent_is_exact_and_later_ones_reuse(
    engine: HF, tokenizer: Any, workflow: Workflow, method: Any
) -> None:
    import copy

    chat = script(tokenizer, workflow)
    truth = run_all(DenseMethod(), engine, chat)
    found = run_all(copy.deepcopy(method), engine, chat, shadow=True)
    for mine, exact in zip(found, truth, strict=True):
        first = mine.hops[0]
        assert first.source_hop
        assert first.route is Route.dense
        assert first.output_ids == exact.hops[0].output_ids
        assert first.first_token_kl == 0.0
        assert not any(hop.source_hop for hop in mine.hops[1:])
    assert any(hop.route is Route.reuse for hop in found[-1].hops)
    layers = engine.shape.layers
    for hop in found[-1].hops:
        if hop.route is Route.reuse:
            assert 0 < hop.fresh_token_layers < layers * hop.prompt_tokens
            assert hop.kv_error_k is not None
            assert hop.kv_error_k[0] < 1e-4
            assert hop.kv_error_v is not None
            assert max(hop.kv_error_v[1:]) > 1e-3
        else:
            assert hop.fresh_token_layers == layers * hop.prompt_tokens


def test_prefix_cached_dense_equals_cold_dense(engine: HF, tokenizer: Any) -> None:
    chat = script(tokenizer, FULL)
    cold, warm = run_all(DenseMethod(), engine, chat), run_all(DenseMethod(prefix_cache=True), engine, chat)
    assert ids(warm) == ids(cold)
    assert sum(h.fresh_token_layers for h in warm[1].hops) < sum(h.fresh_token_layers for h in cold[1].hops)


@pytest.mark.parametrize("reference", ["upstream", "first_hop", "context_free"])
def test_the_same_request_again_is_corrected_exactly(engine: HF, tokenizer: Any, reference: Any) -> None:  # T4, I5
    """A full-rank pool of one anchor, which is this very request: the corrected cache is the dense one."""
    chat = script(tokenizer, FULL, [QUESTIONS[0], QUESTIONS[0]])
    method = KVCMAS(codec="full", factor_dtype="float32", gate="always", reference=reference)
    truth, found = run_all(DenseMethod(), engine, chat), run_all(method, engine, chat, shadow=True)
    assert [h.route for h in found[0].hops[1:]] == [Route.fallback] * 3
    assert [h.route for h in found[1].hops[1:]] == [Route.reuse] * 3
    assert ids(found) == ids(truth)
    for hop in found[1].hops[1:]:
        assert max(hop.kv_error_k or [0.0]) < 1e-3
        assert max(hop.kv_error_v or [0.0]) < 1e-3
        assert hop.first_token_kl is not None
        assert hop.first_token_kl < 1e-5


def test_naive_differs_from_rotated(engine: HF, tokenizer: Any) -> None:
    chat = script(tokenizer, FULL, QUESTIONS[:1])
    naive, rotated = (run_all(FullReuse(m), engine, chat, shadow=True) for m in ("naive", "rotated"))
    assert max(naive[0].hops[1].kv_error_k or []) > max(rotated[0].hops[1].kv_error_k or []) > 0


def test_caches_go_when_their_last_reader_has_run(engine: HF, tokenizer: Any) -> None:
    from harness.lineage import Lineage

    chat = script(tokenizer, GRAPHS[4])
    lineage = Lineage(chat.steps, chat.names)
    assert max(lineage.last_reader.values()) == chat.steps[-1].index
    for step in chat.steps:
        for span, hop in (*lineage.upstream(step).items(), *lineage.first(step).items()):
            assert hop < step.index <= lineage.last_reader[hop, span]
