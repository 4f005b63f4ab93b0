"""Metrics against their definitions, scipy's interval and numpy's percentiles."""

from __future__ import annotations

import dataclasses
import math
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from harness import metrics
from harness.records import HopRecord, Phases, Route, Row, StateSize, Status
from harness.summarise import Heading, summarise
from harness.summary import Summary

LAYERS = 4
HEADING = Heading("gsm8k", "kvcmas", "tiny", "hf", LAYERS, "python -m harness method=kvcmas")


def hop(index: int, route: str = "reuse", ttft: float = 1.0, **more: Any) -> HopRecord:
    given_ = {"prompt_tokens": 10, "shared_tokens": 8, "output_tokens": 5, "e2e_s": ttft + 1, **more}
    given_.setdefault("fresh_token_layers", 2 * LAYERS if route == "reuse" else 10 * LAYERS)
    return HopRecord(agent=f"a{index}", index=index, route=Route(route), ttft_s=ttft, **given_)


def row(number: int, *hops: HopRecord, status: str = "ok", correct: bool = False, **more: Any) -> Row:
    more = {"target": "1", **more}
    return Row(sample_id=str(number), status=Status(status), prediction="1", correct=correct, hops=list(hops), **more)


def shadow(
    k: list[float], v: list[float], kl: float = 0.0, match: int = 5, agrees: bool | None = True
) -> dict[str, Any]:
    return {
        "kv_error_k": k,
        "kv_error_v": v,
        "first_token_kl": kl,
        "prefix_match": match,
        "answer_agrees": agrees,
        "shadow_ttft_s": 8.0,
    }


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_is_the_exact_one(counts: tuple[int, int]) -> None:
    correct, n = counts
    expected = binomtest(correct, n).proportion_ci(confidence_level=0.95, method="exact")
    assert metrics.interval(correct, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 6), st.just(6)), min_size=1, max_size=5))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(counts: list[tuple[int, int]]) -> None:
    rows = [row(s, repeat=n, correct=n < c) for s, (c, repeats) in enumerate(counts) for n in range(repeats)]
    found = metrics.pass_at_k(rows)
    assert found is not None
    assert list(found) == ["1", "2", "5"]
    for k, value in found.items():
        draws = list(combinations(range(6), int(k)))
        expected = [sum(any(n < c for n in draw) for draw in draws) / len(draws) for c, _ in counts]
        assert value == pytest.approx(sum(expected) / len(expected))
    assert found["1"] == pytest.approx(metrics.accuracy(rows))


def test_pass_at_k_is_for_programs_only() -> None:
    assert metrics.pass_at_k([row(0, status="missing")]) is None
    assert summarise([row(0, correct=True)], HEADING).pass_at_k is None
    programs = dataclasses.replace(HEADING, programs=True)
    assert summarise([row(0, correct=True)], programs).pass_at_k == {"1": 1.0}
    assert summarise([row(0, status="invalid")], programs).pass_at_k == {"1": 0.0}


def test_interval_refuses_nonsense() -> None:
    for correct, n in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError):
            metrics.interval(correct, n)


def test_accuracy_counts_every_failure_as_wrong_and_missing_not_at_all() -> None:
    rows = [row(i, status=s, correct=s == "ok") for i, s in enumerate(Status)]
    assert metrics.accuracy(rows) == pytest.approx(1 / 5)
    assert metrics.accuracy_ci95(rows) == metrics.interval(1, 5)
    only_missing = [row(0, status="missing")]
    assert metrics.accuracy(only_missing) is None
    assert metrics.accuracy_ci95(only_missing) is None


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50))
def test_percentiles_are_numpys_linear_ones(durations: list[float]) -> None:
    found = metrics.latency(durations)
    assert found is not None
    assert found.n == len(durations)
    assert found.mean == pytest.approx(sum(durations) / len(durations))
    ordered = sorted(durations)
    for p, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        rank = p * (len(ordered) - 1) / 100
        below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
        assert value == pytest.approx(below + (above - below) * (rank - math.floor(rank)))
        assert value == float(np.percentile(durations, p))


