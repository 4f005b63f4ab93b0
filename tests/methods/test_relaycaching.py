"""RelayCaching on tiny models: its limits, what it selects and why, what influence is, and its profile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from harness.backends import hf_attention
from harness.backends.hf import HF
from kernels.attention import attend
from methods.base import Dense, Hop, Probe, RowView, Selection, Source
from methods.layer_range import RangeProfiler, detection, spearman
from methods.profile import Trial
from methods.relaycaching import RelayCaching, deviation
from tests.methods.relayed import GREEDY, PRODUCER, QUESTION, Relay, relay, reused

CLOSE = {"rtol": 1e-3, "atol": 1e-3}
LAST = 3


@pytest.fixture(params=["llama", "qwen2"])
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(family=request.param)
    return made


def method(start: int = 1, detect: int = 2, end: int = 2, **options: Any) -> RelayCaching:
    return RelayCaching(start, detect, end, **options)


def selected(pair: Relay) -> torch.Tensor:
    """Bool over span rows: whether they ran the detection layer, as the engine was told."""
    plan = reused(pair.plan())
    seen: list[Selection] = []

    class Watched:
        def first_rows(self, view: RowView) -> torch.Tensor:
            return plan.schedule.first_rows(view)

        def probes(self, layer: int) -> bool:
            return plan.schedule.probes(layer)

        def select(self, layer: int, view: RowView, current: torch.Tensor, probe: Probe | None) -> Selection:
            seen.append(plan.schedule.select(layer, view, current, probe))
            return seen[-1]

    pair.run(replace(plan, schedule=Watched()))
    return torch.isin(pair.rows(), seen[pair.method.detect_layer].keep)


@pytest.mark.parametrize("detect", [0, 1, 3])
def test_selecting_everything_in_all_layers_is_dense(engine: HF, detect: int) -> None:  # I2
    pair = relay(method(0, detect, LAST, tau_inf=0.0, role_cache=False), engine)
    mine, dense = pair.run(), pair.dense()
    assert torch.equal(mine.logits, dense.logits)
    assert mine.fresh_rows == dense.fresh_rows
    assert pair.method.notes()["selected_share"] == 1.0


def test_selecting_nothing_is_full_reuse(engine: HF) -> None:  # I3
    pair = relay(method(1, 1, 2, tau_dev=math.inf, suffix=0), engine)
    mine, theirs = pair.run(), pair.full_reuse()
    assert torch.equal(mine.logits, theirs.logits)
    assert mine.output_ids == theirs.output_ids
    assert pair.method.notes()["selected_share"] == 0.0


@pytest.mark.parametrize("start", [0, 1])
def test_the_same_prefix_deviates_nowhere(engine: HF, start: int) -> None:  # I4
    pair = relay(method(start, 2, LAST, suffix=0), engine, same_prefix=True)
    assert not selected(pair).any()
    torch.testing.assert_close(pair.run().logits, pair.dense().logits, **CLOSE)


def test_deviating_tokens_are_those_of_the_dense_run(engine: HF) -> None:
    """From layer 0 on all rows run up to the detection layer, so that its fresh values are those of a dense run."""
    pair = relay(method(0, 2, LAST, suffix=0), engine)
    dense = pair.dense()
    expected = []
    for place in pair.hop.prompt.shared():
        assert place.span is not None
        true, held = dense.kv(place.start, place.stop).v[2], pair.hop.sources[place.span.id].kv.v[2]
        pairs = [(true[:, t].flatten(), held[:, t].flatten()) for t in range(len(place))]
        d = torch.stack([1 - a @ b / (a.norm() * b.norm()) for a, b in pairs])
        expected.append(d > 1.5 * d.mean())
    assert torch.equal(selected(pair), torch.cat(expected))
    assert 0 < selected(pair).sum() < pair.spans


def test_influence_is_the_attention_of_the_spans_last_rows(engine: HF) -> None:
    suffix, layers = 4, (1, 2)
    pair = relay(method(1, 2, 2, tau_dev=math.inf, suffix=suffix), engine)
    run, model = pair.produced, engine.forward.model
    ids = (*PRODUCER.ids, *run.output_ids[:-1])
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = model(torch.tensor([ids]), output_attentions=True).attentions
    finally:
        model.set_attn_implementation(ours)
    expected = []
    for begin, stop in ((17, 17 + len(QUESTION)), (len(PRODUCER), len(ids))):
        s = sum(maps[layer][0, :, stop - suffix : stop, begin:stop].sum(dim=(0, 1)) for layer in layers)
        assert isinstance(s, torch.Tensor)
        expected.append(s >= 1.45 * s.mean())
    assert torch.equal(selected(pair), torch.cat(expected))
    assert 0 < torch.cat(expected).sum() < pair.spans


@pytest.mark.parametrize("detect", [1, 2])
def test_layers_outside_the_range_keep_their_rows(engine: HF, detect: int) -> None:
    pair = relay(method(1, detect, 2), engine)
    chosen, rows = selected(pair), pair.rows()
    mine, reuse = pair.run(), pair.full_reuse()
    held, before = mine.kv(0, mine.prompt_tokens), reuse.kv(0, mine.prompt_tokens)
    for layer in (0, LAST):
        assert torch.equal(held.k[layer][:, rows], before.k[layer][:, rows])
        assert torch.equal(held.v[layer][:, rows], before.v[layer][:, rows])
    same = (held.v[2][:, rows] == before.v[2][:, rows]).all(dim=2).all(dim=0)
    assert torch.equal(same, ~chosen)


def test_write_back_all_takes_every_fresh_row_of_the_detection_layer(engine: HF) -> None:
    kept, everything = (relay(method(1, 2, LAST, write_back=w), engine) for w in ("kept", "all"))
    chosen, rows = selected(kept), kept.rows()
    few, many = kept.run(), everything.run()
    assert few.fresh_rows == many.fresh_rows
    reuse = kept.full_reuse().kv(0, few.prompt_tokens)
    a, b = few.kv(0, few.prompt_tokens), many.kv(0, few.prompt_tokens)
    assert torch.equal(a.v[2][:, rows[~chosen]], reuse.v[2][:, rows[~chosen]])
    assert not torch.allclose(b.v[2][:, rows[~chosen]], reuse.v[2][:, rows[~chosen]], **CLOSE)
    assert torch.equal(b.v[3][:, rows[~chosen]], reuse.v[3][:, rows[~chosen]])


@pytest.mark.parametrize(("start", "detect", "end"), [(0, 1, 3), (1, 2, 2), (1, 3, 3), (2, 2, 3), (0, 0, 1)])
def test_the_fresh_share_is_that_of_the_formula(engine: HF, start: int, detect: int, end: int) -> None:
    pair, layers = relay(method(start, detect, end, role_cache=False), engine), engine.shape.layers
    total = len(pair.hop.prompt)
    run = pair.run()
    share = pair.method.notes()["selected_share"] * pair.spans
    budget = layers * (total - pair.spans) + (detect - start) * pair.spans + (end - detect + 1) * share
    assert 0 < share < pair.spans
    assert sum(run.fresh_rows) == pytest.approx(budget, rel=1e-2)


def test_no_row_sees_a_later_one(engine: HF) -> None:  # I6, at a partial selection
    pair = relay(method(1, 2, LAST), engine)

    def changed(name: str, source: Source) -> Source:
        if name == "output":
            source.kv.k[:, :, 8:] += 3.0
            source.kv.v[2:, :, 8:] *= 1.5  # scaled: no direction changes, and so no deviation
        return source

    before, chosen = pair.run(), selected(pair)
    assert 0 < chosen.sum() < pair.spans
    edge = pair.hop.prompt.placed[3].start + 8
    changed_pair = pair.with_sources(changed)
    after = changed_pair.run()
    at = pair.rows() < edge
    if not torch.equal(selected(changed_pair)[at], chosen[at]):
        pytest.fail("the change moved the selection of earlier rows, so that this test would compare nothing")
    assert torch.equal(before.kv(0, edge).k, after.kv(0, edge).k)
    assert torch.equal(before.kv(0, edge).v, after.kv(0, edge).v)
    assert not torch.equal(before.logits, after.logits)


def test_a_bottom_right_mask_would_leak(engine: HF, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak test above can fail: with a mask that is right for trailing rows only, it does."""

    def bottom_right(q: Any, k: Any, v: Any, q_pos: Any, scale: float) -> Any:
        return attend(q, k, v, torch.arange(len(q_pos)) + k.shape[1] - len(q_pos), scale)

    monkeypatch.setattr(hf_attention, "attend", bottom_right)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_no_row_sees_a_later_one(engine)


