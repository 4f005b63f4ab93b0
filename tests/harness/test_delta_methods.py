"""The delta methods over trajectories on tiny Llama and Qwen2: dense where they must be, fresh shares as counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.backends.hf import HF
from harness.backends.hf_tiny import Tiny
from harness.records import HopRecord, Route
from harness.workflow import Workflow
from methods.dense import DenseMethod
from methods.graphflow import GraphFlow
from methods.kamera import Kamera
from methods.kvcmas import KVCMAS
from methods.kvcomm import KVComm
from methods.oracle_delta import OracleDelta
from tests.harness.trajectories import QUESTIONS, ids, run_all, script

FAMILIES = [{"family": "llama", "rope": "llama3"}, {"family": "qwen2", "rope": "yarn"}]
FULL = Workflow("full", "full", max_new_tokens=6)
EXACT: dict[str, Callable[[], Any]] = {
    "kvcomm": lambda: KVComm(gate="always"),
    "graphflow": lambda: GraphFlow(density=1.0, build_requests=1, min_frequency=1),
    "graphflow-edge": lambda: GraphFlow(density=1.0, build_requests=1, min_frequency=1, key="edge"),
    "kamera": lambda: Kamera(rank=4096, factor_dtype="float32"),
    "kamera-set": lambda: Kamera(rank=4096, factor_dtype="float32", key="set"),
}
REFUSING: dict[str, Callable[[], Any]] = {
    "kvcomm": lambda: KVComm(tau=0.0),
    "kvcomm-no-pool": lambda: KVComm(pool=0),
    "graphflow": lambda: GraphFlow(build_requests=1),
    "kamera": Kamera,
}


@pytest.fixture(params=FAMILIES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tiny().tokenizer()


def share(hop: HopRecord, layers: int) -> float:
    return hop.fresh_token_layers / (layers * hop.prompt_tokens)


@pytest.mark.parametrize("name", EXACT)
def test_a_request_that_was_learned_in_full_runs_as_dense(engine: HF, tokenizer: Any, name: str) -> None:
    """I5 on the shadow's measure: every row that was reused, and the logits."""
    method, chat = EXACT[name](), script(tokenizer, FULL, QUESTIONS[:1])
    first = run_all(method, engine, chat)
    again = run_all(method, engine, chat, shadow=True, bound=True)
    assert ids(again) == ids(first) == ids(run_all(DenseMethod(), engine, chat))
    for hop in again[0].hops:
        assert hop.route is Route.reuse
        assert max(hop.kv_error_k or [1.0]) < 1e-4
        assert max(hop.kv_error_v or [1.0]) < 1e-4
        assert hop.first_token_kl == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", EXACT)
def test_the_fresh_share_is_that_of_the_formula(engine: HF, tokenizer: Any, name: str) -> None:
    """1 / N where private text is corrected as well, else private text without the agent's own role prompt."""
    method, chat = EXACT[name](), script(tokenizer, FULL, QUESTIONS[:1])
    run_all(method, engine, chat)
    layers = engine.shape.layers
    for step, hop in zip(chat.steps, run_all(method, engine, chat, bound=True)[0].hops, strict=True):
        role = len(chat.prompt(step, _spans(chat)).placed[0])
        private = hop.prompt_tokens - hop.shared_tokens - role
        expected = (1 if name == "kvcomm" else private) / hop.prompt_tokens
        assert share(hop, layers) == pytest.approx(expected, rel=0.01)


def _spans(chat: Any) -> dict[str, Any]:
    spans = {"question": chat.cases()[0].question}
    for step in chat.steps:
        out = chat.output(step, (5, 6, 7))
        spans[out.id] = out
    return spans


@pytest.mark.parametrize("name", REFUSING)
def test_what_was_never_seen_is_dense_token_for_token(engine: HF, tokenizer: Any, name: str) -> None:
    chat = script(tokenizer, FULL, QUESTIONS[:3])
    found = run_all(REFUSING[name](), engine, chat)
    assert ids(found) == ids(run_all(DenseMethod(), engine, chat))
    assert all(hop.route is not Route.reuse for f in found for hop in f.hops)


@pytest.mark.parametrize("rank", [0, 4096])
def test_the_whole_true_delta_is_dense(engine: HF, tokenizer: Any, rank: int) -> None:
    chat = script(tokenizer, FULL, QUESTIONS[:2])
    found = run_all(OracleDelta(rank=rank), engine, chat)
    assert ids(found) == ids(run_all(DenseMethod(), engine, chat))
    for hop in (hop for f in found for hop in f.hops if hop.index):
        assert hop.route is Route.reuse
        assert hop.notes["oracle_tokens"] == hop.prompt_tokens


@pytest.mark.parametrize("weights", ["uniform", "nearest"])
def test_the_controls_of_matching_weigh_as_they_say(engine: HF, tokenizer: Any, weights: Any) -> None:
    chat = script(tokenizer, FULL)
    last = run_all(KVCMAS(weights=weights, gate="always"), engine, chat)[-1].hops[1]
    assert last.route is Route.reuse
    anchors = last.notes["anchors"]
    for part in ("k", "v"):
        expected = anchors if weights == "uniform" else 1.0
        assert last.notes[f"effective_anchors_{part}"] == pytest.approx(expected, rel=1e-4)