def test_reuse_ratio_leaves_source_hops_out_and_counts_fallback_as_no_reuse() -> None:
    hops = [hop(0, "dense", source_hop=True), hop(1), hop(2), hop(3, "fallback")]
    assert metrics.reuse_ratio(hops) == pytest.approx(2 / 3)
    assert metrics.reuse_ratio(hops[:1]) is None


def test_fresh_share_weights_by_tokens() -> None:
    hops = [hop(0, "dense", prompt_tokens=30, fresh_token_layers=30 * LAYERS), hop(1, prompt_tokens=10)]
    assert metrics.fresh_share(hops, LAYERS) == pytest.approx((30 + 2) / 40)
    assert metrics.fresh_share([hop(0, "dense")], LAYERS) == 1.0


def test_throughput_keeps_reused_and_computed_tokens_apart() -> None:
    hops = [hop(0, "dense", ttft=1.0), hop(1, ttft=2.0)]  # 2 + 3 seconds; 10 + 2 computed, 8 reused, 10 generated
    found = metrics.throughput(hops, LAYERS)
    assert found is not None
    assert (found.output, found.computed, found.reused) == pytest.approx((10 / 5, 12 / 5, 8 / 5))


def test_ttft_by_hop_and_by_route() -> None:
    rows = [
        row(0, hop(0, "dense", 4.0, source_hop=True), hop(1, "reuse", 1.0, **shadow([0.1], [0.1]))),
        row(1, hop(0, "dense", 6.0, source_hop=True), hop(1, "fallback", 5.0)),
    ]
    summary = summarise(rows, HEADING)
    first, second = summary.ttft_by_hop_s
    assert (first.index, first.all.mean, first.dense and first.dense.mean, first.reuse) == (0, 5.0, 5.0, None)
    assert (second.all.n, second.reuse and second.reuse.mean) == (2, 1.0)
    assert second.fallback is not None
    assert second.fallback.mean == 5.0
    routes = summary.ttft_by_route_s
    assert routes.dense is None
    assert routes.source is not None
    assert routes.source.mean == 5.0
    assert routes.downstream is not None
    assert routes.downstream.mean == 3.0
    assert routes.shadow is not None
    assert routes.shadow.mean == 8.0


def test_warmup_hops_and_unfinished_rows_have_no_speed() -> None:
    counted = row(0, hop(0, "dense", 1.0, source_hop=True), hop(1), e2e_s=9.0)
    warmup = row(1, hop(0, "dense", 99.0, warmup=True, phases=Phases(learn_s=2.0)), e2e_s=99.0)
    broken = [
        row(2 + i, hop(0, "dense", 99.0), status=s, e2e_s=99.0) for i, s in enumerate(("oom", "timeout", "error"))
    ]
    alone, both = summarise([counted], HEADING), summarise([counted, warmup, *broken], HEADING)
    speeds = (
        "reuse_ratio",
        "fresh_share",
        "ttft_s",
        "ttft_by_hop_s",
        "ttft_by_route_s",
        "e2e_s",
        "throughput_tokens_s",
    )
    for name in (*speeds, "fidelity", "phases_s"):
        assert getattr(alone, name) == getattr(both, name), name
    assert both.hops.warmup == 1
    assert both.hops.dense == both.hops.source == 1
    assert both.learn_s == 2.0
    assert both.statuses[Status.oom] == 1
    assert sum(both.statuses.values()) == both.n == 5


