"""The transformers engine and vLLM on the same hops: same routes, same rows, same answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from conftest import TINY
from hydra.utils import instantiate

from harness.backends.hf import HF
from harness.backends.hf_rope import shape_of
from harness.samples import in_order
from harness.trajectory import Runner
from harness.walk import Walk
from harness.workflow import Workflow

sys.path.append(str(Path(__file__).parents[1] / "harness"))
from trajectories import QUESTIONS, script

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine
    from harness.backends.vllm_service import VLLMService
    from harness.chat import ChatScript
    from harness.trajectory import Finished

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")

KVCMAS = {"_target_": "methods.kvcmas.KVCMAS", "gate": "always", "min_anchors": 1}
METHODS: dict[str, dict[str, Any]] = {
    "dense": {"_target_": "methods.dense.DenseMethod"},
    "prefix": {"_target_": "methods.dense.DenseMethod", "prefix_cache": True},
    "full_reuse": {"_target_": "methods.full_reuse.FullReuse"},
    "isolated": {"_target_": "methods.full_reuse.FullReuse", "mode": "isolated"},
    "kvcmas": KVCMAS,
    "kvcmas star": {**KVCMAS, "reference": "first_hop"},
    "kvcmas context-free": {**KVCMAS, "reference": "context_free"},
    "kvcmas gated": {"_target_": "methods.kvcmas.KVCMAS", "tau_distance": 0.9},
    "kvcomm": {"_target_": "methods.kvcomm.KVComm", "glue": "delta"},
    "ridge": {"_target_": "methods.ridge.Ridge", "tau": 9.0, "min_requests": 1, "warmup": 1},
}


def serve(service: VLLMService, chat: ChatScript, block: int) -> list[Walk]:
    """All cases of a script, ``block`` at a time, committed in order."""
    out = list[Walk]()
    turns = in_order(chat.cases(), 1, 0)
    for at in range(0, len(turns), block):
        walks = {t.case.sample_id: Walk(t.case, chat, frozenset()) for t in turns[at : at + block]}
        for walk in walks.values():
            service.submit(*walk.call(service.now()))
        while not all(walk.over for walk in walks.values()):
            for answer in service.advance(float("inf")):
                walk = walks[answer.id.rpartition("#")[0]]
                walk.take(answer, service.state_bytes())
                walk.use_tool()
                if not walk.over:
                    service.submit(*walk.call(service.now()))
        for name in walks:
            service.end(name)
        out += walks.values()
    return out


@pytest.fixture(scope="module")
def hf() -> HF:
    loaded = TINY.load()
    return HF().attach(loaded.model, shape_of(loaded.model))


def both(
    engine: Engine, hf: HF, method: dict[str, Any], layout: str, questions: list[str], scope: str = "hop"
) -> tuple[list[Finished], list[Walk]]:
    from harness.backends.vllm_service import VLLMService

    chat = script(TINY.tokenizer(), Workflow("full", max_new_tokens=5, layout=layout), questions)  # type: ignore[arg-type]
    bound = instantiate(method)
    bound.bind(hf.shape, 0)
    runner = Runner(bound, hf, chat, frozenset())
    expected = [runner.run(case) for case in chat.cases()]
    service = VLLMService(engine, TINY.facts(), frozenset(), instantiate(method), 0, scope)
    return expected, serve(service, chat, 1)


@pytest.mark.parametrize("name", METHODS)
def test_both_engines_agree(engine: Engine, hf: HF, name: str) -> None:
    """Interleaved prompts, every covered row skipped in both."""
    expected, found = both(engine, hf, METHODS[name], "interleaved", [*QUESTIONS, QUESTIONS[0]])
    routes = [[h.route for h in f.hops] for f in expected]
    assert [[h.route for h in w.hops] for w in found] == routes
    assert [[h.fresh_token_layers for h in w.hops] for w in found] == [
        [h.fresh_token_layers for h in f.hops] for f in expected
    ]
    assert [[h.output_ids for h in w.hops] for w in found] == [[h.output_ids for h in f.hops] for f in expected]
    assert [[h.source_hop for h in w.hops] for w in found] == [[h.source_hop for h in f.hops] for f in expected]
    assert found[-1].hops[-1].state_bytes == expected[-1].hops[-1].state_bytes
    if name not in ("dense", "prefix"):
        assert any("reuse" in r for r in routes), "nothing was reused, so that nothing was compared"


@pytest.mark.parametrize("name", ["full_reuse", "kvcmas"])
def test_the_beginning_alone_is_what_a_stock_scheduler_reuses(engine: Engine, hf: HF, name: str) -> None:
    """Side by side, all spans are the beginning; interleaved, only the first is. The first sample leaves the role
    prompts' caches behind, before which nothing can be reused."""
    engine.directory.gaps = False
    expected, found = both(engine, hf, METHODS[name], "contiguous", QUESTIONS[:3])
    for f, w in list(zip(expected, found, strict=True))[1:]:
        assert [h.route for h in w.hops] == [h.route for h in f.hops]
        assert [h.output_ids for h in w.hops] == [h.output_ids for h in f.hops]
        assert [h.fresh_token_layers for h in w.hops] == [h.fresh_token_layers for h in f.hops]
    assert all(h.route != "reuse" for h in found[0].hops)
    assert any(h.route == "reuse" for h in found[-1].hops)
    expected, found = both(engine, hf, METHODS[name], "interleaved", QUESTIONS[:3])
    last, most = found[-1].hops[-1], expected[-1].hops[-1]
    assert last.route == most.route == "reuse"
    assert most.fresh_token_layers < last.fresh_token_layers < last.prompt_tokens * TINY.layers


