"""Selections and shifts on probes made by hand: what is chosen, what is added, and what may not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from methods.agentkvshift import AgentKVShift
from methods.base import KV, Hop, Probe, RowSchedule, RowView, Selection, Source
from methods.cacheblend import CacheBlend
from methods.epic import Epic
from methods.oracle_tokens import OracleTokens
from methods.random_tokens import RandomTokens
from methods.scores import suffix
from methods.segment import Private, Prompt, Shared, Span
from tests.methods.tiny import Tiny, TinyEngine

CONF = Path(__file__).resolve().parents[2] / "conf" / "method"
KINDS = {
    "cacheblend": CacheBlend,
    "epic": Epic,
    "agentkvshift": AgentKVShift,
    "random_tokens": RandomTokens,
    "oracle_tokens": OracleTokens,
}
MODEL = Tiny(layers=6, scaling=1.3)
ROPE = MODEL.shape().rope
A, B = Span("question", tuple(range(12)), "user"), Span("output:x", tuple(range(20, 27)), "x")


def prompt(lead: int = 5, tail: int = 4) -> Prompt:
    """role . A . glue . B . tail; A and B are segments 1 and 3."""
    closing = (Private((9,) * tail),) if tail else ()
    return Prompt((Private((7,) * lead), Shared(A), Private((8, 8, 8)), Shared(B), *closing))


def hop(at: Prompt, name: str = "t0", index: int = 1) -> Hop:
    kv = {s.id: Source("x", 0, KV(*torch.zeros(2, 6, MODEL.heads, len(s), MODEL.dim), 0)) for s in (A, B)}
    return Hop(name, index, "reader", at, kv)


def view(at: Prompt) -> RowView:
    reused = {p.index: torch.arange(p.start, p.stop) for p in at.shared()}
    covered = torch.zeros(len(at), dtype=torch.bool)
    covered[torch.cat(list(reused.values()))] = True
    covered[-1] = False
    return RowView((~covered).nonzero()[:, 0], reused, len(at))


def bound(method: Any, seed: int = 3) -> Any:
    method.bind(MODEL.shape(), seed)
    return method


def schedule(method: Any, at: Prompt, **which: Any) -> RowSchedule:
    plan = bound(method).plan(hop(at, **which), TinyEngine(MODEL))
    made: RowSchedule = plan.schedule
    return made


def probe(rows: Tensor, layer: int, seed: int = 0, lead: int = 5, received: Tensor | None = None) -> Probe:
    """Fresh and reused rows that depend on each row's place after ``lead``, de-rotated; then rotated to the rows."""
    draw = torch.Generator().manual_seed(100 * seed + layer)
    bare = torch.randn(4, MODEL.heads, 200, MODEL.dim, generator=draw)[:, :, (rows - lead) % 200]
    keys = [ROPE.apply(bare[i], rows) for i in (0, 1)]
    mass = torch.rand(200, generator=draw) if received is None else received
    return Probe(layer, rows, keys[0], bare[2], keys[1], bare[3], lambda queries: mass)


def walk(made: RowSchedule, at: Prompt, **how: Any) -> list[tuple[Tensor, Selection]]:
    """Rows and selection per layer, as an engine would go through them."""
    seen = view(at)
    current, out = made.first_rows(seen), []
    for layer in range(6):
        shown = probe(current, layer, **how) if made.probes(layer) else None
        chosen = made.select(layer, seen, current, shown)
        current = torch.cat([chosen.keep, seen.fresh]).unique()
        out.append((current, chosen))
    return out


def best(scores: np.ndarray[Any, Any], rows: list[int], count: int) -> set[int]:
    return {row for _, row in sorted((-score, row) for score, row in zip(scores.tolist(), rows, strict=True))[:count]}


