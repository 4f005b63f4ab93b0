"""How many calls wait and run, from the intervals in which they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.serving import EngineFigures

Interval = tuple[float, float]


@dataclass
class Occupancy:
    """Intervals on a service's clock since it began: of calls in the queue, and at work."""

    waiting: list[Interval] = field(default_factory=list)
    running: list[Interval] = field(default_factory=list)

    def figures(self, seconds: float, busy_s: float) -> EngineFigures:
        """Of the first ``seconds``, for ``busy_s`` of which something ran; what an engine knows besides is left out."""
        waiting_mean, waiting_max = mean_and_peak(self.waiting, seconds)
        running_mean, running_max = mean_and_peak(self.running, seconds)
        return EngineFigures(
            seconds=seconds,
            busy_share=busy_s / seconds if seconds > 0 else None,
            waiting_mean=waiting_mean,
            waiting_max=waiting_max,
            running_mean=running_mean,
            running_max=running_max,
        )


def mean_and_peak(intervals: Sequence[Interval], seconds: float) -> tuple[float, int]:
    """Number of intervals that are open, weighted by time over ``[0, seconds]``, and the most at once."""
    times = np.array([i for i in intervals if i[1] > i[0]], dtype=np.float64).reshape(-1, 2)
    if not len(times) or seconds <= 0:
        return 0.0, 0
    moments = np.concatenate((times[:, 0], times[:, 1]))
    steps = np.concatenate((np.ones(len(times)), -np.ones(len(times))))
    order = np.lexsort((steps, moments))  # at one moment an end comes before a begin
    return float(np.sum(times[:, 1] - times[:, 0]) / seconds), int(np.cumsum(steps[order]).max())


def covered(intervals: Sequence[Interval]) -> float:
    """Length of the union."""
    total, end = 0.0, -np.inf
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return float(total)
