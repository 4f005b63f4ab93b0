"""Every metric of a replayed trace, defined once, as a fold over rows and repeats.

Only trajectories that ran to their end have latencies. Intervals resample trajectories: all repeats of one stay
together, since they ran the same prompts at the same moments of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from harness.records import HopRecord, Route, Row, Timing
from harness.serving import Goodput, Repeat, Serving, Spread, TokenRates

PERCENTILES = (10, 50, 90, 99)
RESAMPLES, SEED, LEVEL = 1000, 0, 0.95

Values = Callable[[Row], Sequence[float]]


def serving(
    rows: Sequence[Row],
    repeats: Sequence[Repeat],
    *,
    layers: int,
    slo_ttft_s: float,
    trace: str,
    engine: str,
    warmup_trajectories: int,
    simulated: bool,
) -> Serving:
    """All of it, a pure function of a run's rows and what the service said of itself; fields as in
    :class:`harness.serving.Serving`."""
    ended = [row for row in rows if row.completed]
    groups = grouped(ended)
    busy = [r.engine.busy_share for r in repeats if r.engine.busy_share is not None]
    return Serving(
        simulated=simulated,
        engine=engine,
        trace=trace,
        trajectories=len(rows),
        failed=len(rows) - len(ended),
        warmup_trajectories=warmup_trajectories,
        offered_calls_s=offered(ended),
        ttft_s=spread(groups, lambda row: [h.ttft_s for h in row.hops]),
        ttft_first_s=spread(groups, lambda row: [h.ttft_s for h in row.hops if not downstream(h)]),
        ttft_downstream_s=spread(groups, lambda row: [h.ttft_s for h in row.hops if downstream(h)]),
        ttft_reuse_s=spread(groups, lambda row: [h.ttft_s for h in row.hops if h.route is Route.reuse]),
        ttft_trajectory_s=spread(groups, lambda row: [float(np.mean([h.ttft_s for h in row.hops]))]),
        queued_s=spread(groups, lambda row: [t.started_s - t.dispatched_s for t in _timings(row)]),
        late_s=spread(groups, lambda row: [t.dispatched_s - t.due_s for t in _timings(row)]),
        trajectory_s=spread(groups, lambda row: [row.e2e_s]),
        goodput=goodput(rows, slo_ttft_s),
        tokens_s=rates(ended, layers),
        busy_share=float(np.mean(busy)) if busy else None,
        drain_s=float(np.mean([_span(p)[1] - _span(p)[0] for p in _passes(ended)])) if ended else 0.0,
        wrong_lengths=sum(r.wrong_lengths for r in repeats),
        repeats=list(repeats),
    )


def downstream(hop: HopRecord) -> bool:
    """Whether an earlier hop held something that this one reads."""
    return hop.index > 0 and not hop.source_hop


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by trajectory, the repeats of one together."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sample_id, []).append(row)
    return list(found.values())


def spread(groups: Sequence[Sequence[Row]], values: Values) -> Spread | None:
    """Of what ``values`` says of each row, see :class:`harness.serving.Spread`; None if it says nothing."""
    parts = [np.array(list(chain.from_iterable(values(row) for row in group)), dtype=np.float64) for group in groups]
    parts = [part for part in parts if len(part)]
    if not parts:
        return None
    whole = np.concatenate(parts)
    p10, p50, p90, p99 = (float(p) for p in np.percentile(whole, PERCENTILES, method="linear"))
    low, high = np.percentile(_resampled(parts), _tails(), axis=0)
    mean, median, ninety = ((float(a), float(b)) for a, b in zip(low, high, strict=True))
    return Spread(
        n=len(whole), mean=float(whole.mean()), p10=p10, p50=p50, p90=p90, p99=p99,
        mean_ci95=mean, p50_ci95=median, p90_ci95=ninety,
    )  # fmt: skip


def _resampled(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean, median and 90th percentile of every resample ``[RESAMPLES, 3]``."""
    random, out = np.random.default_rng(SEED), np.empty((RESAMPLES, 3))
    for n in range(RESAMPLES):
        drawn = np.concatenate([parts[i] for i in random.integers(len(parts), size=len(parts))])
        out[n] = drawn.mean(), *np.percentile(drawn, (50, 90), method="linear")
    return out


def _tails() -> tuple[float, float]:
    return 50 * (1 - LEVEL), 50 * (1 + LEVEL)


def goodput(rows: Sequence[Row], slo_ttft_s: float) -> Goodput:
    """See :class:`harness.serving.Goodput`."""
    good = [[float(_good(row, slo_ttft_s)) for row in group] for group in grouped(rows)]
    means = np.array([np.mean(g) for g in good])
    random = np.random.default_rng(SEED)
    drawn = means[random.integers(len(means), size=(RESAMPLES, len(means)))].mean(axis=1)
    low, high = np.percentile(drawn, _tails())
    seconds = sum(_wall_s(p) for p in _passes([row for row in rows if row.completed]))
    count = sum(map(sum, good))
    return Goodput(
        slo_ttft_s=slo_ttft_s,
        share=float(count / sum(map(len, good))),
        share_ci95=(float(low), float(high)),
        trajectories_s=count / seconds if seconds > 0 else 0.0,
    )


def _good(row: Row, slo_ttft_s: float) -> bool:
    return row.completed and all(h.ttft_s <= slo_ttft_s for h in row.hops)


def rates(rows: Sequence[Row], layers: int) -> TokenRates | None:
    """See :class:`harness.serving.TokenRates`; repeats add up in tokens and in time."""
    seconds = sum(_wall_s(p) for p in _passes(rows))
    if seconds <= 0:
        return None
    hops = [h for row in rows for h in row.hops]
    computed = sum(h.fresh_token_layers for h in hops) / layers
    return TokenRates(
        computed=computed / seconds,
        reused=(sum(h.prompt_tokens for h in hops) - computed) / seconds,
        output=sum(h.output_tokens for h in hops) / seconds,
        calls=len(hops) / seconds,
    )


def offered(rows: Sequence[Row]) -> float | None:
    """Calls per second as they arrive: (trajectories - 1) x calls in one / time from first to last arrival."""
    found = [
        (len(arrivals) - 1) * sum(len(row.hops) for row in p) / len(p) / (max(arrivals) - min(arrivals))
        for p in _passes(rows)
        if max(arrivals := [_arrival(row) for row in p]) > min(arrivals)
    ]
    return float(np.mean(found)) if found else None


def _passes(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.repeat == repeat] for repeat in sorted({row.repeat for row in rows})]


def _timings(row: Row) -> list[Timing]:
    return [h.timing for h in row.hops if h.timing is not None]


def _arrival(row: Row) -> float:
    return min(t.due_s for t in _timings(row))


def _span(rows: Sequence[Row]) -> tuple[float, float]:
    """Last arrival and last token."""
    return max(map(_arrival, rows)), max(t.ended_s for row in rows for t in _timings(row))


def _wall_s(rows: Sequence[Row]) -> float:
    return max(t.ended_s for row in rows for t in _timings(row)) - min(map(_arrival, rows))