@pytest.mark.parametrize("score", ["v", "k", "kv"])
@pytest.mark.parametrize("over", ["union", "span"])
def test_the_rows_that_deviate_most_are_kept(score: Any, over: Any) -> None:
    at = prompt()
    made, seen = schedule(CacheBlend(ratio=0.3, score=score, ratio_over=over), at), view(at)
    shown = probe(torch.arange(len(at)), 1)
    spans = [list(range(5, 17)), list(range(20, 27))]
    expected: set[int] = set(seen.fresh.tolist())
    for rows in [[*spans[0], *spans[1]]] if over == "union" else spans:
        distance = np.zeros(len(rows))
        for fresh, reused in [(shown.fresh_v, shown.reused_v)] * ("v" in score) + [(shown.fresh_k, shown.reused_k)] * (
            "k" in score
        ):
            distance += np.square(fresh[:, rows].numpy() - reused[:, rows].numpy()).sum((0, 2))
        expected |= best(distance, rows, round(0.3 * len(rows)))
    kept = set(made.select(1, seen, shown.rows, shown).keep.tolist())
    assert kept == expected
    assert len(kept) == len(seen.fresh) + (6 if over == "union" else 4 + 2)


def test_scores_by_attention() -> None:
    at = prompt()
    mass = torch.zeros(len(at))
    mass[[6, 9, 22]] = torch.tensor([3.0, 2.0, 1.0])
    mass[:5] = 50.0  # the role prompt gets most attention, and nothing there can be chosen
    shown = probe(torch.arange(len(at)), 1, received=mass)
    for score, expected in (("query_attn", {6, 9, 22}), ("weighted", {6, 9, 22})):
        made = schedule(CacheBlend(ratio=3 / 19, score=score), at)  # type: ignore[arg-type]
        kept = made.select(1, view(at), shown.rows, shown).keep
        assert set(kept.tolist()) - set(view(at).fresh.tolist()) == expected
    flat = replace(shown, reused_v=shown.fresh_v.clone(), received=lambda rows: torch.ones(len(at)))
    flat.reused_v[:, 25] += 1.0
    made = schedule(CacheBlend(ratio=1 / 19, score="weighted"), at)
    assert 25 in made.select(1, view(at), flat.rows, flat).keep.tolist()


def test_the_suffix_asks() -> None:
    assert suffix(view(prompt())).tolist() == [27, 28, 29, 30]
    assert suffix(view(prompt(tail=0))).tolist() == [26]


def test_equal_scores_go_by_index() -> None:
    at = prompt()
    shown = probe(torch.arange(len(at)), 1)
    same = replace(shown, reused_v=shown.fresh_v)
    kept = schedule(CacheBlend(ratio=0.2), at).select(1, view(at), same.rows, same).keep
    assert set(kept.tolist()) - set(view(at).fresh.tolist()) == {5, 6, 7, 8}


@settings(max_examples=40, deadline=None)
@given(
    ratio=st.floats(0, 1),
    lead=st.integers(1, 9),
    tail=st.integers(0, 5),
    kind=st.sampled_from(["v", "query_attn", "span", "random", "shift", "late", "epic"]),
    filtering=st.sampled_from(["single", "gradual"]),
)
def test_rows_are_nested_and_fresh_ones_survive(ratio: float, lead: int, tail: int, kind: str, filtering: Any) -> None:
    methods: Mapping[str, Any] = {  # I9
        "v": CacheBlend(ratio=ratio, schedule=filtering),
        "query_attn": CacheBlend(ratio=ratio, schedule=filtering, score="query_attn", write_back="kept"),
        "span": CacheBlend(ratio=ratio, schedule=filtering, ratio_over="span"),
        "random": RandomTokens(ratio=ratio, schedule=filtering),
        "shift": AgentKVShift(ratio=ratio),
        "late": CacheBlend(ratio=ratio, schedule=filtering, check_layer=5),
        "epic": Epic(k=int(20 * ratio), first_span=True),
    }
    at = prompt(lead, tail)
    passed, seen = walk(schedule(methods[kind], at), at), view(at)
    before = torch.arange(len(at))
    for rows, chosen in passed:
        assert torch.isin(rows, before).all()
        assert torch.isin(seen.fresh, rows).all()
        assert len(at) - 1 in rows
        assert torch.equal(chosen.keep, chosen.keep.unique())
        before = rows