def test_fidelity_is_of_reuse_hops_only() -> None:
    reused = [
        hop(1, **shadow([0.1, 0.3], [0.2, 0.4], kl=0.5, match=5)),
        hop(2, **shadow([0.3, 0.5], [0.4, 0.8], kl=1.5, match=0, agrees=False)),
        hop(3, **shadow([], [], match=5, agrees=None)),
    ]
    exact = [hop(0, "dense", **shadow([0.0, 0.0], [0.0, 0.0])), hop(1, "fallback", **shadow([0.0, 0.0], [0.0, 0.0]))]
    found = metrics.fidelity([*reused, *exact, hop(1)])
    assert found is not None
    assert found.n == 3
    assert found.kv_error_k_by_layer == pytest.approx([0.2, 0.4])
    assert found.kv_error_v_by_layer == pytest.approx([0.3, 0.6])
    assert (found.kv_error_k, found.kv_error_v) == pytest.approx((0.3, 0.45))
    assert found.first_token_kl == pytest.approx(2.0 / 3)
    assert found.prefix_match == pytest.approx(10 / 3)
    assert found.prefix_share == pytest.approx(2 / 3)
    assert found.answer_agrees == pytest.approx(1 / 2)
    assert metrics.fidelity(exact) is None


def test_fidelity_refuses_rows_of_two_models() -> None:
    with pytest.raises(ValueError, match="layers"):
        metrics.fidelity([hop(1, **shadow([0.1], [0.1])), hop(2, **shadow([0.1, 0.1], [0.1, 0.1]))])


def test_state_is_the_last_known_and_peak_the_largest() -> None:
    rows = [
        row(0, state_bytes=StateSize.of(1, 1), peak_bytes=50),
        row(1, state_bytes=StateSize.of(3, 4), peak_bytes=90),
        row(2, status="error", peak_bytes=70),
    ]
    summary = summarise(rows, HEADING)
    assert summary.state_bytes == StateSize(3, 4, 7)
    assert summary.peak_bytes == 90


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(0, status="missing")],
        [row(0, status="error")],
        [row(0, hop(0, "dense", ttft=0.0, e2e_s=0.0, warmup=True))],
    ],
    ids=["none", "missing", "error", "warmup"],
)
def test_empty_inputs_give_null_never_zero_or_nan(rows: list[Row]) -> None:
    text = msgspec.json.encode(summarise(rows, HEADING))
    assert b"NaN" not in text
    summary = msgspec.json.decode(text, type=Summary)
    for name in ("reuse_ratio", "fresh_share", "ttft_s", "e2e_s", "throughput_tokens_s", "fidelity", "peak_bytes"):
        assert getattr(summary, name) is None, name
    assert summary.ttft_by_hop_s == []
    assert (summary.accuracy is None) == (not metrics.scored(rows))


def test_the_summary_is_a_pure_fold_and_survives_json() -> None:
    rows = [row(i, hop(0, "dense", 0.1 * i, source_hop=True), hop(1), correct=i % 2 == 0) for i in range(7)]
    summary = summarise(rows, HEADING)
    assert summary == summarise(tuple(rows), dataclasses.replace(HEADING))
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


def test_a_task_without_answers_has_no_accuracy() -> None:
    rows = [row(i, target=None) for i in range(3)]
    assert metrics.accuracy(rows) is None
    assert metrics.accuracy_ci95(rows) is None


def test_speedup_is_a_ratio_of_means_over_shadowed_reuse_hops() -> None:
    def reuse(ttft_s: float, dense_s: float | None, match_s: float) -> HopRecord:
        more = shadow([0.1], [0.1]) if dense_s is not None else {}
        more |= {"shadow_ttft_s": dense_s, "phases": Phases(match_s=match_s, assemble_s=0.01, prefill_s=0.1)}
        return hop(1, "reuse", ttft_s, **more)

    found = metrics.speedup([reuse(0.5, 2.0, 0.1), reuse(1.5, 6.0, 0.3), reuse(9.0, None, 1.0), hop(0, "dense")])
    assert found is not None
    assert found.ttft_ratio == pytest.approx(8.0 / 2.0)
    assert found.correction_share == pytest.approx((0.1 + 0.3 + 0.02) / 8.0)
    assert found.n == 2
    assert metrics.speedup([hop(0, "dense")]) is None
