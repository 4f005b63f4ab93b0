"""A ratio with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 2000


class Interval(msgspec.Struct, frozen=True):
    """A ratio of two means over the same hops, with the central 95 % of a paired bootstrap."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
        a, b = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
        draws = np.random.default_rng(seed).integers(0, len(a), (RESAMPLES, len(a)))
        tiny = np.finfo(float).tiny
        ratios = a[draws].mean(1) / np.maximum(b[draws].mean(1), tiny)
        low, high = np.quantile(ratios, (0.025, 0.975))
        return cls(float(a.mean() / max(b.mean(), tiny)), float(low), float(high))
