"""What a replayed trace says about itself: the part of a summary that only ``task=trace`` has.

``harness.traffic.measure`` computes it; None stands for "no such value here".
"""

from __future__ import annotations

import msgspec


class EngineFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine says of itself since :meth:`harness.service.Service.begin`; None stands for "it does not say".

    Attributes:
        seconds: length of the time it speaks of.
        busy_share: share of it for which something ran.
        waiting_mean, waiting_max: calls in the queue, weighted by time; running likewise.
        held_bytes_peak: most bytes of caches that wait for later hops.
        kv_usage_peak: largest share of the engine's cache blocks in use.
        prefix_hit_tokens, prefix_query_tokens: of the engine's own exact prefix cache.
        preemptions: calls that lost their cache and ran again.
        slots, step_tokens: most calls that run at once, and most tokens of one step among them.
        more: other figures by name, the unit in it.
    """

    seconds: float
    busy_share: float | None = None
    waiting_mean: float | None = None
    waiting_max: int | None = None
    running_mean: float | None = None
    running_max: int | None = None
    held_bytes_peak: int | None = None
    kv_usage_peak: float | None = None
    prefix_hit_tokens: int | None = None
    prefix_query_tokens: int | None = None
    preemptions: int | None = None
    slots: int | None = None
    step_tokens: int | None = None
    more: dict[str, float] = {}


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mean and linearly interpolated percentiles of ``n`` durations in seconds, pooled over repeats.

    The 95 % intervals come from resampling whole trajectories (percentile bootstrap, fixed seed). They say how much
    hangs on which trajectories came, not what another machine would give, and they take trajectories as independent,
    which queueing makes them only roughly.
    """

    n: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    mean_ci95: tuple[float, float]
    p50_ci95: tuple[float, float]
    p90_ci95: tuple[float, float]


class Goodput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Trajectories of which no call waited longer than ``slo_ttft_s`` for its first token: their share of all measured
    ones (those that failed are in the denominator), with its interval as in :class:`Spread`, and how many a second."""

    slo_ttft_s: float
    share: float
    share_ci95: tuple[float, float]
    trajectories_s: float


class TokenRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens per second of wall time, from the first arrival to the last token: prompt tokens that were computed (fresh
    token-layers / L, encodes apart), prompt tokens that were reused, tokens generated; and calls per second."""

    computed: float
    reused: float
    output: float
    calls: float


class Repeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pass over the trace.

    Attributes:
        rows: trajectories measured, failed ones included.
        warmup_calls, warmup_failed: calls that filled pools, and how many of them raised.
        warmup_s: how long that took.
        wrong_lengths: calls whose output had another length than the trace fixes.
        engine: the service's own figures over the measured part.
    """

    repeat: int
    rows: int
    warmup_calls: int
    warmup_failed: int
    warmup_s: float
    wrong_lengths: int
    engine: EngineFigures


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A summary's ``serving``.

    A hop that is *downstream* has a source, so that a method could reuse something; which route it took is another
    matter (``reuse``: those that did). Warm-up is in none of the numbers.

    Attributes:
        simulated: times follow from a cost model; nothing ran.
        engine: what served: the engine's name, or the hardware and the cost model that were simulated.
        trace: generator or file.
        trajectories: measured, in all repeats; ``failed`` of them did not end.
        warmup_trajectories: in each repeat, run one after another before the clock starts.
        offered_calls_s: calls per second as they arrive: calls of a repeat / time from first to last arrival; None if
            all arrive at once.
        ttft_s: of all hops; ttft_first_s, ttft_downstream_s, ttft_reuse_s: of hops without and with a source, and of
            those that reused.
        ttft_trajectory_s: of trajectories, the mean over their hops, first agent included.
        queued_s: from the engine's queue to the start of work; late_s: the load's own lateness.
        trajectory_s: from arrival to the last token of the last hop.
        busy_share: mean over repeats of the share of time in which the engine ran something.
        drain_s: mean over repeats of the time from the last arrival to the last token: it grows with the backlog.
        wrong_lengths: as in :class:`Repeat`; with any, the run is not valid.
    """

    simulated: bool
    engine: str
    trace: str
    trajectories: int
    failed: int
    warmup_trajectories: int
    offered_calls_s: float | None
    ttft_s: Spread | None
    ttft_first_s: Spread | None
    ttft_downstream_s: Spread | None
    ttft_reuse_s: Spread | None
    ttft_trajectory_s: Spread | None
    queued_s: Spread | None
    late_s: Spread | None
    trajectory_s: Spread | None
    goodput: Goodput
    tokens_s: TokenRates | None
    busy_share: float | None
    drain_s: float
    wrong_lengths: int
    repeats: list[Repeat]
