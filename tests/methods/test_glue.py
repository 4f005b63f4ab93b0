"""Private text after shared spans: fresh, stale, or stale plus deltas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import AGENTS, Call, Tiny, TinyEngine, questions, relative, trajectory

from methods.base import Reuse
from methods.dense import DenseMethod
from methods.kvcmas import KVCMAS

MODEL = Tiny()
EXACT: dict[str, Any] = {"codec": "full", "factor_dtype": "float32", "gate": "always"}


def bound(**options: Any) -> KVCMAS:
    method = KVCMAS(**options)
    method.bind(MODEL.shape(), 0)
    return method


def dense(engine: TinyEngine, question: list[int]) -> list[Call]:
    method = DenseMethod()
    method.bind(MODEL.shape(), 0)
    return trajectory(method, engine, question)


@pytest.mark.parametrize("glue", ["rotate", "delta"])
def test_only_the_last_token_runs(glue: str) -> None:
    engine = TinyEngine(MODEL)
    method = bound(glue=glue, **EXACT)
    one, two = questions(2)
    trajectory(method, engine, one, "t0")
    calls = trajectory(method, engine, two, "t1")
    for call in calls[1:]:
        assert isinstance(call.plan, Reuse)
        assert call.ran.fresh_rows[0] == 1
        assert sorted(call.plan.rows) == [p.index for p in call.hop.prompt.placed]


def test_stale_text_is_the_template_moved() -> None:
    """3.5: encoded once per agent with literals in place of the spans, then only rotated."""
    engine = TinyEngine(MODEL)
    method = bound(glue="rotate", role_cache=False, **EXACT)
    one, two, three = questions(3)
    trajectory(method, engine, one, "t0")
    trajectory(method, engine, two, "t1")
    call = trajectory(method, engine, three, "t2")[1]
    template = [*AGENTS[1].role, 90, 91, *AGENTS[1].glue, 92, 93, *AGENTS[1].tail]
    assert engine.encodes.count(tuple(template)) == 1
    assert len(engine.encodes) == 2
    stale = engine.encode(template)
    for index, begin in ((0, 0), (2, 8), (4, 12)):
        place = call.hop.prompt.placed[index]
        stop = min(place.stop, len(call.hop.prompt) - 1)  # the last token runs fresh
        rows = stop - place.start
        moved = torch.stack(
            [MODEL.turn(k, torch.full((rows,), place.start - begin)) for k in stale.k[:, :, begin : begin + rows]]
        )
        assert relative(call.ran.k[:, :, place.start : stop], moved) < 1e-4
        assert torch.equal(call.ran.v[:, :, place.start : stop], stale.v[:, :, begin : begin + rows])


def test_exact_deltas_make_stale_text_exact() -> None:
    """I5 including glue: the same request again at full rank."""
    engine = TinyEngine(MODEL)
    question = questions(1)[0]
    right = dense(engine, question)
    errors = {}
    for glue in ("recompute", "rotate", "delta"):
        method = bound(glue=glue, **EXACT)
        trajectory(method, engine, question, "t0")
        again = trajectory(method, engine, question, "t1")
        errors[glue] = max(relative(a.ran.logits, b.ran.logits) for a, b in zip(again, right, strict=True))
    assert errors["recompute"] < 1e-4
    assert errors["delta"] < 1e-4
    assert errors["rotate"] > 1e-2


def test_glue_deltas_are_weighted_per_layer_and_channel() -> None:
    """Values of the text after the question, against the sum written out: layer l takes the weights of layer l."""
    engine = TinyEngine(MODEL)
    method = bound(glue="delta", temperature=3.0, **EXACT)
    asked = questions(3)
    taught = [trajectory(method, engine, asked[i], f"t{i}", AGENTS[:2], warmup=True) for i in range(2)]
    calls = trajectory(method, engine, asked[2], "t2", AGENTS[:2])
    template = [*AGENTS[1].role, 90, 91, *AGENTS[1].glue, 92, 93, *AGENTS[1].tail]
    stale = engine.encode(template).v[:, :, 8:10]
    place = calls[1].hop.prompt.placed[2]
    source = calls[1].hop.sources["question"].kv.v
    gaps = torch.stack([t[1].hop.sources["question"].kv.v - source for t in taught])
    weights = torch.softmax(-gaps.square().sum(3).sqrt() / 3.0, 0)  # [A, L, H, D]
    deltas = torch.stack([t[1].ran.v[:, :, place.start : place.stop] - stale for t in taught])
    right = stale + (weights[:, :, :, None] * deltas).sum(0)
    assert relative(calls[1].ran.v[1:, :, place.start : place.stop], right[1:]) < 1e-4


def test_glue_deltas_are_counted_and_follow_their_rank() -> None:
    engine = TinyEngine(MODEL)
    full, low = (bound(glue="delta", gate="never", role_cache=False, rank_glue=r) for r in (0, 1))
    plain = bound(gate="never", role_cache=False)
    for method in (full, low, plain):
        trajectory(method, engine, questions(1)[0])
    glue = 2 * 3 * 16 * 2  # keys and values, 3 layers, C = 16, bfloat16
    pieces = [2, 3, 2, 2, 3]  # after the question and a's output at b; after the question, a's and b's output at c
    extra = full.state_bytes().correction - plain.state_bytes().correction
    assert extra == glue * sum(pieces)
    assert low.state_bytes().correction - plain.state_bytes().correction < extra


def test_reuse_hops_run_no_template_when_text_is_recomputed() -> None:
    engine = TinyEngine(MODEL)
    method = bound(**EXACT)
    for i, question in enumerate(questions(2)):
        trajectory(method, engine, question, f"t{i}")
    assert engine.encodes == []
