"""What is measured on a held-out hop: delta energy that remains, KL of the first token, and both over many hops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from harness.analysis.replay import Recorded
from methods.base import KV, Reuse, Rope, Rows


@dataclass(frozen=True, eq=False)
class Energies:
    """fp64 ``[2, L - 1]`` each (keys, values): of what a correction leaves, of the delta, of the exact rows."""

    left: Tensor
    delta: Tensor
    exact: Tensor

    @classmethod
    def of(cls, recorded: Recorded, index: int, rows: Rows, rope: Rope) -> Energies:
        """Of one span of a hop, corrected to ``rows``, beside its source moved to the same place."""
        true, span = recorded.rows[index], recorded.hop.prompt.placed[index].span
        if span is None:
            raise ValueError(f"segment {index} is no shared span")
        used, moved = (_placed(r, true, rope) for r in (rows, recorded.hop.sources[span.id].kv))
        return cls(_apart(used, true), _apart(moved, true), torch.stack([_squares(true.k), _squares(true.v)]))

    def __add__(self, other: Energies) -> Energies:
        return Energies(self.left + other.left, self.delta + other.delta, self.exact + other.exact)

    @property
    def remaining(self) -> tuple[float, float]:
        """Of keys and of values, energy left over that of the delta, summed over layers; 1 is rotation alone."""
        left, delta = self.left.sum(1), self.delta.sum(1).clamp_min(1e-30)
        return float(left[0] / delta[0]), float(left[1] / delta[1])

    @property
    def error(self) -> float:
        """Relative error, root mean square over keys, values and layers: what a ridge gate expects."""
        return float((self.left / self.exact.clamp_min(1e-30)).mean().sqrt())


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's, over pairs that are both finite; 0 where one side does not vary."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len({x for x, _ in pairs}) < 2 or len({y for _, y in pairs}) < 2:
        return 0.0
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def at_reuse(kl: Sequence[float], order: Sequence[float], share: float) -> float:
    """Mean KL over all hops when the ``share`` of them with the lowest ``order`` reuse and the others run dense."""
    chosen = np.argsort(np.asarray(order, dtype=float), kind="stable")[: round(share * len(kl))]
    return float(np.asarray(kl, dtype=float)[chosen].sum() / len(kl))


def span_rows(plan: Reuse, recorded: Recorded) -> dict[int, Rows]:
    """The reused spans of a plan that an earlier hop holds."""
    placed = {p.index: p.span for p in recorded.hop.prompt.shared()}
    held = {index for index, span in placed.items() if span is not None and span.id in recorded.hop.sources}
    return {index: rows for index, rows in plan.rows.items() if index in held}


def _placed(rows: Rows, like: KV, rope: Rope) -> KV:
    keys, values = torch.empty_like(like.k), torch.empty_like(like.v)
    rows.write(keys, values, like.start or 0, rope)
    return KV(keys, values, like.start)


def _apart(a: KV, b: KV) -> Tensor:
    return torch.stack([_squares(a.k.float() - b.k.float()), _squares(a.v.float() - b.v.float())])


def _squares(x: Tensor) -> Tensor:
    """``[L, H, T, D]`` -> fp64 ``[L - 1]``, without layer 0."""
    return x[1:].double().square().sum((1, 2, 3))
