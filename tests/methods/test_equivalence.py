"""Identities every method must keep, against a transformer that shares no code with the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import AGENTS, Agent, Tiny, TinyEngine, prompt_of, questions, relative, trajectory

from methods.base import KV, Dense, Method, Reuse, Source
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse, Unmoved
from methods.kvcmas import KVCMAS
from methods.ridge import Ridge

EXACT: dict[str, Any] = {"codec": "full", "factor_dtype": "float32", "gate": "always"}
METHODS: dict[str, Callable[[], Any]] = {
    "dense": DenseMethod,
    "dense-prefix": lambda: DenseMethod(prefix_cache=True),
    "naive": lambda: FullReuse("naive"),
    "rotated": FullReuse,
    "isolated": lambda: FullReuse("isolated"),
    "ridge": lambda: Ridge(tau=1e9, warmup=1, min_requests=2, shrink=False),
    "kvcmas": KVCMAS,
    "kvcmas-star": lambda: KVCMAS(gate="always", reference="first_hop"),
    "kvcmas-context-free": lambda: KVCMAS(gate="always", reference="context_free"),
    "kvcmas-stale": lambda: KVCMAS(gate="always", glue="rotate"),
    "kvcmas-paper": lambda: KVCMAS(
        gate="entropy", frame="absolute", arithmetic="model_dtype", factor_dtype="model", oversampling=0,
        balanced=False, usage="legacy_top_p", question_admission="first_n", anchor_base="last_writer",
        weight_memo="request", capacity="legacy", glue="rotate", min_anchors=0, role_cache=False,
    ),
}  # fmt: skip


def bound(method: Any, model: Tiny, seed: int = 0) -> Any:
    assert isinstance(method, Method)
    method.bind(model.shape(), seed)
    return method


@pytest.mark.parametrize("scaling", [1.0, 1.3])
def test_layer_0_does_not_depend_on_the_prefix(scaling: float) -> None:
    """T2, I1."""
    model = Tiny(scaling=scaling)
    engine, rope = TinyEngine(model), model.shape().rope
    span = questions(1)[0]
    one = engine.encode([1, 2, 3, *span]).rows(3, 23).derotated(rope)
    two = engine.encode([40, 41, 42, 43, 44, 45, 46, *span]).rows(7, 27).derotated(rope)
    assert relative(one.k[0], two.k[0]) < 1e-5
    assert relative(one.v[0], two.v[0]) < 1e-5
    assert relative(one.k[1:], two.k[1:]) > 1e-2


@pytest.mark.parametrize("name", METHODS)
def test_the_first_agent_is_bit_equal_to_dense(name: str) -> None:
    model = Tiny()
    engine = TinyEngine(model)
    method, dense = bound(METHODS[name](), model), bound(DenseMethod(), model)
    for i, question in enumerate(questions(4)):
        mine = trajectory(method, engine, question, f"t{i}")[0]
        theirs = trajectory(dense, engine, question, f"t{i}")[0]
        assert torch.equal(mine.ran.logits, theirs.ran.logits)
        assert mine.ran.output_ids == theirs.ran.output_ids


@pytest.mark.parametrize("name", METHODS)
def test_no_row_is_read_that_nobody_set(name: str) -> None:
    """I10: the engine's unset cache rows are NaN."""
    model = Tiny()
    engine, method = TinyEngine(model), bound(METHODS[name](), model)
    for i, question in enumerate(questions(4)):
        for call in trajectory(method, engine, question, f"t{i}"):
            assert torch.isfinite(call.ran.logits).all()
            assert torch.isfinite(call.ran.k).all()


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"tau": -1.0, "tau_distance": 0.5}, {"gate": "never"}, {"pool": 0}])
def test_a_gate_that_never_opens_is_dense_token_for_token(options: dict[str, Any]) -> None:
    """Threshold 0 is dense as a rule: an entropy can underflow to exactly 0 and would pass a comparison."""
    model = Tiny()
    engine = TinyEngine(model)
    method, dense = bound(KVCMAS(**options), model), bound(DenseMethod(), model)
    for i, question in enumerate(questions(3)):
        for mine, theirs in zip(
            trajectory(method, engine, question, f"t{i}"), trajectory(dense, engine, question, f"t{i}"), strict=True
        ):
            assert isinstance(mine.plan, Dense)
            assert mine.plan.refused == (mine.hop.index > 0)
            assert torch.equal(mine.ran.logits, theirs.ran.logits)
            assert mine.ran.output_ids == theirs.ran.output_ids