def test_a_relayed_span_keeps_the_producers_influence(engine: HF) -> None:
    pair = relay(method(1, 2, 2, suffix=5), engine)
    run = pair.run()
    pair.method.observe(pair.hop, run)
    first, second = (pair.method._influence["t"][hop] for hop in (0, 1))
    for place in pair.hop.prompt.shared():
        assert place.span is not None
        at = pair.hop.sources[place.span.id].kv.start
        assert at is not None
        assert torch.equal(second[place.start : place.stop], first[at : at + len(place)])
    pair.method.end("t")
    assert not pair.method._influence


def test_an_output_of_one_token_has_no_influence(engine: HF) -> None:
    pair = relay(method(1, 2, 2), engine)
    short = engine.run(PRODUCER, Dense(), replace(GREEDY, max_new_tokens=1))
    pair.method.observe(Hop("u", 0, "producer", PRODUCER), short)
    scores = pair.method._influence["u"][0]
    assert len(scores) == len(PRODUCER)
    assert not scores[17 + len(QUESTION) :].any()
    label = Source("producer", 0, short.kv(len(PRODUCER) - 3, len(PRODUCER)))
    assert not pair.method._influential(Hop("u", 1, "reader", PRODUCER), label).any()


def test_options_that_do_not_fit_are_refused(engine: HF) -> None:
    with pytest.raises(ValueError, match="must not fall"):
        method(2, 1, 3)
    with pytest.raises(ValueError, match="must not fall"):
        method(-1, 1, 3)
    with pytest.raises(ValueError, match="suffix"):
        method(suffix=-1)
    with pytest.raises(ValueError, match="write_back"):
        method(write_back="some")
    with pytest.raises(ValueError, match="below 4"):
        method(1, 2, 4).bind(engine.shape, 0)
    with pytest.raises(ValueError, match="profile"):
        RelayCaching(1, 2).bind(engine.shape, 0)


