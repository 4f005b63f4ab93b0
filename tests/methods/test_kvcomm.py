"""KVComm: exact with an exact anchor, dense where its rules say dense, and what its two frames do to a moved prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import AGENTS, Agent, Call, Tiny, TinyEngine, questions, relative, trajectory

from methods.base import Dense, Reuse
from methods.dense import DenseMethod
from methods.kvcomm import KVComm

MODEL = Tiny()
MOVED = tuple(Agent(a.name, (60, 61, 62, 63, 64, *a.role), a.glue, a.tail) for a in AGENTS)


def bound(**options: Any) -> KVComm:
    method = KVComm(**options)
    method.bind(MODEL.shape(), 0)
    return method


def dense(question: list[int]) -> list[Call]:
    method = DenseMethod()
    method.bind(MODEL.shape(), 0)
    return trajectory(method, TinyEngine(MODEL), question)


@pytest.mark.parametrize("frame", ["canonical", "legacy"])
def test_the_sample_itself_as_anchor_gives_dense_private_text_included(frame: str) -> None:
    """I5, from the first agent on."""
    question = questions(1)[0]
    method, engine = bound(gate="always", frame=frame), TinyEngine(MODEL)
    trajectory(method, engine, question, "t0")
    for mine, exact in zip(trajectory(method, engine, question, "t1"), dense(question), strict=True):
        assert isinstance(mine.plan, Reuse)
        assert not mine.plan.exact
        assert mine.ran.fresh_rows == [1] * MODEL.layers  # baselines of the fresh share: 1 / N
        assert relative(mine.ran.k, exact.ran.k) < 1e-4
        assert relative(mine.ran.v, exact.ran.v) < 1e-4
        assert relative(mine.ran.logits, exact.ran.logits) < 1e-3
        assert mine.ran.output_ids == exact.ran.output_ids


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"tau": 0.0, "gate": "always"}, {"pool": 0}])
def test_a_closed_gate_or_no_pool_is_dense(options: dict[str, Any]) -> None:
    method, engine = bound(**options), TinyEngine(MODEL)
    for i, question in enumerate(questions(1) * 3):
        for mine, exact in zip(trajectory(method, engine, question, f"t{i}"), dense(question), strict=True):
            assert isinstance(mine.plan, Dense)
            assert torch.equal(mine.ran.logits, exact.ran.logits)


def test_a_lone_anchor_and_identical_anchors_are_refused() -> None:
    """The gate measures contrast, not closeness."""
    question = questions(1)[0]
    method, engine = bound(), TinyEngine(MODEL)
    for i in range(4):
        assert all(isinstance(c.plan, Dense) for c in trajectory(method, engine, question, f"t{i}"))


def test_the_question_passes_the_gate_too() -> None:
    """Longer than every anchor: the first agent, which reads nothing else, goes dense under the entropy gate only."""
    method, engine = bound(tau=1.0), TinyEngine(MODEL)
    for i, question in enumerate(questions(3)):
        trajectory(method, engine, question, f"t{i}")
    known = trajectory(method, engine, questions(1, seed=8)[0], "short")[0]
    assert isinstance(known.plan, Reuse)
    longer = trajectory(method, engine, questions(1, length=21)[0], "long")[0]
    assert longer.plan == Dense(refused=True)


def test_a_hit_writes_no_anchor() -> None:
    method, engine = bound(tau=1.0), TinyEngine(MODEL)
    for i, question in enumerate(questions(3)):
        trajectory(method, engine, question, f"t{i}")
    before = {pool: list(held.anchors) for pool, held in method.sharing.pools.items()}
    calls = trajectory(method, engine, questions(1, seed=8)[0], "later")
    hits = [call for call in calls if isinstance(call.plan, Reuse)]
    assert hits
    for call in hits:
        for pool, held in method.sharing.pools.items():
            if pool.endswith(f">{call.hop.agent}"):
                assert list(held.anchors) == before[pool]


@pytest.mark.parametrize(("capacity", "most"), [("strict", 2), ("legacy", 3)])
def test_pools_keep_their_bound(capacity: str, most: int) -> None:
    method, engine = bound(pool=2, capacity=capacity), TinyEngine(MODEL)
    for i, question in enumerate(questions(6)):
        trajectory(method, engine, question, f"t{i}")
    sizes = [len(pool) for pool in method.sharing.pools.values()]
    assert max(sizes) == most


def test_an_output_starts_from_the_rows_of_its_author() -> None:
    """And the question from an encode, once a request however many read it."""
    question, engine = questions(1)[0], TinyEngine(MODEL)
    method = bound(gate="always", glue="recompute")
    calls = trajectory(method, engine, question, "t0")
    assert engine.encodes == [tuple(question)]
    anchor = next(iter(method.sharing.pools["output:a:a>c"]))
    held = calls[0].ran.kv(len(calls[0].hop.prompt), calls[0].ran.k.shape[2]).derotated(MODEL.shape().rope)
    stored, _ = anchor.base.k.operand(anchor.length)
    assert relative(stored, held.k.transpose(1, 2).flatten(2)) < 1e-5


def test_bytes_are_those_of_the_formula() -> None:
    """m T for each base, m (T + T_pf) for each reader's corrections, without layer 0."""
    question = questions(1)[0]
    method, engine = bound(role_cache=False), TinyEngine(MODEL)
    calls = trajectory(method, engine, question, "t0")
    m, layers = MODEL.shape().kv_bytes(1), MODEL.layers
    spans = {p.span.id: len(p) for call in calls for p in call.hop.prompt.shared() if p.span}
    templates = sum(len(p) for call in calls for p in call.hop.prompt.private())
    rows = sum(len(call.hop.prompt) - len(call.hop.prompt.placed[0]) for call in calls)
    size = method.state_bytes()
    assert size.base == m * (sum(spans.values()) + templates)
    assert size.correction == m * rows * (layers - 1) // layers


