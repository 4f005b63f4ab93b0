"""Methods that recompute some rows, in whole requests: repeatable, charged, with the fresh share of their formula."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding
from harness.backends.hf_tiny import Tiny
from harness.clock import Stopwatch
from harness.hop import Encoder
from harness.records import HopRecord, Route
from harness.workflow import Workflow
from methods.agentkvshift import AgentKVShift
from methods.base import Hop, Method, Source
from methods.cacheblend import CacheBlend
from methods.dense import DenseMethod
from methods.epic import Epic
from methods.oracle_tokens import OracleTokens
from methods.random_tokens import RandomTokens
from methods.segment import Span
from tests.harness.test_engine import dense, draw, held, prompt_of
from tests.harness.trajectories import QUESTIONS, ids, run_all, script

RECIPES = [{"family": "llama", "rope": "yarn"}, {"family": "qwen2", "rope": "plain"}]


@pytest.fixture(params=RECIPES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tiny().tokenizer()


EVERY: list[Any] = [
    CacheBlend(),
    CacheBlend(0.4, schedule="gradual", score="kv", ratio_over="span", write_back="kept"),
    CacheBlend(0.2, score="query_attn", source="isolated"),
    CacheBlend(0.2, score="weighted", check_layer=2),
    Epic(),
    AgentKVShift(damp="deviation"),
    RandomTokens(),
    OracleTokens(),
]
NAMES = ["blend", "gradual", "query", "weighted", "epic", "shift", "random", "oracle"]
FULL = Workflow("full", "full", max_new_tokens=4)


def reuses(method: Method, engine: HF, tokenizer: Any, count: int = 2, **how: Any) -> list[HopRecord]:
    finished = run_all(method, engine, script(tokenizer, FULL, QUESTIONS[:count]), **how)
    hops = [hop for f in finished for hop in f.hops]
    assert [h.route for h in hops] == [Route.dense, *[Route.reuse] * 3] * count
    return [h for h in hops if h.route is Route.reuse]


@pytest.mark.parametrize("method", EVERY, ids=NAMES)
def test_trajectories_are_exact_at_first_and_repeat_themselves(engine: HF, tokenizer: Any, method: Any) -> None:  # I12
    chat = script(tokenizer, FULL, QUESTIONS[:2])
    one = run_all(copy.deepcopy(method), engine, chat, shadow=True)
    other = run_all(copy.deepcopy(method), engine, chat)
    truth = run_all(DenseMethod(), engine, chat)
    assert ids(one) == ids(other)
    for mine, again, exact in zip(one, other, truth, strict=True):
        assert mine.hops[0].output_ids == exact.hops[0].output_ids
        for hop, same in zip(mine.hops[1:], again.hops[1:], strict=True):
            assert hop.route is Route.reuse
            assert hop.fresh_token_layers == same.fresh_token_layers
            assert max((hop.kv_error_k or [1.0])[0], (hop.kv_error_v or [1.0])[0]) < 1e-4  # I1
            assert ("oracle_tokens" in hop.notes) is isinstance(method, OracleTokens)
            assert (hop.phases.encode_s > 0) is bool(hop.notes)


LONG = (Span("question", draw(21, 400), "user"), Span("output:x:0", draw(22, 260), "x"))
LONG_READER = prompt_of(draw(23, 60), LONG[0], draw(24, 10), LONG[1], draw(25, 20))


@pytest.mark.parametrize("role_cache", [False, True])
@pytest.mark.parametrize("ratio", [0.15, 0.4])
def test_fresh_share_equals_the_formula(engine: HF, ratio: float, role_cache: bool) -> None:
    """phi of each method; rows of a cached role prompt run nowhere."""
    layers, total, spans = engine.shape.layers, len(LONG_READER), 660
    truth = dense(engine, LONG_READER)
    sources = {
        s.span.id: Source("x", 0, held(engine, truth, LONG_READER, s.index)) for s in LONG_READER.shared() if s.span
    }
    hop = Hop("t0", 1, "reader", LONG_READER, sources)

    def share(method: Any) -> float:
        method.bind(engine.shape, 0)
        method.observe(hop, truth)  # the role prompt, learned within the request
        plan = method.plan(hop, Encoder(engine, Stopwatch(engine.clock)))
        return sum(engine.run(LONG_READER, plan, Decoding(1)).fresh_rows) / (layers * total)

    fresh = total - spans - (60 if role_cache else 0)
    expected = (fresh + spans + (layers - 1) * (fresh + ratio * spans)) / (layers * total)
    for method in (
        CacheBlend(ratio, role_cache=role_cache),
        CacheBlend(ratio, schedule="gradual", role_cache=role_cache),
        CacheBlend(ratio, ratio_over="span", score="query_attn", role_cache=role_cache),
        RandomTokens(ratio, role_cache=role_cache),
        OracleTokens(ratio, role_cache=role_cache),
        AgentKVShift(ratio, role_cache=role_cache),
    ):
        assert share(method) == pytest.approx(expected, rel=0.01)
    late = (2 * (fresh + spans) + (layers - 2) * (fresh + ratio * spans)) / (layers * total)
    assert share(CacheBlend(ratio, check_layer=2, role_cache=role_cache)) == pytest.approx(late, rel=0.01)
    assert share(Epic(k=16, role_cache=role_cache)) == pytest.approx((fresh + 16) / total)
    assert share(Epic(k=16, first_span=True, role_cache=role_cache)) == pytest.approx((fresh + 32) / total)


def test_equal_budgets_are_equal(engine: HF, tokenizer: Any) -> None:
    counts = [
        [h.fresh_token_layers for h in reuses(m, engine, tokenizer, 1)]
        for m in (CacheBlend(), RandomTokens(), OracleTokens())
    ]
    assert counts[0] == counts[1] == counts[2]


def test_the_role_cache_changes_nothing_but_the_work(engine: HF, tokenizer: Any) -> None:
    """The second request finds the role prompts."""
    for kind in (CacheBlend, AgentKVShift):
        cold, warm = (reuses(kind(0.3, role_cache=cached), engine, tokenizer, shadow=True) for cached in (False, True))
        for one, other in zip(cold, warm, strict=True):
            assert one.output_ids == other.output_ids
            assert one.first_token_kl == pytest.approx(other.first_token_kl, rel=1e-2, abs=1e-5)
        assert sum(h.fresh_token_layers for h in warm[3:]) < sum(h.fresh_token_layers for h in cold[3:])


def test_a_restored_method_goes_on_as_if_nothing_had_happened(engine: HF, tokenizer: Any) -> None:
    chat = script(tokenizer, FULL, QUESTIONS[:1])
    first, second = CacheBlend(), CacheBlend()
    run_all(first, engine, chat)
    second.bind(engine.shape, 0)
    kept = first.snapshot()
    assert kept is not None
    second.restore(kept)
    assert first.state_bytes() == second.state_bytes()
    assert first.state_bytes().base > 0
    one, other = (run_all(m, engine, chat, bound=True) for m in (first, second))
    assert ids(one) == ids(other)
    assert [h.fresh_token_layers for h in one[0].hops] == [h.fresh_token_layers for h in other[0].hops]
