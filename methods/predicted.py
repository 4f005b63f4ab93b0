"""Rows of a source plus a correction of low rank that all layers share on the left."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dispatch import narrow
from kernels.lowrank import correct
from kernels.rope import place
from methods.base import KV, Rope

AT_ONCE = 32768  # rows times layers that are de-rotated, corrected and placed together: scratch of some megabytes


@dataclass(frozen=True, eq=False)
class Predicted:
    """``K = R(start + t) (K_source + left right_k)``, V alike without the rotation; layer 0 is the source itself.

    Attributes:
        source: rows of any start; left: fp32 ``[T, r]``; right_k, right_v: fp32 ``[L - 1, r, C]``. Where the processor
            multiplies bf16 and the source is bf16, factors are rounded to it, and so is their product, once.
    """

    source: KV
    left: Tensor
    right_k: Tensor
    right_v: Tensor

    def __len__(self) -> int:
        return len(self.source)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        base = self.source
        layers, heads, rows, dim = base.k.shape
        step = max(1, AT_ONCE // max(rows, 1))
        flat = torch.empty(min(step, layers), heads, rows, dim, device=base.k.device)
        back = -torch.arange(base.start or 0, (base.start or 0) + rows, device=base.k.device)
        ones = torch.ones(1, rows, device=base.k.device)
        kind = base.v.dtype if narrow(base.k, base.v) else torch.float32
        shared, right_k, right_v = (x.to(kind) for x in (self.left, self.right_k, self.right_v))
        for low in range(0, layers, step):
            at, chunk = slice(low, low + step), flat[: min(step, layers - low)]
            if base.start is None:
                chunk.copy_(base.k[at])
            else:
                place(chunk, base.k[at], back, rope.inv_freq, 1.0 / rope.scaling)
            first = min(1, len(chunk)) if low == 0 else 0
            known = slice(max(low - 1, 0), low + step - 1)
            left = shared.expand(len(right_k[known]), -1, -1)
            correct(
                keys[at], values[at], chunk, base.v[at],
                [(left, right_k[known])], [(left, right_v[known])], ones, ones,
                start=start, inv_freq=rope.inv_freq, scaling=rope.scaling, first_layer=first,
            )  # fmt: skip
