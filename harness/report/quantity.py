"""What a table or a figure can show of a run: a number with its unit and, where samples vary, a 95 % interval.

Intervals of means are a bootstrap over samples, whose hops belong together (1,000 draws, seed 0, central 95 %); that of
an accuracy is exact; state bytes and counts have none. The numbers themselves are those of ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from harness.records import Route
from harness.report.rows import HopLine, RowLine
from harness.report.run import Run
from harness.report.value import DRAWS, Value, ratio_of_sums

MIB = 2**20
ERROR = "‖used − dense‖ / ‖dense‖ of the {} in reused spans, mean over layers and hops, %"


@dataclass(frozen=True)
class Quantity:
    """Attributes:
    head: of a column; axis: of a figure, with the unit; meaning: where the axis does not say it.
    digits: significant ones in a table.
    floor: figures show less than this as this: below, rounding decides. share: of 100, all of which a figure shows.
    """

    name: str
    head: str
    axis: str
    of: Callable[[Run], Value | None]
    digits: int = 3
    floor: float = 0.0
    share: bool = False
    meaning: str = ""


def mean_of(run: Run, take: Callable[[HopLine], float | None], wanted: Callable[[HopLine], bool]) -> Value | None:
    """Mean over the wanted hops that have the number."""
    return ratio_of_sums([p for row in _rows(run) if (p := _sums(row, take, wanted))[1]])


def _sums(
    row: RowLine, take: Callable[[HopLine], float | None], wanted: Callable[[HopLine], bool]
) -> tuple[float, float]:
    found = [x for h in row.hops if not h.warmup and wanted(h) and (x := take(h)) is not None]
    return sum(found), float(len(found))


def _rows(run: Run) -> list[RowLine]:
    return [r for r in run.rows if r.completed and not r.warmup]


def reused(hop: HopLine) -> bool:
    return hop.route is Route.reuse and hop.shadow_ttft_s is not None


def downstream(hop: HopLine) -> bool:
    return not hop.source_hop


def _layers(errors: list[float] | None) -> float | None:
    return float(np.mean(errors)) if errors else None


def k_error(hop: HopLine) -> float | None:
    return _layers(hop.kv_error_k)


def v_error(hop: HopLine) -> float | None:
    return _layers(hop.kv_error_v)


def _accuracy(run: Run) -> Value | None:
    s = run.summary
    if s.accuracy is None or s.accuracy_ci95 is None:
        return None
    low, high = s.accuracy_ci95
    return Value(100 * s.accuracy, 100 * low, 100 * high)


def _plain(value: float | None, factor: float = 1.0) -> Value | None:
    return None if value is None else Value(factor * value)


def _state(part: str) -> Callable[[Run], Value | None]:
    def of(run: Run) -> Value | None:
        held = run.summary.state_bytes
        return None if held is None else Value(getattr(held, part) / MIB)

    return of


def _ttft(run: Run) -> Value | None:
    """The summary's median over the hops that have a source; the interval is of that median, over hops."""
    latency = run.summary.ttft_by_route_s.downstream
    if latency is None:
        return None
    times = np.asarray([h.ttft_s for h in run.counted if downstream(h)])
    if len(times) < 2:
        return Value(1e3 * latency.p50)
    draws = np.random.default_rng(0).integers(0, len(times), (DRAWS // 2, len(times)))
    low, high = np.quantile(np.median(times[draws], axis=1), (0.025, 0.975))
    return Value(1e3 * latency.p50, 1e3 * float(low), 1e3 * float(high))


def _e2e(run: Run) -> Value | None:
    latency = run.summary.e2e_s
    if latency is None:
        return None
    spread = ratio_of_sums([(r.e2e_s, 1.0) for r in _rows(run)])
    return Value(latency.mean) if spread is None else Value(latency.mean, spread.low, spread.high)


def _throughput(run: Run) -> Value | None:
    """Prompt tokens, reused ones in full, and generated ones, over the hops' time: the papers' throughput."""
    t = run.summary.throughput_tokens_s
    if t is None:
        return None
    pairs = [
        (float(sum(h.prompt_tokens + h.output_tokens for h in r.hops)), sum(h.e2e_s for h in r.hops))
        for r in _rows(run)
    ]
    spread = ratio_of_sums(pairs)
    total = t.output + t.computed + t.reused
    return Value(total) if spread is None else Value(total, spread.low, spread.high)


def _speedup(run: Run) -> Value | None:
    if run.summary.speedup is None:
        return None
    pairs = [
        (sum(h.shadow_ttft_s or 0.0 for h in r.hops if reused(h)), sum(h.ttft_s for h in r.hops if reused(h)))
        for r in _rows(run)
    ]
    spread = ratio_of_sums([p for p in pairs if p[1]])
    value = run.summary.speedup.ttft_ratio
    return Value(value) if spread is None else Value(value, spread.low, spread.high)


def _overhead(run: Run) -> Value | None:
    return None if run.summary.speedup is None else Value(100 * run.summary.speedup.correction_share)


def _waited(which: str, percentile: str, factor: float = 1.0) -> Callable[[Run], Value | None]:
    """Of a replayed trace, with its own interval over whole trajectories."""

    def of(run: Run) -> Value | None:
        spread = None if run.summary.serving is None else getattr(run.summary.serving, which)
        if spread is None:
            return None
        ends = getattr(spread, f"{percentile}_ci95")
        return Value(getattr(spread, percentile), *ends).scaled(factor)

    return of


def _goodput(run: Run) -> Value | None:
    if run.summary.serving is None:
        return None
    good = run.summary.serving.goodput
    return Value(good.share, *good.share_ci95).scaled(100)


def _fidelity(field: str, take: Callable[[HopLine], float | None], factor: float) -> Callable[[Run], Value | None]:
    def of(run: Run) -> Value | None:
        f = run.summary.fidelity
        value = None if f is None else getattr(f, field)
        if value is None:
            return None
        spread = mean_of(run, take, reused)
        ends = (None, None) if spread is None or spread.low is None or spread.high is None else (
            factor * spread.low, factor * spread.high)  # fmt: skip
        return Value(factor * value, *ends)

    return of


def _agrees(hop: HopLine) -> float | None:
    return None if hop.answer_agrees is None else float(hop.answer_agrees)


def _prefix(hop: HopLine) -> float | None:
    if hop.prefix_match is None:
        return None
    return min(1.0, hop.prefix_match / hop.output_tokens) if hop.output_tokens else 1.0


QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        Quantity("accuracy", "accuracy, %", "accuracy, %", _accuracy, share=True,
                 meaning="samples answered right, % of those that have an expected answer; a failed one is wrong, one "
                 "whose input is missing and warm-up do not count"),
        Quantity("reuse", "reuse, %", "reuse ratio, % of possible hops",
                 lambda r: _plain(r.summary.reuse_ratio, 100), share=True),
        Quantity("fresh", "fresh, %", "fresh token-layers, % of dense", lambda r: _plain(r.summary.fresh_share, 100),
                 meaning="pairs of a token and a layer that prefill computed, % of all, which dense computes"),
        Quantity("kl", "KL, nats", "first-token KL to dense, nats",
                 _fidelity("first_token_kl", lambda h: h.first_token_kl, 1.0), floor=1e-7,
                 meaning="KL(dense || used) of the first token's distribution, mean over reused hops"),
        Quantity("k_error", "K error, %", "relative K error, %", _fidelity("kv_error_k", k_error, 100),
                 meaning=ERROR.format("keys")),
        Quantity("v_error", "V error, %", "relative V error, %", _fidelity("kv_error_v", v_error, 100),
                 meaning=ERROR.format("values")),
        Quantity("agree", "same answer, %", "same answer as dense, %",
                 _fidelity("answer_agrees", _agrees, 100), share=True,
                 meaning="reused hops from which the answer of a dense run of the same prompt is extracted"),
        Quantity("prefix", "prefix, %", "common prefix with dense, % of the output",
                 _fidelity("prefix_share", _prefix, 100), share=True),
        Quantity("ttft", "TTFT, ms", "median TTFT after the first hop, ms", _ttft),
        Quantity("wait", "TTFT p50, s", "TTFT of calls with a source, p50, s", _waited("ttft_downstream_s", "p50")),
        Quantity("wait90", "TTFT p90, s", "TTFT of calls with a source, p90, s", _waited("ttft_downstream_s", "p90")),
        Quantity("trajectory", "trajectory p50, s", "arrival to last token, p50, s", _waited("trajectory_s", "p50")),
        Quantity("goodput", "goodput, %", "trajectories within the limit, %", _goodput, share=True),
        Quantity("e2e", "request, s", "end to end per request, s", _e2e),
        Quantity("throughput", "tokens/s", "prompt and output tokens per second", _throughput),
        Quantity("speedup", "speed-up", "TTFT of dense / TTFT of reuse", _speedup),
        Quantity("overhead", "correction, %", "matching and correction, % of the dense TTFT", _overhead),
        Quantity("state", "state, MiB", "kept between requests, MiB", _state("total")),
        Quantity("base", "references, MiB", "reference caches kept, MiB", _state("base")),
        Quantity("correction", "corrections, MiB", "corrections kept, MiB", _state("correction"),
                 meaning="what a method keeps between requests to correct the references by"),
        Quantity("peak", "peak, MiB", "peak memory of the process, MiB",
                 lambda r: _plain(r.summary.peak_bytes, 1 / MIB)),
    )
}  # fmt: skip


@cache
def quantity_of(run: Run, name: str) -> Value | None:
    """The quantity ``name`` of a run, computed once."""
    return QUANTITIES[name].of(run)