@pytest.mark.parametrize("frame", ["derotated", "local", "absolute"])
@pytest.mark.parametrize("reference", ["upstream", "first_hop", "context_free"])
def test_an_exact_delta_gives_dense(reference: str, frame: str) -> None:
    """T4, T13, I5: the only anchor is this very request, at full rank, and private text runs over exact spans."""
    model = Tiny(scaling=1.2)
    engine = TinyEngine(model, new_tokens=6)
    method, dense = bound(KVCMAS(reference=reference, frame=frame, **EXACT), model), bound(DenseMethod(), model)  # type: ignore[arg-type]
    question = questions(1)[0]
    taught = trajectory(method, engine, question, "teach")
    again, exact = trajectory(method, engine, question, "again"), trajectory(dense, engine, question)
    for call, right in zip(again[1:], exact[1:], strict=True):
        assert isinstance(call.plan, Reuse)
        assert relative(call.ran.k, right.ran.k) < 1e-4
        assert relative(call.ran.v, right.ran.v) < 1e-4
        assert relative(call.ran.logits, right.ran.logits) < 1e-4
        assert call.ran.output_ids == right.ran.output_ids
        assert call.ran.fresh_rows[0] < len(call.hop.prompt) / 3
    assert all(isinstance(call.plan, Dense) for call in taught)


@pytest.mark.parametrize("weights", ["softmax_l1", "softmax_l2", "uniform", "nearest"])
def test_identical_prefixes_need_no_correction(weights: str) -> None:
    """T3, I4: agents that say the same before the question hold the same question, so deltas are 0 and reuse is
    dense, whatever the weights."""
    model = Tiny()
    engine = TinyEngine(model)
    alike = (Agent("a", (1, 2, 3)), Agent("b", (1, 2, 3)))
    method = bound(KVCMAS(weights=weights, **EXACT), model)  # type: ignore[arg-type]
    dense, plain = bound(DenseMethod(), model), bound(FullReuse(), model)
    for i, question in enumerate(questions(3)):
        runs = [trajectory(m, engine, question, f"t{i}", alike)[1] for m in (method, plain, dense)]
        place = runs[0].hop.prompt.placed[1]
        for run in runs[:2]:
            assert relative(run.ran.k[:, :, : place.stop], runs[2].ran.k[:, :, : place.stop]) < 1e-5
            assert relative(run.ran.v[:, :, : place.stop], runs[2].ran.v[:, :, : place.stop]) < 1e-5


def test_without_anchors_a_correction_is_full_reuse_bit_for_bit() -> None:
    """I3."""
    model = Tiny()
    engine = TinyEngine(model)
    method, plain = bound(KVCMAS(gate="always", min_anchors=0), model), bound(FullReuse(), model)
    for i, question in enumerate(questions(3)):
        for mine, theirs in zip(
            trajectory(method, engine, question, f"t{i}"), trajectory(plain, engine, question, f"t{i}"), strict=True
        ):
            assert torch.equal(mine.ran.logits, theirs.ran.logits)
            assert torch.equal(mine.ran.k, theirs.ran.k)


def test_rotation_there_and_back() -> None:
    """T1, I8, with attention scaling and across negative offsets."""
    rope = Tiny(scaling=1.3).shape().rope
    x = torch.randn(2, 2, 5, 8)
    at = torch.arange(5) + 1000
    assert relative(rope.remove(rope.apply(x, at), at), x) < 1e-5
    assert relative(rope.move(rope.move(x, 17), -23), rope.move(x, -6)) < 1e-5
    assert rope.move(x, 0) is x
    assert relative(Tiny(scaling=1.3).turn(x[0], at), rope.apply(x[0], at)) < 1e-3  # fp32 angles at 1000


def test_the_modes_of_full_reuse() -> None:
    model = Tiny()
    engine = TinyEngine(model)
    question = questions(1)[0]
    naive, rotated, isolated = (
        trajectory(bound(FullReuse(mode), model), engine, question)  # type: ignore[arg-type]
        for mode in ("naive", "rotated", "isolated")
    )
    place = rotated[1].hop.prompt.placed[1]
    source = rotated[0].ran
    origin = rotated[0].hop.prompt.placed[1]
    shift = place.start - origin.start
    assert shift == 2
    rows = slice(place.start, place.stop)
    assert torch.equal(naive[1].ran.k[:, :, rows], source.k[:, :, origin.start : origin.stop])
    moved = torch.stack(
        [model.turn(k, torch.full((len(place),), shift)) for k in source.k[:, :, origin.start : origin.stop]]
    )
    assert relative(rotated[1].ran.k[:, :, rows], moved) < 1e-5
    assert torch.equal(rotated[1].ran.v[:, :, rows], source.v[:, :, origin.start : origin.stop])
    alone = engine.encode(question)
    assert torch.equal(isolated[1].ran.v[:, :, rows], alone.v)
    assert relative(naive[1].ran.logits, rotated[1].ran.logits) > 1e-3
    assert relative(isolated[1].ran.logits, rotated[1].ran.logits) > 1e-3