def _moved_error(frame: str) -> float:
    """How far keys of a reused question are off, when anchor and request hold it at different offsets."""
    question = questions(1)[0]
    method, engine = bound(frame=frame, gate="always", glue="recompute", role_cache=False), TinyEngine(MODEL)
    trajectory(method, engine, question, "t0", agents=AGENTS[:1])
    calls = trajectory(method, engine, question, "t1", agents=MOVED[:1])
    assert isinstance(calls[0].plan, Reuse)
    rope, at, home = MODEL.shape().rope, calls[0].hop.prompt.placed[1], len(AGENTS[0].role)
    mine = calls[0].ran.kv(at.start, at.stop).derotated(rope)
    exact = dense(question)[0].ran.kv(home, home + len(question)).derotated(rope)
    return relative(mine.k, exact.k)


def test_only_the_canonical_frame_commutes_with_a_shift() -> None:
    """I7; the second case is a regression test of the published defect."""
    assert _moved_error("canonical") < 1e-4
    assert _moved_error("legacy") > 1e-2


def test_a_restored_copy_continues_bit_for_bit() -> None:
    engine, asked = TinyEngine(MODEL), questions(6)
    one, two = bound(tau=1.0), bound(tau=1.0)
    for i, question in enumerate(asked[:3]):
        trajectory(one, engine, question, f"t{i}")
    saved = one.snapshot()
    assert saved is not None
    two.restore(saved)
    for i, question in enumerate(asked[3:], 3):
        for a, b in zip(
            trajectory(one, engine, question, f"t{i}"), trajectory(two, engine, question, f"t{i}"), strict=True
        ):
            assert torch.equal(a.ran.logits, b.ran.logits)
            assert torch.equal(a.ran.k, b.ran.k)
            assert a.notes == b.notes


@pytest.mark.parametrize("wrong", [{"pool": -1}, {"window": 0}, {"temperature": 0}, {"frame": "derotated"}])
def test_a_wrong_value_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        KVComm(**wrong)
