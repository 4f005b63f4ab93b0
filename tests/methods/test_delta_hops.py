"""How a delta method decides at a hop: prompts of any shape, partial coverage, refusals, warm-up, notes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import AGENTS, Ran, Tiny, TinyEngine, prompt_of, questions, relative, trajectory

from methods.base import Dense, Hop, Reuse, Source
from methods.corrected import Corrected
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from methods.segment import Private, Prompt, Segment, Shared, Span

MODEL = Tiny()
EXACT: dict[str, Any] = {"codec": "full", "factor_dtype": "float32", "gate": "always"}


def bound(**options: Any) -> KVCMAS:
    method = KVCMAS(**options)
    method.bind(MODEL.shape(), 0)
    return method


def hop_over(segments: list[Segment], engine: TinyEngine, held: set[str], name: str, warmup: bool = False) -> Hop:
    """A hop of agent b whose spans in ``held`` were cached by agent a behind another role prompt."""
    prompt = Prompt(tuple(segments))
    sources = {}
    for place in prompt.shared():
        span = place.span
        if span is not None and span.id in held:
            whole = engine.encode([70, 71, *span.ids])
            sources[span.id] = Source("a", 0, whole.rows(2, 2 + len(span)))
    return Hop(name, 1, "b", prompt, sources, sources, warmup)


def ran(method: KVCMAS, engine: TinyEngine, hop: Hop) -> tuple[Dense | Reuse, Ran]:
    plan = method.plan(hop, engine)
    executed = engine.run(hop.prompt, plan)
    method.observe(hop, executed)
    method.end(hop.trajectory)
    return plan, executed


ids = st.lists(st.integers(0, 80), max_size=5).map(tuple)
layouts = st.lists(st.tuples(st.booleans(), ids), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(layouts, st.sampled_from(["recompute", "delta"]), st.booleans())
def test_any_prompt_is_exact_under_exact_deltas(
    layout: list[tuple[bool, tuple[int, ...]]], glue: str, all_held: bool
) -> None:
    """T11, T13: adjacent and empty spans, empty or missing private text, spans nobody holds, span first or last."""
    engine = TinyEngine(MODEL, new_tokens=2)
    segments: list[Segment] = [
        Shared(Span(f"s{i}", text, "x", placeholder=(90,))) if shared else Private(text)
        for i, (shared, text) in enumerate(layout)
    ]
    segments.append(Private((33, 34)))
    held = {f"s{i}" for i in range(len(layout)) if all_held or i % 2}
    assert len(Prompt(tuple(segments))) == sum(len(s.ids) for s in segments)
    method = bound(glue=glue, **EXACT)
    taught, right = ran(method, engine, hop_over(segments, engine, held, "t0"))
    plan, again = ran(method, engine, hop_over(segments, engine, held, "t1"))
    reusable = any(p.span is not None and p.span.id in held for p in Prompt(tuple(segments)).shared())
    assert taught == Dense(refused=reusable)
    assert isinstance(plan, Reuse) == reusable
    assert relative(again.k, right.k) < 1e-3
    assert relative(again.logits, right.logits) < 1e-3


def test_a_span_may_stand_in_a_prompt_twice() -> None:
    engine = TinyEngine(MODEL)
    span = Shared(Span("s", (1, 2, 3, 4), "x"))
    segments: list[Segment] = [Private((9,)), span, Private((8,)), span, Private((7,))]
    method = bound(**EXACT)
    ran(method, engine, hop_over(segments, engine, {"s"}, "t0"))
    plan, _ = ran(method, engine, hop_over(segments, engine, {"s"}, "t1"))
    assert isinstance(plan, Reuse)
    assert {1, 3} <= set(plan.rows)
    assert len(method.sharing.pools["s:a>b"]) == 1


@pytest.mark.parametrize("glue", ["recompute", "rotate", "delta"])
def test_a_longer_span_is_corrected_as_far_as_anchors_reach(glue: str) -> None:
    """4.6: the rest is reused as it is."""
    engine = TinyEngine(MODEL)
    method = bound(glue=glue, **EXACT)
    plain = FullReuse()
    plain.bind(MODEL.shape(), 0)
    short, long = questions(1, length=8)[0], questions(1, length=20)[0]
    prompts = [[Private((5, 6, 7)), Shared(Span("s", tuple(q), "user")), Private((8, 9))] for q in (short, long)]
    ran(method, engine, hop_over(prompts[0], engine, {"s"}, "t0"))
    hop = hop_over(prompts[1], engine, {"s"}, "t1")
    plan = method.plan(hop, engine)
    assert method.notes()["coverage"] == pytest.approx(8 / 20)
    mine, theirs = engine.run(hop.prompt, plan), engine.run(hop.prompt, plain.plan(hop, engine))
    assert relative(mine.k[:, :, 11:23], theirs.k[:, :, 11:23]) < 1e-4
    assert relative(mine.k[1:, :, 3:11], theirs.k[1:, :, 3:11]) > 1e-3
    assert torch.equal(mine.v[:, :, 11:23], theirs.v[:, :, 11:23])


def test_partial_coverage_can_be_refused() -> None:
    engine = TinyEngine(MODEL)
    method = bound(partial=False, **EXACT)
    prompts = [[Shared(Span("s", tuple(range(n)), "user")), Private((8, 9))] for n in (8, 20)]
    ran(method, engine, hop_over(prompts[0], engine, {"s"}, "t0"))
    plan, _ = ran(method, engine, hop_over(prompts[1], engine, {"s"}, "t1"))
    assert plan == Dense(refused=True)
    assert [a.length for a in method.sharing.pools["s:a>b"]] == [8, 20]


def test_one_refused_span_makes_the_hop_dense_and_only_it_is_learned() -> None:
    """6.4, 5.4."""
    engine = TinyEngine(MODEL)
    method = bound(gate="relative", tau_distance=0.05, codec="full", factor_dtype="float32")

    def segments(first: int, second: int) -> list[Segment]:
        one, two = (tuple(q) for q in (questions(9)[first], questions(9, seed=8)[second]))
        return [Private((5,)), Shared(Span("s", one, "x")), Private((6,)), Shared(Span("t", two, "y")), Private((7,))]

    ran(method, engine, hop_over(segments(0, 0), engine, {"s", "t"}, "t0"))
    plan, _ = ran(method, engine, hop_over(segments(0, 1), engine, {"s", "t"}, "t1"))
    assert plan == Dense(refused=True)
    assert {key: [a.name.split("/")[0] for a in pool] for key, pool in method.sharing.pools.items()} == {
        "s:a>b": ["t0"],
        "t:a>b": ["t0", "t1"],
    }
    assert method.sharing.pools["s:a>b"].uses == {"t0/s:a>b@1": 1}
    plan, _ = ran(method, engine, hop_over(segments(0, 1), engine, {"s", "t"}, "t2"))
    assert isinstance(plan, Reuse)


def test_an_early_refusal_still_judges_the_other_spans_when_learning() -> None:
    engine = TinyEngine(MODEL)
    method = bound(gate="relative", tau_distance=0.05, codec="full", factor_dtype="float32")

    def segments(first: int, second: int) -> list[Segment]:
        one, two = (tuple(q) for q in (questions(9)[first], questions(9, seed=8)[second]))
        return [Private((5,)), Shared(Span("s", one, "x")), Private((6,)), Shared(Span("t", two, "y")), Private((7,))]

    ran(method, engine, hop_over(segments(0, 0), engine, {"s", "t"}, "t0"))
    ran(method, engine, hop_over(segments(1, 0), engine, {"s", "t"}, "t1"))  # s is new, t is known
    assert [len(pool) for pool in method.sharing.pools.values()] == [2, 1]


def test_warm_up_is_dense_and_admits_everything() -> None:
    engine = TinyEngine(MODEL)
    method = bound(gate="always", tau_distance=9.0)
    question = questions(1)[0]
    for i in range(3):  # the same again and again, which nothing else would admit
        calls = trajectory(method, engine, question, f"t{i}", warmup=True)
        assert all(call.plan == Dense() for call in calls)
    assert [len(pool) for pool in method.sharing.pools.values()] == [3] * 5


def test_the_question_passes_the_gate_only_if_asked_to() -> None:
    engine = TinyEngine(MODEL)
    for gated, kind in ((False, Reuse), (True, Dense)):
        method = bound(gate="relative", tau_distance=0.01, gate_question=gated)
        segments = [[Private((5,)), Shared(Span("question", tuple(q), "user")), Private((7,))] for q in questions(2)]
        ran(method, engine, hop_over(segments[0], engine, {"question"}, "t0"))
        plan, _ = ran(method, engine, hop_over(segments[1], engine, {"question"}, "t1"))
        assert isinstance(plan, kind)


def test_rank_and_hot_anchors_leave_rows_finite_and_close() -> None:
    """An end-to-end pass through truncated factors and hot anchors, against full reuse."""
    engine = TinyEngine(MODEL)
    method = bound(rank=6, hot=2, gate="always", pool=6)
    for i, question in enumerate(questions(6, length=40)):
        trajectory(method, engine, question, f"t{i}", AGENTS[:2], warmup=True)
    call = trajectory(method, engine, questions(7, length=40)[6], "new", AGENTS[:2])[1]
    assert isinstance(call.plan, Reuse)
    rows = call.plan.rows[1]
    assert isinstance(rows, Corrected)
    assert rows.blend.hot is not None
    assert rows.blend.hot.sum(1).tolist() == [2] * 4
    assert torch.isfinite(call.ran.logits).all()


def test_notes_say_what_the_plan_saw() -> None:
    engine = TinyEngine(MODEL)
    method = bound(gate="entropy", tau=2.0)
    for i, question in enumerate(questions(3)):
        trajectory(method, engine, question, f"t{i}", AGENTS[:2], warmup=True)
    call = trajectory(method, engine, questions(4)[3], "new", AGENTS[:2], finish=False)[1]
    assert set(call.notes) == {"anchors", "gate", "effective_anchors_k", "effective_anchors_v", "coverage"}
    assert call.notes["anchors"] == 3.0
    assert 1.0 <= call.notes["effective_anchors_k"] <= 3.0
    assert call.notes["coverage"] == 1.0
    assert 0.0 <= call.notes["gate"] <= 1.0 + 1e-6
    method.end("new")
    assert method.notes() == {}


def test_agents_need_not_share_a_layout() -> None:
    """Spans first, labels inside, instructions last."""
    engine = TinyEngine(MODEL)
    method = bound(**EXACT)
    question = Span("question", tuple(questions(1)[0]), "user")
    first = Prompt((Shared(question), Private((1, 2, 3))))
    opening = Hop("t0", 0, "a", first)
    held = engine.run(first, method.plan(opening, engine))
    source = {"question": Source("a", 0, held.kv(0, 20))}
    later = Prompt((Shared(question), Private((4, 5))))
    hop = Hop("t0", 1, "b", later, source, source)
    assert method.plan(hop, engine) == Dense(refused=True)
    right = engine.run(later, Dense())
    method.observe(hop, right)
    method.end("t0")
    plan = method.plan(Hop("t1", 1, "b", later, source, source), engine)
    again = engine.run(later, plan)
    assert again.fresh_rows[0] == 2
    assert relative(again.logits, right.logits) < 1e-5
    assert prompt_of(AGENTS[0], (1,), ()).placed[0].stop == len(AGENTS[0].role)
