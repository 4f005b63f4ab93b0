"""Profile of contiguous layer groups (DroidSpeak, arXiv 2411.02820, section 4): cost against fidelity of each.

The paper judges a group by the task's score on about 50 contexts. Here every group is judged by the KL of the reader's
first token from dense, which needs no decoding and separates groups with fewer requests; ``exp(-KL)``, the probability
that the reader still gives to dense's choices relative to dense itself (geometric mean), is the quality, 1 for dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from methods.base import Executed, Hop, Plan
from methods.profile import Findings, Grain, Trial

Group = tuple[int, ...]


class GroupProfiler:
    """Tries all groups whose edges are multiples of ``grain.step``, the empty group and the whole model among them.

    Args:
        layers: L.
        plan: the plan of a hop that recomputes a group.
    """

    def __init__(self, layers: int, grain: Grain, plan: Callable[[Hop, Sequence[int]], Plan]) -> None:
        self.layers, self.grain, self.plan = layers, grain, plan
        self.groups = groups(layers, grain.step)
        self._trials: list[list[Trial]] = [[] for _ in self.groups]

    @property
    def captures(self) -> frozenset[int]:
        return frozenset(g[0] for g in self.groups if g) - {0}

    def look(self, hop: Hop, dense: Executed, attempt: Callable[[Plan], Trial]) -> None:
        for trials, group in zip(self._trials, self.groups, strict=True):
            trials.append(attempt(self.plan(hop, group)))

    def findings(self) -> Findings:
        if not self._trials[0]:
            raise ValueError("no hop read the cache of an earlier one, so that there is nothing to profile")
        means = [
            Trial(math.fsum(t.first_token_kl for t in ts) / len(ts), math.fsum(t.fresh_share for t in ts) / len(ts))
            for ts in self._trials
        ]
        front = pareto(means)
        cheap = thirds(self.groups, means, self.layers)
        good = next((i for i in front if math.exp(-means[i].first_token_kl) >= 1 - self.grain.within), front[-1])
        points = tuple(
            {
                "group": list(group),
                "layers": group[1] - group[0] + 1 if group else 0,
                "fresh_share": mean.fresh_share,
                "first_token_kl": mean.first_token_kl,
            }
            for group, mean in zip(self.groups, means, strict=True)
        )
        picks = {"quality": {"group": list(self.groups[good])}, "cheap": {"group": list(self.groups[cheap])}}
        return Findings(points, tuple(front), picks)


def groups(layers: int, step: int) -> list[Group]:
    """``()`` and every ``(first, last)`` that begins and ends at a multiple of ``step`` (or at the last layer).

    A single layer is left out: its rows leave with the keys and values that they came with.
    """
    edges = [*range(0, layers, step), layers]
    pairs = [(i, j - 1) for at, i in enumerate(edges) for j in edges[at + 1 :]]
    return [(), *(g for g in pairs if g[1] > g[0] or layers == 1)]


def pareto(trials: Sequence[Trial]) -> list[int]:
    """Indices of the trials that no other beats in both cost and KL, cheapest first; its last one has the lowest KL."""
    front: list[int] = []
    for i in sorted(range(len(trials)), key=lambda i: (trials[i].fresh_share, trials[i].first_token_kl)):
        if not front or trials[i].first_token_kl < trials[front[-1]].first_token_kl:
            front.append(i)
    return front


def thirds(groups: Sequence[Group], trials: Sequence[Trial], layers: int) -> int:
    """Index of the group of lowest KL among those whose size is nearest to a third of the layers."""
    sizes = {i: g[1] - g[0] + 1 for i, g in enumerate(groups) if g}
    size = min(sizes.values(), key=lambda s: (abs(s - layers / 3), s))
    return min((i for i, s in sizes.items() if s == size), key=lambda i: trials[i].first_token_kl)
