"""Rows that are known beforehand, whatever their choice was based on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from methods.base import Probe, RowView, Selection
from methods.recompute import union


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Rows given per segment, int64 and sorted, run beside the fresh rows at every layer."""

    chosen: Mapping[int, Tensor]

    def first_rows(self, view: RowView) -> Tensor:
        return union(view.fresh, *(view.reused[index][rows] for index, rows in self.chosen.items()))

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)
