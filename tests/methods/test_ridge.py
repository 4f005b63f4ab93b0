"""Ridge over whole trajectories of the tiny transformer."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny import AGENTS, Agent, Tiny, TinyEngine, questions, relative, trajectory

from methods.base import KV, Dense, Hop, Reuse, Source
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.ridge import Ridge

CONF = Path(__file__).parents[2] / "conf"
OPEN: dict[str, Any] = {"tau": math.inf, "min_requests": 0}


def bound(method: Any, model: Tiny) -> Any:
    method.bind(model.shape(), 0)
    return method


def taught(model: Tiny, count: int, **options: Any) -> Any:
    """A method that has seen ``count`` dense requests."""
    method, engine = bound(Ridge(**{"warmup": 2, **options}), model), TinyEngine(model)
    for i, question in enumerate(questions(count, seed=11)):
        trajectory(method, engine, question, f"teach{i}", warmup=True)
    return method


def test_without_data_it_rotates_when_told_to_and_is_dense_by_default() -> None:
    model = Tiny()
    engine = TinyEngine(model)
    question = questions(1)[0]
    open_, closed = bound(Ridge(**OPEN), model), bound(Ridge(), model)
    rotated, dense = bound(FullReuse(), model), bound(DenseMethod(), model)
    for mine, theirs in zip(trajectory(open_, engine, question), trajectory(rotated, engine, question), strict=True):
        assert torch.equal(mine.ran.logits, theirs.ran.logits)
    for mine, theirs in zip(trajectory(closed, engine, question), trajectory(dense, engine, question), strict=True):
        assert isinstance(mine.plan, Dense)
        assert torch.equal(mine.ran.logits, theirs.ran.logits)


def test_corrections_come_nearer_to_dense_than_rotation() -> None:
    """On requests that were not seen, and over a whole chain, in which sources are corrected ones."""
    model = Tiny()
    engine = TinyEngine(model)
    method, rotated = taught(model, 24, **OPEN), bound(FullReuse(), model)
    dense = bound(DenseMethod(), model)
    mine, plain = [], []
    for i, question in enumerate(questions(6, seed=12)):
        exact = trajectory(dense, engine, question, f"t{i}", agents=AGENTS[:2])[1]
        for method_, errors in ((method, mine), (rotated, plain)):
            call = trajectory(method_, engine, question, f"t{i}", agents=AGENTS[:2])[1]
            assert isinstance(call.plan, Reuse)
            rows = slice(call.hop.prompt.placed[1].start, call.hop.prompt.placed[1].stop)
            errors.append(relative(call.ran.v[:, :, rows], exact.ran.v[:, :, rows]))
    assert sum(mine) < 0.9 * sum(plain)


def test_layer_0_stays_what_the_source_holds() -> None:
    model = Tiny()
    engine, method = TinyEngine(model), taught(model, 12, shrink=False, **OPEN)
    dense = bound(DenseMethod(), model)
    question = questions(1)[0]
    mine, exact = (trajectory(m, engine, question, agents=AGENTS[:2])[1] for m in (method, dense))
    assert relative(mine.ran.k[0], exact.ran.k[0]) < 1e-5
    assert relative(mine.ran.v[0], exact.ran.v[0]) < 1e-5


def test_a_request_learned_without_penalty_is_corrected_exactly() -> None:
    model = Tiny(scaling=1.2)
    engine, limits = TinyEngine(model), Ridge().limits(model.layers)
    assert limits.exact is not None
    method, dense = bound(replace(Ridge(), **limits.exact), model), bound(DenseMethod(), model)
    question = questions(1)[0]
    trajectory(method, engine, question, "teach")
    for mine, exact in zip(
        trajectory(method, engine, question, "again")[1:], trajectory(dense, engine, question)[1:], strict=True
    ):
        assert isinstance(mine.plan, Reuse)
        assert relative(mine.ran.k, exact.ran.k) < 1e-3
        assert relative(mine.ran.v, exact.ran.v) < 1e-3


def test_where_the_spans_stand_changes_nothing() -> None:
    """The same de-rotated cache at other offsets, on both sides: the same delta is learned and added."""
    model = Tiny()
    engine, rope = TinyEngine(model), model.shape().rope
    method = taught(model, 12, shrink=False, **OPEN)
    question = tuple(questions(1, seed=30)[0])
    hop = trajectory(method, engine, question, agents=AGENTS[:2], finish=False)[1].hop
    source, prompt = hop.sources["question"], hop.prompt
    kv = source.kv.derotated(rope)
    written = []
    for start in (source.kv.start or 0, 57):
        at = torch.arange(start, start + len(kv))
        moved = Source(source.agent, source.hop, KV(rope.apply(kv.k, at), kv.v, start))
        plan = method.plan(Hop(hop.trajectory, 1, hop.agent, prompt, {"question": moved}), engine)
        keys, values = torch.empty_like(kv.k), torch.empty_like(kv.v)
        plan.rows[1].write(keys, values, 100 + start, rope)
        written.append(KV(keys, values, 100 + start).derotated(rope))
    assert relative(written[0].k, kv.k) > 1e-2  # something was added
    assert relative(written[1].k, written[0].k) < 1e-5
    assert relative(written[1].v, written[0].v) < 1e-6


def test_the_gate_compares_what_it_expects_with_tau() -> None:
    model = Tiny()
    engine, question = TinyEngine(model), questions(1)[0]
    expected = trajectory(taught(model, 16, **OPEN), engine, question, agents=AGENTS[:2])[1].notes["gate"]
    for tau, kind in ((1.01 * expected, Reuse), (0.99 * expected, Dense), (0.0, Dense)):
        call = trajectory(taught(model, 16, tau=tau), engine, question, agents=AGENTS[:2])[1]
        assert isinstance(call.plan, kind)
        assert call.notes["requests"] == 16
    few = trajectory(taught(model, 7, tau=1e9), engine, question, agents=AGENTS[:2])[1]
    assert few.plan == Dense(refused=True)


def test_another_role_prompt_is_another_edge() -> None:
    model = Tiny()
    engine, method = TinyEngine(model), taught(model, 9, tau=1e9)
    question = questions(1)[0]
    for reader, source in ((Agent("b", (5, 6, 7)), AGENTS[0]), (AGENTS[1], Agent("a", (1, 2, 3, 5)))):
        call = trajectory(method, engine, question, "other", agents=(source, reader))[1]
        assert isinstance(call.plan, Dense)
        assert call.notes["requests"] == 0
    assert isinstance(trajectory(method, engine, question, "same", agents=AGENTS[:2])[1].plan, Reuse)


def test_refreshed_requests_run_dense_and_teach() -> None:
    model = Tiny()
    engine, method = TinyEngine(model), taught(model, 10, tau=1e9, refresh=0.5)
    kinds = []
    for i, question in enumerate(questions(20, seed=3)):
        kinds.append(isinstance(trajectory(method, engine, question, f"r{i}", agents=AGENTS[:2])[1].plan, Dense))
    assert 4 < sum(kinds) < 16
    edges = method.snapshot().meta["edges"]
    assert {facts["seen"] for key, facts in edges.items() if ">b/" in key} == {10 + sum(kinds)}


def test_rows_of_largest_expected_error_run_fresh() -> None:
    model = Tiny()
    engine, question = TinyEngine(model), questions(1)[0]
    plain, mended = (taught(model, 12, recompute=share, **OPEN) for share in (0.0, 0.25))
    one, two = (trajectory(m, engine, question, agents=AGENTS[:2])[1] for m in (plain, mended))
    assert isinstance(one.plan, Reuse)
    assert isinstance(two.plan, Reuse)
    rows = two.plan.schedule.chosen[1]  # type: ignore[attr-defined]
    assert len(rows) == 5  # a quarter of 20
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_yaml_offers_every_field_with_its_default() -> None:
    given = OmegaConf.to_container(OmegaConf.load(CONF / "method" / "ridge.yaml"), resolve=False)
    assert isinstance(given, dict)
    assert given.pop("_target_") == "methods.ridge.Ridge"
    assert given == {f.name: f.default for f in fields(Ridge)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features must be at least 1"),
        ({"memory": 0}, "memory must be at least 1"),
        ({"caution": -1.0}, "caution must be at least 0"),
        ({"penalty": 0.0}, "penalty must be positive or null, got 0.0"),
        ({"refresh": 1.5}, "refresh must be a share of the requests"),
        ({"recompute": -0.1}, "recompute must be a share of the span tokens"),
    ],
)
def test_wrong_values_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ridge(**options)
