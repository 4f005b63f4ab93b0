"""The live cache of one hop: preallocated rows that stock decoder layers write into and read from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.base import KV, Shape, Shift


class RowCache:
    """Keys and values of one sequence over all layers, rows addressed by absolute position.

    Decoder layers only ever call :meth:`update`, so this needs nothing from transformers' cache classes: the
    engine says which rows the layers are computing (:meth:`select`), and ``update`` puts them in place and
    returns every row that is visible.

    Attributes:
        keys, values: ``[L, H, capacity, D]`` in the model's dtype, keys rotated at their positions.
        stop: rows ``[0, stop)`` are visible to attention.
    """

    def __init__(self, shape: Shape, capacity: int, *, poison: bool = False) -> None:
        size = (shape.layers, shape.kv_heads, capacity, shape.head_dim)
        self.keys = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.values = torch.empty(size, dtype=shape.dtype, device=shape.device)
        if poison:  # a read of a row that nobody wrote must not go unnoticed
            self.keys.fill_(torch.nan)
            self.values.fill_(torch.nan)
        self.stop = 0
        self._rows: slice | Tensor = slice(0, 0)

    def select(self, rows: slice | Tensor, stop: int) -> None:
        """The layers now compute ``rows``; rows ``[0, stop)`` are visible to them."""
        self._rows, self.stop = rows, stop

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store fresh ``[1, H, R, D]`` rows of a layer; return all visible rows ``[1, H, stop, D]``."""
        if isinstance(self._rows, slice):
            self.keys[layer, :, self._rows] = keys[0]
            self.values[layer, :, self._rows] = values[0]
        else:
            self.keys[layer].index_copy_(1, self._rows, keys[0])
            self.values[layer].index_copy_(1, self._rows, values[0])
        return self.keys[layer, None, :, : self.stop], self.values[layer, None, :, : self.stop]

    def add(self, layer: int, shift: Shift) -> None:
        """Add to held rows of one layer, in fp32 and with one rounding."""
        for held, delta in ((self.keys[layer], shift.keys), (self.values[layer], shift.values)):
            moved = held[:, shift.rows].float() + delta.float()
            held.index_copy_(1, shift.rows, moved.to(held.dtype))

    def kv(self, start: int, stop: int) -> KV:
        """A copy of rows ``[start, stop)`` that shares no storage with the live cache."""
        return KV(self.keys[:, :, start:stop].clone(), self.values[:, :, start:stop].clone(), start)


def as_slice(rows: Sequence[int] | Tensor) -> slice | None:
    """A slice when sorted ``rows`` are consecutive, else None."""
    if len(rows) == 0:
        return None
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else None
