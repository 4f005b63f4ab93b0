"""Accuracy of a run against dense on the very same samples, and how it varies over repeats.

A difference of two independent accuracies hides that both saw the same questions. What counts are the samples on which
exactly one of the two is right: McNemar's exact test (1947; the binomial form) takes b and c of them as b + c flips of
a fair coin, two-sided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from harness.report.rows import RowLine
from harness.report.run import Run
from harness.report.value import DRAWS


@dataclass(frozen=True)
class Paired:
    """Attributes:
    n: samples (and repeats) that both runs scored.
    better, worse: of these, those on which only this run, only the other one is right.
    low, high: central 95 % of a bootstrap over samples of the difference in accuracy, in points.
    """

    n: int
    better: int
    worse: int
    low: float
    high: float

    @property
    def points(self) -> float:
        return 100.0 * (self.better - self.worse) / self.n

    @property
    def p(self) -> float:
        """Exact two-sided McNemar."""
        flips, tail = self.better + self.worse, min(self.better, self.worse)
        if not flips:
            return 1.0
        ways: int = sum(comb(flips, k) for k in range(tail + 1))
        return min(1.0, ways / float(2 ** (flips - 1)))


def paired(run: Run, over: Run) -> Paired | None:
    """None where there is no sample that both scored, as of runs whose intervals were left out."""
    mine, theirs = _scored(run.rows), _scored(over.rows)
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return None
    by_sample: dict[str, list[int]] = {}
    for key in both:
        by_sample.setdefault(key[0], []).append(int(mine[key]) - int(theirs[key]))
    sums, sizes = (np.asarray([f(d) for d in by_sample.values()], dtype=float) for f in (sum, len))
    draws = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    low, high = np.quantile(100 * sums[draws].sum(1) / sizes[draws].sum(1), (0.025, 0.975))
    difference = [mine[key] - theirs[key] for key in both]
    return Paired(len(both), difference.count(1), difference.count(-1), float(low), float(high))


@dataclass(frozen=True)
class Repeats:
    """Accuracy over repeats, percent: mean and sample standard deviation."""

    n: int
    mean: float
    sd: float


def repeats(run: Run) -> Repeats | None:
    """None for a run that went through its samples once."""
    by_repeat: dict[int, list[bool]] = {}
    for row in run.rows:
        if row.scored:
            by_repeat.setdefault(row.repeat, []).append(row.correct)
    if len(by_repeat) < 2:
        return None
    found = [100 * float(np.mean(correct)) for correct in by_repeat.values()]
    return Repeats(len(found), float(np.mean(found)), float(np.std(found, ddof=1)))


def _scored(rows: Sequence[RowLine]) -> dict[tuple[str, int], bool]:
    return {row.key: row.correct for row in rows if row.scored}