def test_isolated_encodes_a_span_once_per_request() -> None:
    model = Tiny()
    engine = TinyEngine(model)
    question = questions(1)[0]
    calls = trajectory(bound(FullReuse("isolated"), model), engine, question)
    spans = [tuple(question), calls[1].hop.prompt.placed[3].segment.ids, calls[2].hop.prompt.placed[5].segment.ids]
    assert engine.encodes == spans


def test_rows_that_do_not_move_keep_their_bits() -> None:
    rows = KV(torch.randn(2, 1, 3, 8), torch.randn(2, 1, 3, 8), 40)
    keys, values = torch.empty(2, 1, 3, 8), torch.empty(2, 1, 3, 8)
    Unmoved(rows).write(keys, values, 7, Tiny().shape().rope)
    assert torch.equal(keys, rows.k)
    assert torch.equal(values, rows.v)


@pytest.mark.parametrize("name", ["dense-prefix", "rotated", "kvcmas-star"])
def test_role_prompts_come_from_an_exact_cache(name: str) -> None:
    model = Tiny()
    engine = TinyEngine(model)
    method = bound(METHODS[name](), model)
    rounds = [trajectory(method, engine, question, f"t{i}") for i, question in enumerate(questions(4))]
    last = rounds[-1][2]
    assert isinstance(last.plan, Reuse)
    kept = last.plan.rows[0]
    assert isinstance(kept, KV)
    assert kept.start == 0
    assert torch.equal(kept.k, rounds[0][2].ran.k[:, :, : len(AGENTS[2].role)])
    role = engine.encode(AGENTS[2].role)
    assert relative(kept.k, role.k) < 1e-5
    everything = sum(2 * 4 * 4 * 16 * len(agent.role) for agent in AGENTS)
    learned = {a.base.key: a.base.nbytes for pool in _pools(method) for a in pool}
    assert method.state_bytes().base == everything + sum(learned.values())


def test_a_prefix_cached_dense_run_equals_a_cold_one() -> None:
    model = Tiny()
    engine = TinyEngine(model)
    cached, cold = bound(DenseMethod(prefix_cache=True), model), bound(DenseMethod(), model)
    for i, question in enumerate(questions(3)):
        for mine, theirs in zip(
            trajectory(cached, engine, question, f"t{i}"), trajectory(cold, engine, question, f"t{i}"), strict=True
        ):
            assert mine.ran.dense
            assert isinstance(mine.plan, Reuse) == (i > 0)
            assert mine.ran.output_ids == theirs.ran.output_ids
            assert relative(mine.ran.logits, theirs.ran.logits) < 1e-5


def test_a_source_must_hold_the_tokens_of_its_span() -> None:
    model = Tiny()
    engine, method = TinyEngine(model), bound(KVCMAS(), model)
    call = trajectory(bound(DenseMethod(), model), engine, questions(1)[0])[1]
    short = call.hop.sources["question"].kv.rows(0, 5)
    hop = type(call.hop)("t", 1, "b", call.hop.prompt, {"question": Source("a", 0, short)})
    with pytest.raises(ValueError, match="holds 5 rows for 20 tokens"):
        method.plan(hop, engine)


def test_a_reference_of_other_tokens_is_noticed_at_layer_0() -> None:
    model = Tiny()
    engine, method = TinyEngine(model), bound(KVCMAS(), model)
    one, two = questions(2)
    prompt = prompt_of(AGENTS[1], tuple(one), ())
    wrong = engine.encode(two)
    call = trajectory(bound(DenseMethod(), model), engine, one)[1]
    hop = type(call.hop)("t", 1, "b", prompt, {"question": Source("a", 0, wrong)})
    with pytest.raises(ValueError, match="layer 0 keys"):
        method.observe(hop, engine.run(prompt, method.plan(hop, engine)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_caches_learn_and_correct(dtype: torch.dtype) -> None:
    """Layer 0 differs by rounding only, which is not mistaken for other tokens; the correction still gains."""
    model = Tiny()
    engine = TinyEngine(model, dtype=dtype)
    method, plain, dense = KVCMAS(gate="always"), FullReuse(), DenseMethod()
    question = questions(1)[0]
    for m in (method, plain, dense):
        m.bind(model.shape(dtype), 0)
    trajectory(method, engine, question, "teach")
    runs = [trajectory(m, engine, question, "again")[1] for m in (method, plain, dense)]
    place = runs[0].hop.prompt.placed[1]
    errors = [
        relative(run.ran.k[1:, :, place.start : place.stop], runs[2].ran.k[1:, :, place.start : place.stop])
        for run in runs[:2]
    ]
    assert errors[0] < 0.01 < errors[1]


def _pools(method: Any) -> list[Any]:
    return list(method.sharing.pools.values()) if hasattr(method, "sharing") else []
