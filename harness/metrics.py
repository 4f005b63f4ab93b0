"""Every metric, defined once, as a fold over rows.

Which hops count: latencies, ratios and fidelity look at hops of *completed* rows (``ok`` or ``invalid``: all hops
ran) that are not warm-up. A row that timed out or ran out of memory has no speed. Nothing to look at gives None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

import numpy as np
from scipy.special import betaincinv

from harness.records import HopRecord, Route, Row, StateSize
from harness.summary import Fidelity, HopCounts, HopTtft, Latency, RouteTtft, Speedup, Throughput

PASS_AT = (1, 2, 5, 10, 20, 50, 100)
ROUTES = (Route.dense, Route.reuse, Route.fallback)


def hops(rows: Iterable[Row]) -> list[HopRecord]:
    """The hops that count: of completed rows, warm-up excluded."""
    return [h for r in rows if r.completed for h in r.hops if not h.warmup]


def scored(rows: Iterable[Row]) -> list[Row]:
    """Rows in the denominator of the accuracy."""
    return [r for r in rows if r.scored]


def accuracy(rows: Iterable[Row]) -> float | None:
    """correct / scored. Whatever is not a correct ``ok`` counts as wrong; ``missing`` leaves the denominator."""
    counted = scored(rows)
    return sum(r.correct for r in counted) / len(counted) if counted else None


def interval(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson: the exact two-sided binomial interval of ``correct`` out of ``n``.

    With a = 1 - level: low solves P(X >= correct | low) = a/2 and high solves P(X <= correct | high) = a/2, which are
    the quantiles Beta(correct, n - correct + 1) at a/2 and Beta(correct + 1, n - correct) at 1 - a/2.

    Raises:
        ValueError: unless 0 <= correct <= n and n > 0.
    """
    if not 0 <= correct <= n or n == 0:
        raise ValueError(f"need 0 <= correct <= n and n > 0, got {correct} of {n}")
    tail = (1.0 - level) / 2.0
    low = 0.0 if correct == 0 else float(betaincinv(correct, n - correct + 1, tail))
    high = 1.0 if correct == n else float(betaincinv(correct + 1, n - correct, 1.0 - tail))
    return low, high


def accuracy_ci95(rows: Iterable[Row]) -> tuple[float, float] | None:
    """:func:`interval` of :func:`accuracy`: of samples, under this pool and order; not over repeats."""
    counted = scored(rows)
    return interval(sum(r.correct for r in counted), len(counted)) if counted else None


def pass_at_k(rows: Iterable[Row]) -> dict[str, float] | None:
    """Unbiased pass@k (https://arxiv.org/abs/2107.03374, eq. 1): mean over samples of 1 - C(n - c, k) / C(n, k), where
    c of a sample's n repeats are right; for the usual k up to the smallest n.

    Decoding is greedy, so that repeats differ by what a method's pools hold, not by chance.
    """
    right = dict[str, list[bool]]()
    for row in scored(rows):
        right.setdefault(row.sample_id, []).append(row.correct)
    if not right:
        return None
    most = min(len(repeats) for repeats in right.values())
    counts = [(len(repeats), sum(repeats)) for repeats in right.values()]
    return {
        str(k): float(np.mean([1.0 - comb(n - c, k) / comb(n, k) for n, c in counts])) for k in PASS_AT if k <= most
    }


def reuse_ratio(counted: Sequence[HopRecord]) -> float | None:
    """reuse hops / (hops - source hops), KVCMAS's rho: granular in calls, not in tokens; a fallback is no reuse."""
    possible = [h for h in counted if not h.source_hop]
    return sum(h.route is Route.reuse for h in possible) / len(possible) if possible else None


def fresh_share(counted: Sequence[HopRecord], layers: int) -> float | None:
    """sum of fresh token-layers / (L x sum of prompt tokens): 1 is dense."""
    total = layers * sum(h.prompt_tokens for h in counted)
    return sum(h.fresh_token_layers for h in counted) / total if total else None


def latency(durations_s: Sequence[float]) -> Latency | None:
    """Mean and percentiles. With x sorted and 0-based, percentile p lies at rank p (n - 1) / 100, interpolated
    linearly between the two neighbours."""
    if not durations_s:
        return None
    p50, p90, p99 = (float(p) for p in np.percentile(durations_s, (50, 90, 99), method="linear"))
    return Latency(float(np.mean(durations_s)), p50, p90, p99, len(durations_s))


def ttft(counted: Iterable[HopRecord]) -> Latency | None:
    """TTFT of hops: from due time to first token, with matching, assembly, fallback and encodes inside."""
    return latency([h.ttft_s for h in counted])


def ttft_by_hop(counted: Sequence[HopRecord]) -> list[HopTtft]:
    out = []
    for index in sorted({h.index for h in counted}):
        here = [h for h in counted if h.index == index]
        dense, reuse, fallback = (ttft([h for h in here if h.route is route]) for route in ROUTES)
        every = ttft(here)
        assert every is not None  # the index was taken from a hop
        out.append(HopTtft(index, every, dense, reuse, fallback))
    return out