def test_deviation_is_one_minus_the_cosine_over_all_heads() -> None:
    a, b = torch.randn(3, 2, 7, 5), torch.randn(3, 2, 7, 5)
    found = deviation(a, b)
    flat_a, flat_b = (x.transpose(1, 2).reshape(3, 7, 10).double() for x in (a, b))
    expected = 1 - (flat_a * flat_b).sum(-1) / (flat_a.norm(dim=-1) * flat_b.norm(dim=-1))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@given(st.integers(2, 6), st.integers(3, 12), st.integers(0, 1000))
def test_rank_correlation_equals_scipys(layers: int, tokens: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 6, (layers, tokens)).astype(float)
    found = spearman(values)
    for i in range(layers):
        for j in range(layers):
            constant = np.ptp(values[i]) == 0 or np.ptp(values[j]) == 0
            expected = 0.0 if constant else spearmanr(values[i], values[j]).statistic
            assert found[i, j] == pytest.approx(expected, abs=1e-9)


def test_the_detection_layer_predicts_deeper_ones() -> None:
    correlation = np.zeros((12, 12))
    correlation[4, 5:] = 0.9
    correlation[3, 4:] = 0.5
    correlation[2, 3:] = 1.0  # the start itself is never taken
    assert detection(correlation, 2, 10) == 4
    assert detection(correlation, 2, 4) == 3  # the first third has no other
    assert detection(correlation, 2, 2) == 2
    assert detection(correlation, 10, 11) == 11


def test_the_profile_compares_relayed_rows_with_dense_ones(engine: HF) -> None:
    pair = relay(method(1, 2, 2), engine)
    profiler = RangeProfiler(engine.shape)
    with pytest.raises(ValueError, match="nothing to profile"):
        profiler.findings()
    dense = pair.dense()
    profiler.look(pair.hop, dense, lambda plan: Trial(0.0, 0.0))
    findings = profiler.findings()
    assert [p["layer"] for p in findings.points] == [0, 1, 2, 3]
    assert findings.points[0]["cosine_v"] == pytest.approx(1.0, abs=1e-5)
    assert findings.points[0]["cosine_k"] == pytest.approx(1.0, abs=1e-5)
    cosines = [p["cosine_v"] for p in findings.points]
    low = [layer for layer, c in enumerate(cosines) if c < 0.98]
    pick = findings.picks["range"]
    assert (pick["start_layer"], pick["end_layer"]) == (low[0], low[-1])
    assert pick["start_layer"] < pick["detect_layer"] <= pick["end_layer"]
    RelayCaching(**pick).bind(engine.shape, 0)
    same = relay(method(1, 2, 2), engine, same_prefix=True)
    exact = RangeProfiler(engine.shape)
    exact.look(same.hop, same.dense(), lambda plan: Trial(0.0, 0.0))
    pick = exact.findings().picks["range"]
    assert pick["start_layer"] == pick["detect_layer"] == pick["end_layer"]
