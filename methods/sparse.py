"""Sparse matrices of a pool: the largest entries of every layer behind a bitmap (GraphFlow, arXiv 2605.22566)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sparse import apply, sparsify
from methods import lowrank
from methods.lowrank import Matrix, Operand, Raw


@dataclass(frozen=True, eq=False)
class Sparse:
    """``values [Lx, kept]`` of the entries that ``bitmap uint8 [Lx, n, C / 8]`` marks; C is a multiple of 8."""

    bitmap: Tensor
    values: Tensor
    residual: float

    def __len__(self) -> int:
        return int(self.bitmap.shape[1])

    @property
    def nbytes(self) -> int:
        return self.bitmap.nbytes + self.values.nbytes

    def operand(self, rows: int) -> Operand:
        return self._unpacked()[:, :rows], None

    def scaled(self, channels: Tensor) -> Matrix:
        return Raw(self._unpacked().float() * channels[:, None])

    def tensors(self) -> dict[str, Tensor]:
        return {"bitmap": self.bitmap, "values": self.values}

    def _unpacked(self) -> Tensor:
        """All entries ``[Lx, n, C]``, transient."""
        layers, rows, octets = self.bitmap.shape
        out = torch.zeros(layers, 1, rows, 8 * octets, dtype=self.values.dtype, device=self.values.device)
        apply(out, out, self.bitmap.flatten(1), self.values, first_layer=0)
        return out[:, 0]


@dataclass(frozen=True)
class Thresholded:
    """A codec that keeps the ``density`` largest entries by magnitude of every layer, in ``dtype``.

    Raises:
        ValueError: in :meth:`encode`, if the width is no multiple of 8.
    """

    density: float
    dtype: torch.dtype

    def encode(self, x: Tensor, seed: int) -> Matrix:
        layers, heads, rows, dim = x.shape
        if heads * dim % 8:
            raise ValueError(f"sparse storage needs a width that is a multiple of 8, got {heads * dim}")
        flat = x.transpose(1, 2).reshape(layers, rows, heads * dim)
        if flat.is_meta:  # sizes only
            kept = round(self.density * rows * heads * dim)
            bitmap = flat.new_empty(layers, rows, heads * dim // 8, dtype=torch.uint8)
            return Sparse(bitmap, flat.new_empty(layers, kept, dtype=self.dtype), 0.0)
        bitmap, values = sparsify(flat, self.density)
        lost = (flat.float().square().sum() - values.float().square().sum()).clamp_min(0).sqrt()
        return Sparse(bitmap.view(layers, rows, -1), values.to(self.dtype), float(lost))


def matrix(tensors: Mapping[str, Tensor], residual: float) -> Matrix:
    """The inverse of :meth:`methods.lowrank.Matrix.tensors`, whatever the codec."""
    if "bitmap" in tensors:
        return Sparse(tensors["bitmap"], tensors["values"], residual)
    return lowrank.matrix(tensors, residual)


def sparse_bytes(layers: int, rows: int, width: int, density: float, itemsize: int) -> int:
    """Analytic size of one matrix: kept values and one bit for each entry."""
    return layers * (round(density * rows * width) * itemsize + rows * width // 8)