@pytest.mark.parametrize("ratio", [0.1, 0.15, 0.5, 0.8, 0.95])
def test_gradual_filtering_keeps_the_ratio_on_average(ratio: float) -> None:
    at = prompt()
    passed = walk(schedule(CacheBlend(ratio=ratio, schedule="gradual"), at), at)
    counts = [len(rows) - 12 for rows, _ in passed[1:]]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) / len(counts) == pytest.approx(ratio * 19, abs=0.5)
    assert counts[0] == int(min(1.5 * ratio, 1.0) * 19 + 0.5)
    assert counts[-1] == int(max(0.5 * ratio, 2 * ratio - 1) * 19 + 0.5)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_single_and_gradual_agree_at_both_ends(ratio: float) -> None:
    at = prompt()
    single, gradual = (
        walk(schedule(CacheBlend(ratio=ratio, schedule=filtering), at), at)  # type: ignore[arg-type]
        for filtering in ("single", "gradual")
    )
    assert [rows.tolist() for rows, _ in single] == [rows.tolist() for rows, _ in gradual]


@pytest.mark.parametrize(
    "method",
    [CacheBlend(0.3, score="kv"), CacheBlend(0.3, schedule="gradual", score="k"), AgentKVShift(0.3, damp="deviation")],
    ids=["single", "gradual", "shift"],
)
def test_choices_do_not_depend_on_the_absolute_start(method: Any) -> None:  # I7
    near, far = prompt(5), prompt(46)
    here, there = walk(schedule(method, near), near), walk(schedule(method, far), far, lead=46)
    for (rows, chosen), (other_rows, other) in zip(here, there, strict=True):
        assert (other_rows[other_rows >= 46] - 41).tolist() == rows[rows >= 5].tolist()
        if chosen.shift is not None:
            assert other.shift is not None
            torch.testing.assert_close(
                ROPE.remove(chosen.shift.keys, chosen.shift.rows), ROPE.remove(other.shift.keys, other.shift.rows)
            )
            torch.testing.assert_close(chosen.shift.values, other.shift.values)


@pytest.mark.parametrize("damp", ["none", "deviation"])
def test_equal_residuals_are_shifted_away(damp: Any) -> None:
    """Every row is off by the same de-rotated keys and values: the shift restores the fresh ones of all rows."""
    at = prompt()
    made, seen = schedule(AgentKVShift(0.2, damp=damp), at), view(at)
    current = made.first_rows(seen)
    draw = torch.Generator().manual_seed(8)
    for layer in range(1, 6):
        fresh = probe(torch.arange(len(at)), layer)
        off = torch.randn(2, MODEL.heads, 1, MODEL.dim, generator=draw).expand(-1, -1, len(at), -1)
        every = replace(
            fresh,
            reused_k=fresh.fresh_k - ROPE.apply(off[0], fresh.rows),
            reused_v=fresh.fresh_v - off[1],
        )
        shown = Probe(layer, current, *(x[:, current] for x in (every.fresh_k, every.fresh_v)),
                      *(x[:, current] for x in (every.reused_k, every.reused_v)))  # fmt: skip
        chosen = made.select(layer, seen, current, shown)
        assert chosen.shift is not None
        rows = chosen.shift.rows
        assert len(rows) == 19 - 3 - 2
        torch.testing.assert_close(
            every.reused_k[:, rows] + chosen.shift.keys, fresh.fresh_k[:, rows], atol=2e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            every.reused_v[:, rows] + chosen.shift.values, fresh.fresh_v[:, rows], atol=2e-5, rtol=1e-4
        )
        current = chosen.keep


