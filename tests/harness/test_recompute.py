"""Methods that recompute some rows, in the real engine: their limits, what they choose, and that nothing leaks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_run import Run
from harness.clock import Stopwatch
from harness.hop import Encoder
from kernels.attention import attend
from methods.agentkvshift import AgentKVShift
from methods.base import KV, Hop, Probe, Reuse, RowSchedule, RowView, Selection, Source
from methods.cacheblend import CacheBlend
from methods.epic import Epic
from methods.oracle_tokens import OracleTokens
from methods.random_tokens import RandomTokens
from methods.segment import Prompt
from tests.harness.test_engine import GREEDY, READER, SPAN_A, SPAN_B, dense, draw, from_source, held, prompt_of

RECIPES = [{"family": "llama", "rope": "yarn"}, {"family": "qwen2", "rope": "plain"}]
FRESH = len(READER) - len(SPAN_A) - len(SPAN_B)
CANDIDATES = [*range(19, 56), *range(61, 82)]


@pytest.fixture(params=RECIPES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@dataclass
class Watched:
    """A schedule, and which rows it let pass at each layer."""

    inner: RowSchedule
    passed: list[Tensor] = field(default_factory=list)

    def first_rows(self, view: RowView) -> Tensor:
        return self.inner.first_rows(view)

    def probes(self, layer: int) -> bool:
        return self.inner.probes(layer)

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        chosen = self.inner.select(layer, view, current, probe)
        self.passed.append(torch.cat([chosen.keep, view.fresh]).unique())
        return chosen


@dataclass
class Outcome:
    """A hop that reuses what ``rows`` holds: what ran, what was reused, which rows passed each layer, notes."""

    run: Run
    reused: dict[int, KV]
    passed: list[Tensor]
    notes: dict[str, float]

    @property
    def kept(self) -> list[int]:
        """Span rows that ran the last layer."""
        return [i for i in self.passed[-1].tolist() if i in CANDIDATES]

    @property
    def unkept(self) -> Tensor:
        return torch.tensor([i for i in CANDIDATES if i not in self.kept])

    def cache(self) -> KV:
        return self.run.kv(0, len(READER))


def execute(engine: HF, method: Any, rows: dict[int, KV] | None = None, prompt: Prompt = READER) -> Outcome:
    rows = from_source(engine) if rows is None else rows
    spans = {i: prompt.placed[i].span for i in rows}
    sources = {span.id: Source("source", 0, rows[i]) for i, span in spans.items() if span is not None}
    method = copy.deepcopy(method)
    method.bind(engine.shape, 0)
    encoder = Encoder(engine, Stopwatch(engine.clock))
    plan = method.plan(Hop("t0", 1, "reader", prompt, sources), encoder)
    watched = Watched(plan.schedule)
    run = engine.run(prompt, Reuse(plan.rows, watched), GREEDY)
    placed = engine.run(prompt, Reuse(plan.rows), GREEDY).kv(0, len(prompt))
    shared = [p for p in prompt.shared() if p.index in plan.rows]
    return Outcome(run, {p.index: placed.rows(p.start, p.stop) for p in shared}, watched.passed, encoder.notes())


def full_reuse(engine: HF) -> KV:
    return engine.run(READER, Reuse(from_source(engine)), GREEDY).kv(0, len(READER))


RATIO_ONE = [
    CacheBlend(1.0),
    CacheBlend(1.0, score="query_attn", write_back="kept"),
    CacheBlend(1.0, schedule="gradual", score="kv", ratio_over="span"),
    CacheBlend(1.0, source="isolated", score="weighted", check_layer=2),
    AgentKVShift(1.0),
    AgentKVShift(1.0, damp="deviation", write_back="all"),
    RandomTokens(1.0),
    OracleTokens(1.0, schedule="gradual"),
    Epic(k=40, first_span=True),
]


@pytest.mark.parametrize("method", RATIO_ONE, ids=lambda m: type(m).__name__)
def test_recomputing_everything_is_dense_bit_for_bit(engine: HF, method: Any) -> None:  # I2
    found, truth = execute(engine, method), dense(engine)
    assert torch.equal(found.run.logits, truth.logits)
    assert found.run.output_ids == truth.output_ids
    assert torch.equal(found.cache().k, truth.kv(0, len(READER)).k)
    assert torch.equal(found.cache().v, truth.kv(0, len(READER)).v)
    assert list(found.run.fresh_rows) == [len(READER)] * engine.shape.layers


@pytest.mark.parametrize("write_back", ["kept", "all"])
@pytest.mark.parametrize("kind", [CacheBlend, RandomTokens, AgentKVShift])
@pytest.mark.parametrize("check", [1, 2])
def test_recomputing_nothing_is_full_reuse(engine: HF, kind: Any, write_back: Any, check: int) -> None:  # I3
    found = execute(engine, kind(0.0, write_back=write_back, check_layer=check))
    full, truth, cache = full_reuse(engine), dense(engine).kv(0, len(READER)), found.cache()
    exact = check + (write_back == "all")
    spans = torch.tensor(CANDIDATES)
    assert found.kept == []
    for mine, reused, true in ((cache.k, full.k, truth.k), (cache.v, full.v, truth.v)):
        torch.testing.assert_close(mine[:exact, :, spans], true[:exact, :, spans], rtol=1e-4, atol=1e-4)
        assert torch.equal(mine[exact:, :, spans], reused[exact:, :, spans])
    torch.testing.assert_close(cache.v[0], full.v[0], rtol=1e-4, atol=1e-4)  # I1
    assert list(found.run.fresh_rows) == [len(READER)] * check + [FRESH] * (engine.shape.layers - check)


def test_epic_without_rows_is_full_reuse(engine: HF) -> None:
    found = execute(engine, Epic(k=0))
    truth = engine.run(READER, Reuse(from_source(engine)), GREEDY)
    assert torch.equal(found.run.logits, truth.logits)
    assert torch.equal(found.cache().k, truth.kv(0, len(READER)).k)


def test_epic_with_enough_rows_reuses_the_first_span_only(engine: HF) -> None:
    found = execute(engine, Epic(k=21))
    rows = from_source(engine)
    truth = engine.run(READER, Reuse({1: rows[1]}), GREEDY)
    torch.testing.assert_close(found.run.logits, truth.logits, rtol=1e-4, atol=1e-4)
    assert found.run.fresh_rows == truth.fresh_rows


LEAK = [
    CacheBlend(0.3),
    CacheBlend(0.3, ratio_over="span", write_back="kept", score="query_attn"),
    CacheBlend(0.3, schedule="gradual"),
    RandomTokens(0.3),
    AgentKVShift(0.3),
    Epic(k=6, first_span=True),
]


def leak(engine: HF, method: Any) -> None:
    """Change the keys of a reused row, below all that the choice of rows looks at: no earlier row may move.

    The row lies behind the last recomputed one of its span, since a shift by a mean may carry what later rows saw to
    earlier ones.
    """
    before = execute(engine, method)
    spans = [range(19, 56), range(61, 82)]
    free = [i for s in spans for i in s if i > max((k for k in before.kept if k in s), default=0)]
    edge = free[-1]
    index = 1 if edge in spans[0] else 3
    assert any(i < edge for i in before.kept)
    assert before.run.fresh_rows[-1] < len(READER)
    rows = from_source(engine)
    rows[index].k[2:, :, edge - READER.placed[index].start] += 3.0
    after = execute(engine, method, rows)
    assert [p.tolist() for p in before.passed] == [p.tolist() for p in after.passed]
    assert torch.equal(before.run.kv(0, edge).k, after.run.kv(0, edge).k)
    assert torch.equal(before.run.kv(0, edge).v, after.run.kv(0, edge).v)
    assert not torch.equal(before.run.logits, after.run.logits)


@pytest.mark.parametrize("method", LEAK, ids=lambda m: type(m).__name__)
def test_no_row_sees_a_later_one(engine: HF, method: Any) -> None:  # I6, strictly between nothing and everything
    leak(engine, method)


@pytest.mark.parametrize("method", LEAK, ids=lambda m: type(m).__name__)
def test_a_bottom_right_mask_would_leak(engine: HF, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.backends import hf_attention

    def bottom_right(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
        rows, stop = len(q_pos), k.shape[1]
        return attend(q, k, v, torch.arange(rows) + stop - rows, scale)

    monkeypatch.setattr(hf_attention, "attend", bottom_right)
    with pytest.raises(AssertionError):
        leak(engine, method)


def stock_attention(engine: HF) -> Tensor:
    """Attention from the suffix at layer 1 of the stock model, ``[N]``."""
    kept = engine.forward.model.config._attn_implementation
    try:
        engine.forward.model.set_attn_implementation("eager")
        found = engine.forward.model(torch.tensor([READER.ids]), output_attentions=True).attentions[1][0]
    finally:
        engine.forward.model.set_attn_implementation(kept)
    total: Tensor = found[:, 82:].sum((0, 1))
    return total


@pytest.mark.parametrize("score", ["v", "k", "kv", "query_attn", "weighted"])
@pytest.mark.parametrize("over", ["union", "span"])
def test_the_chosen_rows_are_those_of_a_dense_run(engine: HF, score: Any, over: Any) -> None:
    """Layer 0 ran in full, so what the check at layer 1 compares with is the dense cache."""
    found = execute(engine, CacheBlend(0.3, score=score, ratio_over=over))
    truth = dense(engine).kv(0, len(READER))
    reused = full_reuse(engine)
    k, v = ((a[1].double() - b[1].double()).pow(2).sum((0, 2)) for a, b in ((truth.k, reused.k), (truth.v, reused.v)))
    scores = {"v": v, "k": k, "kv": k + v}
    if score not in scores:
        mass = stock_attention(engine).double()
        scores = {"query_attn": mass, "weighted": mass * v.sqrt()}
    expected: set[int] = set()
    for rows in [CANDIDATES] if over == "union" else [CANDIDATES[:37], CANDIDATES[37:]]:
        ranked = sorted(rows, key=lambda i: (-float(scores[score][i]), i))
        expected |= set(ranked[: round(0.3 * len(rows))])
    assert set(found.kept) == expected


@pytest.mark.parametrize("score", ["v", "k", "kv"])
def test_the_oracle_keeps_the_rows_with_the_largest_true_error(engine: HF, score: Any) -> None:
    found = execute(engine, OracleTokens(0.3, score=score))
    truth, reused = dense(engine).kv(0, len(READER)), full_reuse(engine)
    error = torch.zeros(len(READER), dtype=torch.double)
    for true, used in [(truth.v, reused.v)] * ("v" in score) + [(truth.k, reused.k)] * ("k" in score):
        for layer in (1, 2, 3):
            for span in (slice(19, 56), slice(61, 82)):
                exact = true[layer][:, span].double()
                off = (used[layer][:, span].double() - exact).pow(2).sum((0, 2))
                error[span] += (
                    off / (exact / engine.shape.rope.scaling if true is truth.k else exact).pow(2).sum((0, 2)).mean()
                )
    ranked = sorted(CANDIDATES, key=lambda i: (-float(error[i]), i))
    assert found.notes == {"oracle_tokens": float(len(READER))}
    assert found.kept == sorted(ranked[:17])


@pytest.mark.parametrize("damp", ["none", "deviation"])
def test_unprobed_rows_move_by_the_probes_mean_residual(engine: HF, damp: Any) -> None:
    """At every layer, against an own computation; probes hold their fresh rows, so the cache shows their residual."""
    found = execute(engine, AgentKVShift(0.3, damp=damp))
    cache, full, truth, rope = found.cache(), full_reuse(engine), dense(engine).kv(0, len(READER)), engine.shape.rope
    for span in (range(19, 56), range(61, 82)):
        kept = torch.tensor([i for i in found.kept if i in span])
        others = torch.tensor([i for i in span if i not in found.kept])
        assert len(kept) == -(-3 * len(span) // 10)
        for layer in (1, 2, 3):
            off_k = rope.remove(cache.k[layer, :, kept] - full.k[layer, :, kept], kept).mean(1, keepdim=True)
            off_v = (cache.v[layer, :, kept] - full.v[layer, :, kept]).mean(1, keepdim=True)
            keys = rope.apply(off_k.expand(-1, len(others), -1), others)
            if damp == "deviation":
                own_k, own_v = (
                    (t[1] - r[1]).norm(dim=2).pow(2).sum(0).sqrt()
                    for t, r in zip((truth.k, truth.v), (full.k, full.v), strict=True)
                )
                keys = keys * (own_k[others] / own_k[kept].mean()).clamp_max(1)[:, None]
                off_v = off_v * (own_v[others] / own_v[kept].mean()).clamp_max(1)[:, None]
            torch.testing.assert_close(cache.k[layer, :, others], full.k[layer, :, others] + keys, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(
                cache.v[layer, :, others], full.v[layer, :, others] + off_v, rtol=1e-3, atol=1e-4
            )


def test_where_the_reused_rows_come_from_does_not_matter(engine: HF) -> None:  # I7
    """De-rotated rows and rows cached elsewhere are the same rows."""
    rows = from_source(engine)
    bare = {i: kv.derotated(engine.shape.rope) for i, kv in rows.items()}
    for method in (CacheBlend(0.3, score="kv"), AgentKVShift(0.3), OracleTokens(0.3)):
        one, other = execute(engine, method, rows), execute(engine, method, bare)
        assert one.kept == other.kept
        torch.testing.assert_close(one.run.logits, other.run.logits, rtol=1e-3, atol=1e-3)


def test_isolated_rows_are_encoded_once_and_charged(engine: HF) -> None:
    rows = from_source(engine)
    found = execute(engine, CacheBlend(0.0, source="isolated", write_back="kept"), rows)
    assert found.notes == {"encode_tokens": float(len(SPAN_A) + len(SPAN_B))}
    alone = engine.encode(SPAN_B.ids)
    assert torch.equal(found.run.kv(61, 82).v[2], alone.v[2])
    twice = prompt_of(draw(3, 9), SPAN_A, SPAN_A, draw(4, 3))
    again = execute(engine, Epic(source="isolated"), {1: rows[1], 2: rows[1]}, twice)
    assert again.notes == {"encode_tokens": float(len(SPAN_A))}


def test_a_prompt_that_ends_in_its_span(engine: HF) -> None:
    prompt = prompt_of(draw(3, 19), SPAN_A)
    rows = {1: held(engine, dense(engine, prompt), prompt, 1)}
    for method in (
        CacheBlend(0.3, score="query_attn"),
        CacheBlend(0.5, schedule="gradual"),
        AgentKVShift(0.2),
        Epic(9),
    ):
        found = execute(engine, method, rows, prompt)
        torch.testing.assert_close(found.run.logits, dense(engine, prompt).logits, rtol=1e-3, atol=1e-3)  # I4
