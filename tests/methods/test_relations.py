"""GraphFlow and Kamera: exact where a relation was measured in full, dense or isolated full reuse where it was not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import AGENTS, Agent, Call, Tiny, TinyEngine, questions, relative, trajectory

from methods.base import Dense, Hop, Reuse, Source
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.graphflow import GraphFlow
from methods.kamera import Kamera
from methods.lowrank import pair_bytes
from methods.segment import Private, Prompt, Shared, Span
from methods.sparse import Thresholded, sparse_bytes

MODEL = Tiny()
METHODS = [GraphFlow, Kamera]
FULL: dict[Any, dict[str, Any]] = {
    GraphFlow: {"density": 1.0, "build_requests": 1, "min_frequency": 1},
    Kamera: {"rank": 16, "factor_dtype": "float32"},
}
NOTHING: dict[Any, dict[str, Any]] = {
    GraphFlow: {"density": 0.0, "build_requests": 1, "min_frequency": 1},
    Kamera: {"rank": 0, "factor_dtype": "float32"},
}


def bound(method: Any) -> Any:
    method.bind(MODEL.shape(), 0)
    return method


def run(method: Any, question: list[int], name: str = "t0", agents: Any = AGENTS) -> list[Call]:
    return trajectory(method, TinyEngine(MODEL), question, name, agents)


def same_bits(mine: list[Call], theirs: list[Call]) -> bool:
    return all(torch.equal(a.ran.logits, b.ran.logits) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("glue", ["recompute", "delta"])
def test_a_relation_measured_in_full_gives_dense(kind: Any, glue: str) -> None:
    """I5: density 1, full rank."""
    question, method = questions(1)[0], bound(kind(**FULL[kind], glue=glue))
    run(method, question)
    engine = TinyEngine(MODEL)
    for mine, exact in zip(
        trajectory(method, engine, question, "t1"), run(bound(DenseMethod()), question), strict=True
    ):
        assert isinstance(mine.plan, Reuse)
        assert relative(mine.ran.k, exact.ran.k) < 1e-4
        assert relative(mine.ran.logits, exact.ran.logits) < 1e-3
        assert mine.ran.output_ids == exact.ran.output_ids
        prompt = mine.hop.prompt
        private = sum(len(p) for p in prompt.private()) - len(prompt.placed[0])
        assert mine.ran.fresh_rows == [private if glue == "recompute" else 1] * MODEL.layers
    assert engine.encodes == []  # bases come from the store


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_kept_is_isolated_full_reuse(kind: Any) -> None:
    question = questions(1)[0]
    method, plain = bound(kind(**NOTHING[kind], first_agent=False)), bound(FullReuse("isolated"))
    run(method, question)
    # The third agent reads what the second one says over its lossy cache: content that was never measured.
    for mine, other in zip(run(method, question, "t1")[:2], run(plain, question, "t1")[:2], strict=True):
        assert isinstance(mine.plan, Reuse) == (mine.hop.index == 1)
        assert mine.hop.prompt.ids == other.hop.prompt.ids
        assert relative(mine.ran.k, other.ran.k) < 1e-5
        assert relative(mine.ran.v, other.ran.v) < 1e-5


@pytest.mark.parametrize(
    "method", [GraphFlow(build_requests=1, min_frequency=1), Kamera()], ids=["graphflow", "kamera"]
)
def test_unseen_content_is_dense_bit_for_bit(method: Any) -> None:
    one, two = questions(2)
    run(bound(method), one)
    calls = run(method, two, "t1")
    assert all(call.plan == Dense(refused=True) for call in calls)
    assert same_bits(calls, run(bound(DenseMethod()), two))


@pytest.mark.parametrize("method", [GraphFlow(build_requests=0, miss="base"), Kamera(miss="blind")])
def test_unseen_content_may_take_its_base(method: Any) -> None:
    question = questions(1)[0]
    plain = bound(FullReuse("isolated"))
    for mine, other in zip(run(bound(method), question)[1:], run(plain, question)[1:], strict=True):
        assert isinstance(mine.plan, Reuse)
        spans = {p.index for p in mine.hop.prompt.shared()}
        assert spans <= set(mine.plan.rows)
        assert isinstance(other.plan, Reuse)
    assert method.state_bytes().correction == 0


def test_graphflow_builds_then_freezes() -> None:
    one, two, three = questions(3)
    method = bound(GraphFlow(build_requests=2, min_frequency=1))
    for i, question in enumerate([one, two]):
        assert all(c.plan == Dense() for c in run(method, question, f"t{i}"))
    size = method.state_bytes()
    held = {key: dict(pool.anchors) for key, pool in method.sharing.pools.items()}
    engine = TinyEngine(MODEL)
    assert all(c.plan == Dense(refused=True) for c in trajectory(method, engine, three, "t2"))
    assert engine.encodes == []  # nothing will be measured
    run(method, three, "t3")
    assert {key: dict(pool.anchors) for key, pool in method.sharing.pools.items()} == held
    assert method.state_bytes() == size
    assert all(isinstance(c.plan, Reuse) for c in run(method, one, "t4")[:1])


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_a_relation_is_stored_when_it_is_frequent(frequency: int) -> None:
    question = questions(1)[0]
    method = bound(GraphFlow(build_requests=0, online=True, min_frequency=frequency))
    for i in range(5):
        first = run(method, question, f"t{i}")[0]
        assert isinstance(first.plan, Reuse) == (i >= frequency)
        assert (first.notes["relations_kept"] > 0) == (i >= frequency)
        assert (first.notes["relations_seen"] > 0) == (i > 0)


def test_a_closed_build_survives_a_restart() -> None:
    """Phase, sightings and residuals continue bit for bit."""
    one, two = questions(2)
    for kind, options in ((GraphFlow, {"build_requests": 3, "density": 0.3}), (Kamera, {"rank": 2, "key": "set"})):
        before, after = bound(kind(**options)), bound(kind(**options))
        for i, question in enumerate([one, two]):
            run(before, question, f"t{i}")
        after.restore(before.snapshot())
        assert after.state_bytes() == before.state_bytes()
        hits = 0
        for i, question in enumerate([one, two, one, two], 2):
            mine, theirs = run(before, question, f"t{i}"), run(after, question, f"t{i}")
            assert same_bits(mine, theirs)
            assert [c.notes for c in mine] == [c.notes for c in theirs]
            hits += sum(isinstance(c.plan, Reuse) for c in mine)
        assert hits


@pytest.mark.parametrize("kind", METHODS)
def test_bytes_are_those_of_the_formula(kind: Any) -> None:
    """Bases m T once; residuals bitmap plus values, patches factors or raw, without layer 0."""
    options: dict[str, Any] = {GraphFlow: {"build_requests": 1, "min_frequency": 1}, Kamera: {"rank": 2}}[kind]
    method = bound(kind(**options, role_cache=False))
    calls = run(method, questions(1)[0])
    layers, width = MODEL.layers - 1, MODEL.shape().width
    relations = [len(p) for call in calls for p in call.hop.prompt.shared()]
    contents = {p.span.ids for call in calls for p in call.hop.prompt.shared() if p.span}
    size = method.state_bytes()
    assert size.base == MODEL.shape().kv_bytes(sum(map(len, contents)))
    if kind is GraphFlow:
        assert size.correction == sum(2 * sparse_bytes(layers, n, width, 0.25, 4) for n in relations)
    else:
        assert size.correction == sum(pair_bytes(layers, n, width, 2, 2, 2) for n in relations)


def test_the_error_falls_with_density_and_bytes_grow() -> None:
    """I13."""
    x = torch.randn(3, 2, 20, 8, generator=torch.Generator().manual_seed(0))
    flat = x.transpose(1, 2).reshape(3, 20, 16)
    errors, sizes = [], []
    for density in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0):
        stored = Thresholded(density, torch.float32).encode(x, 0)
        dense, none = stored.operand(20)
        assert none is None
        kept = dense != 0
        assert torch.equal(dense[kept], flat[kept])
        errors.append(float((flat - dense).norm()))
        assert stored.residual == pytest.approx(errors[-1], rel=1e-4, abs=2e-3)
        assert stored.nbytes == sparse_bytes(3, 20, 16, density, 4)
        sizes.append(stored.nbytes)
        assert torch.equal(stored.operand(7)[0], dense[:, :7])
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(float(flat.norm()))
    assert errors[-1] == 0
    assert sizes == sorted(sizes)


def _asked(method: Any, *pieces: tuple[int, ...], name: str, reader: str = "b", source: str = "a") -> Any:
    """One hop of reader b over private pieces and a question it got from a."""
    span = Span("question", tuple(questions(1)[0]), "user")
    prompt = Prompt((*(Private(p) for p in pieces), Shared(span), Private((13, 14))))
    engine = TinyEngine(MODEL)
    held = {"question": Source(source, 0, engine.encode(span.ids))}
    hop = Hop(name, 1, reader, prompt, held, held)
    plan = method.plan(hop, engine)
    method.observe(hop, engine.run(prompt, plan))
    method.end(name)
    return plan


def test_a_set_key_knows_its_antecedents_and_no_order() -> None:
    seq, unordered = bound(Kamera()), bound(Kamera(key="set"))
    for method in (seq, unordered):
        assert isinstance(_asked(method, (1, 2, 3), (4, 5), name="t0"), Dense)
        assert isinstance(_asked(method, (4, 5), (1, 2, 3), name="t1"), Reuse)
    assert isinstance(_asked(seq, (1, 2, 3), (6,), name="t2"), Reuse)
    assert isinstance(_asked(unordered, (1, 2, 3), (6,), name="t2"), Dense)
    assert isinstance(_asked(seq, (1, 2, 3), name="t3", reader="c"), Dense)
    assert isinstance(_asked(unordered, (1, 2, 3), (4, 5), name="t3", reader="c"), Reuse)


def test_an_edge_key_asks_for_the_source_too() -> None:
    keys: list[tuple[Any, type]] = [("reader", Reuse), ("edge", Dense)]
    for key, plan in keys:
        method = bound(GraphFlow(key=key, build_requests=1, min_frequency=1))
        _asked(method, (1, 2), name="t0")
        assert isinstance(_asked(method, (1, 2), name="t1"), Reuse)
        assert isinstance(_asked(method, (1, 2), name="t2", source="z"), plan)


@pytest.mark.parametrize("kind", METHODS)
def test_a_correction_serves_at_any_position(kind: Any) -> None:
    """I7: the measured rows, moved."""
    question, method = questions(1)[0], bound(kind(**FULL[kind]))
    moved = (Agent("a", (60, 61, 62, *AGENTS[0].role)),)
    exact = run(method, question, agents=AGENTS[:1])[0]
    mine = run(method, question, "t1", moved)[0]
    assert isinstance(mine.plan, Reuse)
    rope, at = MODEL.shape().rope, mine.hop.prompt.placed[1]
    here = mine.ran.kv(at.start, at.stop).derotated(rope)
    there = exact.ran.kv(at.start - 3, at.stop - 3).derotated(rope)
    assert relative(here.k, there.k) < 1e-4
    assert torch.allclose(here.v, there.v, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (GraphFlow, {"density": 1.5}),
        (GraphFlow, {"min_frequency": 0}),
        (GraphFlow, {"miss": "blind"}),
        (GraphFlow, {"build_requests": -1}),
        (Kamera, {"rank": -1}),
        (Kamera, {"key": "edge"}),
        (Kamera, {"pool": 0}),
    ],
)
def test_a_wrong_value_is_named(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kind(**wrong)