def ttft_by_route(counted: Sequence[HopRecord]) -> RouteTtft:
    reused = [h for h in counted if h.route is Route.reuse]
    return RouteTtft(
        source=ttft(h for h in counted if h.source_hop),
        dense=ttft(h for h in counted if h.route is Route.dense and not h.source_hop),
        reuse=ttft(reused),
        fallback=ttft(h for h in counted if h.route is Route.fallback),
        downstream=ttft(h for h in counted if not h.source_hop),
        shadow=latency([h.shadow_ttft_s for h in reused if h.shadow_ttft_s is not None]),
    )


def e2e(rows: Iterable[Row]) -> Latency | None:
    """End-to-end time of the trajectories without a warm-up hop, learning inside."""
    return latency([r.e2e_s for r in rows if r.completed and not r.warmup])


def throughput(counted: Sequence[HopRecord], layers: int) -> Throughput | None:
    """Tokens / sum of hop end-to-end seconds. computed = fresh token-layers / L; reused = prompt tokens - computed.
    The sum of all three is the papers' throughput, which counts reused input in full."""
    seconds = sum(h.e2e_s for h in counted)
    if seconds <= 0.0:
        return None
    computed = sum(h.fresh_token_layers for h in counted) / layers
    prompt = sum(h.prompt_tokens for h in counted)
    output = sum(h.output_tokens for h in counted)
    return Throughput(output / seconds, computed / seconds, (prompt - computed) / seconds)


def fidelity(counted: Iterable[HopRecord]) -> Fidelity | None:
    """Means over shadowed reuse hops; the other routes are exact and would only dilute them.

    K and V errors: per layer, the mean over hops that reused a row; in all, the mean over layers of those means.
    prefix_share: prefix_match / output tokens, a mean of shares (1 for an empty output, which agrees trivially).

    Raises:
        ValueError: if two hops have errors for different numbers of layers.
    """
    seen = [h for h in counted if h.route is Route.reuse and h.shadowed]
    if not seen:
        return None
    by_layer_k = _by_layer([h.kv_error_k for h in seen if h.kv_error_k])
    by_layer_v = _by_layer([h.kv_error_v for h in seen if h.kv_error_v])
    matches = [(h.prefix_match or 0, h.output_tokens) for h in seen]
    return Fidelity(
        n=len(seen),
        kv_error_k=_mean(by_layer_k),
        kv_error_v=_mean(by_layer_v),
        kv_error_k_by_layer=by_layer_k,
        kv_error_v_by_layer=by_layer_v,
        first_token_kl=float(np.mean([h.first_token_kl or 0.0 for h in seen])),
        prefix_match=float(np.mean([match for match, _ in matches])),
        prefix_share=float(np.mean([min(1.0, match / tokens) if tokens else 1.0 for match, tokens in matches])),
        answer_agrees=_mean([float(h.answer_agrees) for h in seen if h.answer_agrees is not None]),
    )


def _by_layer(errors: Sequence[Sequence[float]]) -> list[float]:
    if len({len(e) for e in errors}) > 1:
        raise ValueError(f"hops have errors for different numbers of layers: {sorted({len(e) for e in errors})}")
    return [float(e) for e in np.mean(errors, axis=0)] if errors else []


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def speedup(counted: Iterable[HopRecord]) -> Speedup | None:
    """Of shadowed reuse hops against dense on the same prompts, in the same run, ratios of means (so that long
    hops weigh more): TTFT of dense / TTFT of reuse, and (match + assemble + encode) / TTFT of dense."""
    seen = [h for h in counted if h.route is Route.reuse and h.shadow_ttft_s is not None]
    dense_s = sum(h.shadow_ttft_s or 0.0 for h in seen)
    reuse_s = sum(h.ttft_s for h in seen)
    if not dense_s or not reuse_s:
        return None
    extra_s = sum(h.phases.match_s + h.phases.assemble_s + h.phases.encode_s for h in seen)
    return Speedup(dense_s / reuse_s, extra_s / dense_s, len(seen))


def hop_counts(rows: Iterable[Row]) -> HopCounts:
    rows = list(rows)
    counted = hops(rows)
    dense, reuse, fallback = (sum(h.route is route for h in counted) for route in ROUTES)
    warmup = sum(h.warmup for r in rows if r.completed for h in r.hops)
    return HopCounts(dense, reuse, fallback, source=sum(h.source_hop for h in counted), warmup=warmup)


def learn_s(rows: Iterable[Row]) -> float:
    """Seconds spent learning over all hops, warm-up included, since pools are paid for wherever they are filled."""
    return sum(h.phases.learn_s for r in rows for h in r.hops)


def state_bytes(rows: Sequence[Row]) -> StateSize | None:
    """What the method kept after the last row that says so."""
    return next((r.state_bytes for r in reversed(rows) if r.state_bytes is not None), None)