def test_damping_follows_each_rows_own_deviation() -> None:
    at = prompt()
    plain, damped = (
        walk(schedule(AgentKVShift(0.2, damp=damp), at), at)  # type: ignore[arg-type]
        for damp in ("none", "deviation")
    )
    shown = probe(torch.arange(len(at)), 1)
    size = (shown.fresh_v - shown.reused_v).square().sum((0, 2)).sqrt()
    kept = plain[1][0]
    probes = kept[(kept >= 5) & (kept < 17)]
    for layer in (1, 4):
        one, other = plain[layer][1].shift, damped[layer][1].shift
        assert one is not None
        assert other is not None
        first = one.rows < 17
        factor = (size[one.rows[first]] / size[probes].mean()).clamp_max(1.0)
        torch.testing.assert_close(other.values[:, first], one.values[:, first] * factor[:, None])
        assert float(factor.min()) < 0.95


def test_random_rows_depend_on_seed_request_and_hop_only() -> None:
    at = prompt()

    def rows(seed: int = 3, name: str = "t0", index: int = 1, lead: int = 0) -> list[int]:
        method = bound(RandomTokens(0.4), seed)
        for other in range(lead):
            method.plan(hop(at, f"other{other}"), TinyEngine(MODEL))
        made = method.plan(hop(at, name, index), TinyEngine(MODEL)).schedule
        return list(walk(made, at)[-1][0].tolist())

    assert rows() == rows() == rows(lead=3)
    others = [rows(seed=4), rows(name="t1"), rows(index=2)]
    assert all(len(other) == len(rows()) and other != rows() for other in others)


def test_random_rows_are_evenly_spread() -> None:
    at, count = prompt(), np.zeros(31)
    for request in range(300):
        count[walk(schedule(RandomTokens(0.4), at, name=f"t{request}"), at)[-1][0].numpy()] += 1
    spans = np.r_[count[5:17], count[20:27]]
    assert np.abs(spans / 300 - 8 / 19).max() < 5 * (8 / 19 * 11 / 19 / 300) ** 0.5


def test_epic_runs_the_heads_of_all_spans_but_the_first() -> None:
    at = prompt()
    assert set(walk(schedule(Epic(k=4), at), at)[3][0].tolist()) == {
        *range(5),
        17,
        18,
        19,
        *range(20, 24),
        *range(27, 31),
    }
    both = set(walk(schedule(Epic(k=4, first_span=True), at), at)[3][0].tolist())
    assert both == {*range(9), 17, 18, 19, *range(20, 24), *range(27, 31)}


@pytest.mark.parametrize("name", KINDS)
def test_yaml_offers_every_field_with_its_default(name: str) -> None:
    given_ = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    assert isinstance(given_, dict)
    kind = KINDS[name]
    assert given_.pop("_target_") == f"{kind.__module__}.{kind.__qualname__}"
    assert given_ == {f.name: f.default for f in fields(kind) if f.init}
    assert given_["fidelity"] in ("code", "paper", "abstract", "control")


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (CacheBlend, {"ratio": 1.2}, "ratio"),
        (CacheBlend, {"score": "q"}, "score"),
        (CacheBlend, {"schedule": "twice"}, "schedule"),
        (CacheBlend, {"write_back": "none"}, "write_back"),
        (CacheBlend, {"ratio_over": "prompt"}, "ratio_over"),
        (RandomTokens, {"source": "random"}, "source"),
        (OracleTokens, {"score": "query_attn"}, "score"),
        (OracleTokens, {"check_layer": 0}, "check_layer"),
        (AgentKVShift, {"ratio": -0.1}, "ratio"),
        (AgentKVShift, {"damp": "half"}, "damp"),
        (AgentKVShift, {"check_layer": 0}, "check_layer"),
        (Epic, {"k": -1}, "k"),
    ],
)
def test_wrong_options_are_named(kind: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(**options)


@pytest.mark.parametrize("kind", [CacheBlend, AgentKVShift])
def test_a_check_layer_beyond_the_model_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="6 layers"):
        bound(kind(check_layer=6))


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_method_must_meet_a_model_first(kind: Any) -> None:
    with pytest.raises(ValueError, match="bind"):
        kind().plan(hop(prompt()), TinyEngine(MODEL))
