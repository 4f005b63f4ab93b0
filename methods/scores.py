"""How much a reused row deserves to be recomputed. A score is fp32 ``[R]`` for R rows; the higher, the sooner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from methods.base import Probe, RowView

Part = Literal["v", "k", "kv"]


class Score(Protocol):
    def __call__(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        """Scores of ``rows``, span rows among the probe's, in their order."""


@dataclass(frozen=True)
class Deviation:
    """Squared L2 distance of fresh from reused values, keys, or both, over heads and dimensions.

    CacheBlend's code takes values (arXiv 2405.16444), LMCache's keys, the paper speaks of both. Rotation does not
    change the distance of keys.
    """

    part: Part

    def __call__(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        at = torch.searchsorted(probe.rows, rows)
        total = torch.zeros(len(rows), device=rows.device)
        if "v" in self.part:
            total += squares(probe.fresh_v[:, at], probe.reused_v[:, at])
        if "k" in self.part:
            total += squares(probe.fresh_k[:, at], probe.reused_k[:, at])
        return total


@dataclass(frozen=True)
class QueryAttention:
    """Attention that the fresh rows after the last span give to a row, over heads (ProphetKV, arXiv 2602.02579)."""

    def __call__(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        return probe.received(suffix(view))[rows]


@dataclass(frozen=True)
class WeightedDeviation:
    """That attention times the L2 deviation of values: how far the row moves the attention output at most.

    KVShare (arXiv 2503.16525) weights deviations by attention; its exact product is not public, this one is ours.
    """

    def __call__(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        return QueryAttention()(probe, view, rows) * Deviation("v")(probe, view, rows).sqrt()


@dataclass(frozen=True, eq=False)
class Given:
    """Scores known beforehand: ``scores`` fp32 ``[N]`` by absolute row."""

    scores: Tensor

    def __call__(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        return self.scores[rows]


def squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared L2 distance per row of two ``[H, R, D]``, fp32 ``[R]``."""
    return (a.float() - b.float()).square().sum((0, 2))


def suffix(view: RowView) -> Tensor:
    """Fresh rows after the last reused row that does not run anyway: the reader's own question; never empty."""
    held = torch.cat(list(view.reused.values()))
    held = held[~torch.isin(held, view.fresh)]
    return view.fresh[view.fresh > held.max()] if len(held) else view.fresh[-1:]
