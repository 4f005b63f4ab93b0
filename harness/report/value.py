"""A number and its interval, and how both are written.

Intervals of means are a bootstrap over samples, whose hops belong together (1,000 draws, seed 0, central 95 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000


@dataclass(frozen=True)
class Value:
    """A number, and the ends of its interval if it has one: of 95 %, or over ``seeds`` of one standard deviation."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1

    def scaled(self, factor: float) -> Value:
        low, high = (None if x is None else x * factor for x in (self.low, self.high))
        return Value(self.value * factor, low, high, self.seeds)


def over_seeds(values: Sequence[Value | None]) -> Value | None:
    """A single one as it is; of several mean and sample standard deviation, None unless each seed has the number."""
    found = [v for v in values if v is not None]
    if len(found) < len(values) or not found:
        return None
    if len(found) == 1:
        return found[0]
    numbers = [v.value for v in found]
    mean, sd = float(np.mean(numbers)), float(np.std(numbers, ddof=1))
    return Value(mean, mean - sd, mean + sd, len(found))


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> Value | None:
    """sum of the first over sum of the second, a pair per sample, which are drawn with replacement."""
    above, below = np.asarray(pairs, dtype=float).reshape(-1, 2).T
    if not len(above) or not below.sum():
        return None
    value = float(above.sum() / below.sum())
    if len(above) < 2:
        return Value(value)
    draws = np.random.default_rng(0).integers(0, len(above), (DRAWS, len(above)))
    totals = below[draws].sum(1)
    found = above[draws].sum(1)[totals > 0] / totals[totals > 0]
    low, high = np.quantile(found, (0.025, 0.975))
    return Value(value, float(low), float(high))


def number(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits, no exponent between a thousandth and a million."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e6:
        places = max(0, digits - 1 - int(np.floor(np.log10(abs(value)) + 1e-12)))
        return f"{value:,.{places}f}"
    return f"{value:.{digits - 1}e}"


def shown(value: Value | None, digits: int = 3) -> str:
    """As a table has it: ``12.3 (11.0-13.9)``, over seeds ``12.3 ± 1.2``."""
    if value is None:
        return ""
    text = number(value.value, digits)
    if value.low is None or value.high is None:
        return text
    if value.seeds > 1:
        return f"{text} ± {number(value.value - value.low, min(2, digits))}"
    return f"{text} ({number(value.low, digits)}–{number(value.high, digits)})"
