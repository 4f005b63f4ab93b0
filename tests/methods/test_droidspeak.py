"""Layer groups on tiny models: what a group leaves alone, what it makes exact, what it costs, how it is profiled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.backends.hf import HF
from methods.base import Dense, Hop, Source
from methods.droidspeak import DroidSpeak
from methods.layer_groups import GroupProfiler, groups, pareto, thirds
from methods.profile import Grain, Trial
from methods.segment import Prompt
from tests.methods.relayed import PRODUCER, relay

CLOSE = {"rtol": 1e-3, "atol": 1e-3}


@pytest.fixture(params=["llama", "qwen2"])
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(family=request.param)
    return made


def test_the_empty_group_is_full_reuse(engine: HF) -> None:
    pair = relay(DroidSpeak(group=[]), engine)
    mine, theirs = pair.run(), pair.full_reuse()
    assert torch.equal(mine.logits, theirs.logits)
    assert mine.output_ids == theirs.output_ids
    assert mine.fresh_rows == theirs.fresh_rows


def test_all_layers_are_dense(engine: HF) -> None:  # I2
    pair = relay(DroidSpeak(group=[0, engine.shape.layers - 1], role_cache=False), engine)
    mine, dense = pair.run(), pair.dense()
    assert torch.equal(mine.logits, dense.logits)
    assert mine.output_ids == dense.output_ids


def test_all_layers_but_the_first_err(engine: HF) -> None:
    pair = relay(DroidSpeak(group=[1, engine.shape.layers - 1]), engine)
    assert not torch.allclose(pair.run().logits, pair.dense().logits, **CLOSE)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_entry_layer_keeps_its_rows_and_the_others_change(engine: HF, first: int) -> None:
    pair = relay(DroidSpeak(group=[first, 2]), engine)
    rows, mine, reuse = pair.rows(), pair.run(), pair.full_reuse()
    held, before = mine.kv(0, mine.held), reuse.kv(0, mine.prompt_tokens)
    torch.testing.assert_close(held.k[first][:, rows], before.k[first][:, rows], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(held.v[first][:, rows], before.v[first][:, rows], rtol=1e-4, atol=1e-4)
    for layer in range(first + 1, 3):
        assert not torch.allclose(held.v[layer][:, rows], before.v[layer][:, rows], rtol=1e-2, atol=1e-2)
    for layer in (*range(first), 3):
        assert torch.equal(held.k[layer][:, rows], before.k[layer][:, rows])
        assert torch.equal(held.v[layer][:, rows], before.v[layer][:, rows])


@pytest.mark.parametrize("first", [1, 2])
def test_true_states_and_true_rows_below_give_dense(engine: HF, first: int) -> None:  # I5
    group = [first, engine.shape.layers - 1]
    pair = relay(DroidSpeak(group=group), engine).from_dense(first)
    torch.testing.assert_close(pair.run().logits, pair.dense().logits, **CLOSE)


@pytest.mark.parametrize("group", [[], [0, 1], [1, 2], [2, 3]])
def test_the_same_prefix_gives_dense(engine: HF, group: list[int]) -> None:  # I4
    pair = relay(DroidSpeak(group=group), engine, same_prefix=True)
    torch.testing.assert_close(pair.run().logits, pair.dense().logits, **CLOSE)


@pytest.mark.parametrize("group", [[], [0, 1], [1, 1], [1, 3], [2, 3]])
def test_the_fresh_share_is_that_of_the_formula(engine: HF, group: list[int]) -> None:
    pair, layers = relay(DroidSpeak(group=group, role_cache=False), engine), engine.shape.layers
    total = len(pair.hop.prompt)
    size = group[1] - group[0] + 1 if group else 0
    expected = (layers * (total - pair.spans) + size * pair.spans) / (layers * total)
    assert sum(pair.run().fresh_rows) / (layers * total) == pytest.approx(expected, rel=1e-2)


def test_no_row_sees_a_later_one(engine: HF) -> None:  # I6
    pair = relay(DroidSpeak(group=[1, 2]), engine)

    def changed(name: str, source: Source) -> Source:
        if name == "output":
            source.kv.k[:, :, 5] += 3.0
            source.kv.v[:, :, 5] -= 3.0
        return source

    before = pair.run()
    edge = pair.hop.prompt.placed[3].start + 5
    after = pair.with_sources(changed).run()
    assert torch.equal(before.kv(0, edge).k, after.kv(0, edge).k)
    assert torch.equal(before.kv(0, edge).v, after.kv(0, edge).v)
    assert not torch.equal(before.logits, after.logits)


@pytest.mark.parametrize("group", [[], [0, 3], [1, 3]])
def test_a_prompt_may_end_with_a_span(engine: HF, group: list[int]) -> None:
    """Its last row runs every layer, whatever the group; entering changes nothing for it."""
    pair = relay(DroidSpeak(group=group), engine)
    prompt = Prompt(pair.hop.prompt.segments[:-1])
    run = replace(pair, hop=replace(pair.hop, prompt=prompt)).run()
    assert torch.isfinite(run.logits).all()
    inside = 0 if not group else pair.spans - 1
    fresh = len(prompt) - pair.spans + 1
    assert [n - fresh for n in run.fresh_rows] == [inside if group and layer >= group[0] else 0 for layer in range(4)]


def test_hidden_states_must_come_with_the_cache(engine: HF) -> None:
    pair = relay(DroidSpeak(group=[2, 3]), engine)
    bare = pair.with_sources(lambda _, s: Source(s.agent, s.hop, s.kv))
    with pytest.raises(ValueError, match="without hidden states of layer 2"):
        bare.plan()


def test_unchained_relays_what_the_first_holder_has(engine: HF) -> None:
    pair = relay(DroidSpeak(group=[1, 2], chained=False), engine)
    hop = Hop("t", 1, "reader", pair.hop.prompt, {"question": pair.hop.sources["output"]}, pair.hop.first)
    plan = pair.method.plan(hop, engine)
    assert plan.rows[1] is pair.hop.first["question"].kv


def test_only_the_entry_layer_is_captured_and_shipped(engine: HF) -> None:
    assert DroidSpeak(group=[]).captures == DroidSpeak(group=[0, 2]).captures == DroidSpeak().captures == frozenset()
    pair = relay(DroidSpeak(group=[2, 3]), engine)
    assert pair.method.captures == {2}
    pair.plan()
    assert pair.method.notes() == {"shipped_bytes": pair.spans * engine.shape.hidden * 4}


def test_groups_that_do_not_fit_are_refused(engine: HF) -> None:
    for group in ([1], [2, 1], [-1, 2], [0, 1, 2]):
        with pytest.raises(ValueError, match="group must be"):
            DroidSpeak(group=group)
    with pytest.raises(ValueError, match="below layer 4"):
        DroidSpeak(group=[0, 4]).bind(engine.shape, 0)
    with pytest.raises(ValueError, match="profile"):
        DroidSpeak().bind(engine.shape, 0)
    with pytest.raises(ValueError, match="pick"):
        DroidSpeak(pick="best")  # type: ignore[arg-type]


@pytest.mark.parametrize(("layers", "step"), [(4, 1), (6, 2), (7, 3), (3, 5)])
def test_groups_cover_all_edges(layers: int, step: int) -> None:
    found = groups(layers, step)
    assert len(found) == len(set(found))
    assert found[0] == ()
    assert (0, layers - 1) in found
    edges = {*range(0, layers, step), layers}
    single = sum(b - a == 1 for a in edges for b in edges)
    assert len(found) == 1 + math.comb(len(edges), 2) - single
    assert all(first in edges and last + 1 in edges and first < last for first, last in found[1:])


def test_a_group_of_one_layer_recomputes_nothing(engine: HF) -> None:
    """Why a profile leaves it out: it costs a layer and changes no row but by rounding."""
    pair = relay(DroidSpeak(group=[2, 2]), engine)
    mine, reuse = pair.run(), pair.full_reuse()
    assert sum(mine.fresh_rows) > sum(reuse.fresh_rows)
    torch.testing.assert_close(mine.logits, reuse.logits, rtol=1e-4, atol=1e-4)


def test_the_front_holds_what_nothing_beats() -> None:
    generator = torch.Generator().manual_seed(0)
    trials = [Trial(*torch.rand(2, generator=generator).tolist()) for _ in range(40)]
    trials.append(trials[3])
    front = pareto(trials)
    for i, mine in enumerate(trials):
        beaten = any(
            other.fresh_share <= mine.fresh_share
            and other.first_token_kl <= mine.first_token_kl
            and (other.fresh_share, other.first_token_kl) != (mine.fresh_share, mine.first_token_kl)
            for other in trials
        )
        assert (i in front) != beaten or (not beaten and mine in [trials[f] for f in front])
    assert [trials[i].fresh_share for i in front] == sorted(trials[i].fresh_share for i in front)


def test_the_cheap_group_has_about_a_third_of_the_layers() -> None:
    found = groups(12, 2)
    kl = {(4, 7): 0.1, (2, 5): 0.2}
    at = thirds(found, [Trial(kl.get(g, 0.5), 0.0) for g in found], 12)
    assert found[at] == (4, 7)


def test_picks_follow_from_what_was_measured(engine: HF) -> None:
    method = DroidSpeak()
    profiler = method.profiler(engine.shape, Grain(step=2, within=0.05))
    assert isinstance(profiler, GroupProfiler)
    kl = {(): 0.9, (0, 1): 0.04, (2, 3): 0.4, (0, 3): 0.0}
    pair = relay(DroidSpeak(group=[2, 3]), engine)
    order = iter(profiler.groups)
    sizes = {(): 0.2, (0, 1): 0.6, (2, 3): 0.6, (0, 3): 1.0}

    def attempt(plan: Any) -> Trial:
        group = next(order)
        return Trial(kl[group], sizes[group])

    profiler.look(pair.hop, pair.produced, attempt)
    findings = profiler.findings()
    assert findings.picks == {"quality": {"group": [0, 1]}, "cheap": {"group": [0, 1]}}
    assert [findings.points[i]["group"] for i in findings.front] == [[], [0, 1], [0, 3]]


def test_a_profile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to profile"):
        GroupProfiler(4, Grain(), lambda hop, group: Dense()).findings()
    with pytest.raises(ValueError, match="step"):
        Grain(step=0)


def test_warmup_and_first_hops_are_dense(engine: HF) -> None:
    method = DroidSpeak(group=[0, 1])
    method.bind(engine.shape, 0)
    assert method.plan(Hop("t", 0, "a", PRODUCER), engine) == Dense()
    pair = relay(method, engine)
    assert method.plan(Hop("t", 1, "a", pair.hop.prompt, pair.hop.sources, {}, warmup=True), engine) == Dense()