def test_corrected_rows_agree(engine: Engine, hf: HF) -> None:
    """The rows that a corrected hop hands on, within rounding of two engines."""
    from harness.backends.vllm_service import VLLMService

    chat = script(TINY.tokenizer(), Workflow("full", max_new_tokens=5), QUESTIONS)
    method = instantiate(KVCMAS)
    method.bind(hf.shape, 0)
    seen = dict[tuple[str, int], Any]()
    inner = method.observe

    def observe(hop: Any, executed: Any) -> None:
        for place in hop.prompt.shared():
            seen[f"{hop.trajectory}/{hop.index}", place.index] = executed.kv(place.start, place.stop)
        inner(hop, executed)

    method.observe = observe
    runner = Runner(method, hf, chat, frozenset())
    for case in chat.cases():
        runner.run(case)
    expected, seen = seen, {}
    service = VLLMService(engine, TINY.facts(), frozenset(), instantiate(KVCMAS), 0, "hop")
    bound = engine.ask("method")[0]
    inner, bound.observe = bound.observe, observe
    serve(service, chat, 1)
    assert expected.keys() == seen.keys()
    for key, rows in expected.items():
        for mine, theirs in ((seen[key].k, rows.k), (seen[key].v, rows.v)):
            error = torch.linalg.vector_norm(mine - theirs) / torch.linalg.vector_norm(theirs)
            assert float(error) < 1e-3, f"{key}: {float(error)}"


@pytest.mark.parametrize("block", [2, 3])
def test_answers_do_not_depend_on_what_runs_beside(engine: Engine, block: int) -> None:
    """A block's samples plan against the blocks before, so the same blocks give the same rows, however fast."""
    from harness.backends.vllm_service import VLLMService

    chat = script(TINY.tokenizer(), Workflow("full", max_new_tokens=5), QUESTIONS)
    service = VLLMService(engine, TINY.facts(), frozenset(), instantiate(KVCMAS), 0, "hop")
    runs = []
    for _ in range(2):
        service.reset(0)
        engine.vllm.reset_prefix_cache()
        walks = serve(service, chat, block)
        runs.append([[(h.route, h.output_ids, h.state_bytes) for h in w.hops] for w in walks])
    assert runs[0] == runs[1]
    assert all(h[0] != "reuse" for w in runs[0][:block] for h in w), "nothing was taught before the first block"
    assert any(h[0] == "reuse" for w in runs[0][block:] for h in w)
