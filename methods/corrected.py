"""Rows that are reconstructed on their way into the cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from methods.base import Rope
from methods.frame import Blend, Frame


@dataclass(frozen=True, eq=False)
class Corrected:
    """Reference rows plus a blend of learned deltas; layer 0 is the reference itself.

    Attributes:
        keys, values: reference rows ``[L, H, T, D]`` as the frame prepared them, so that they are de-rotated once
            for matching and correction together.
    """

    frame: Frame
    keys: Tensor
    values: Tensor
    blend: Blend

    def __len__(self) -> int:
        return int(self.keys.shape[2])

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        self.frame.write(keys, values, self.keys, self.values, self.blend, start)
