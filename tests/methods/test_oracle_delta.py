"""The true delta at rank r: dense at full rank, and the error falls with the rank."""

from __future__ import annotations

import pytest
import torch
from tiny import AGENTS, Call, Tiny, TinyEngine, prompt_of, questions, relative, trajectory

from methods.base import KV, Dense, Hop, Reuse, Source
from methods.dense import DenseMethod
from methods.oracle_delta import OracleDelta
from methods.segment import Prompt

MODEL = Tiny()


class Knowing(TinyEngine):
    """An engine that shows the true cache."""

    def oracle(self, prompt: Prompt) -> KV:
        k, v = self.cache(len(prompt))
        self.model.forward(prompt.ids, k, v, range(len(prompt)))
        return KV(k, v, 0)


def bound(**options: int) -> OracleDelta:
    method = OracleDelta(**options)  # type: ignore[arg-type]
    method.bind(MODEL.shape(), 0)
    return method


def dense(question: list[int]) -> list[Call]:
    method = DenseMethod()
    method.bind(MODEL.shape(), 0)
    return trajectory(method, TinyEngine(MODEL), question)


@pytest.mark.parametrize("rank", [0, 16, 99])
def test_the_whole_delta_gives_dense(rank: int) -> None:
    question = questions(1)[0]
    calls = trajectory(bound(rank=rank), Knowing(MODEL), question)
    for mine, exact in zip(calls, dense(question), strict=True):
        assert isinstance(mine.plan, Reuse if mine.hop.index else Dense)
        assert relative(mine.ran.k, exact.ran.k) < 1e-4
        assert relative(mine.ran.logits, exact.ran.logits) < 1e-3
        assert mine.ran.output_ids == exact.ran.output_ids


def test_the_error_falls_with_the_rank_to_the_tail_of_the_singular_values() -> None:
    """I13, against an SVD of the delta."""
    span, rope = tuple(questions(1)[0]), MODEL.shape().rope
    engine, prompt = Knowing(MODEL), prompt_of(AGENTS[1], span, [])
    held = {"question": Source("a", 0, engine.encode((1, 2, 3, *span)).rows(3, 3 + len(span)))}
    hop, place = Hop("t", 1, "b", prompt, held, held), prompt.placed[1]
    exact = engine.oracle(prompt).rows(place.start, place.stop).derotated(rope)
    upstream = held["question"].kv.derotated(rope)
    errors = []
    for rank in (1, 2, 4, 8, 12, 16):
        plan = bound(rank=rank).plan(hop, engine)
        ran = engine.run(prompt, plan)
        mine = ran.kv(place.start, place.stop).derotated(rope)
        for got, true, base in ((mine.k, exact.k, upstream.k), (mine.v, exact.v, upstream.v)):
            tail = torch.linalg.svdvals((true - base)[1:].transpose(1, 2).flatten(2).double())[:, rank:]
            error = float((got - true).double().norm())
            assert error <= 1.05 * float(tail.norm()) + 1e-3
            assert error >= float(tail.norm()) - 1e-3
        errors.append(float((mine.k - exact.k).norm() + (mine.v - exact.v).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.0


def test_it_learns_nothing() -> None:
    method = bound(rank=2)
    trajectory(method, Knowing(MODEL), questions(1)[0])
    assert method.state_bytes().correction == 0


@pytest.mark.parametrize("wrong", [{"rank": -1}, {"source": 3}])
def test_a_wrong_value_is_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        bound(**wrong)
