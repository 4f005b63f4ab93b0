"""Operands of the kernels: what an anchor matrix is, and the checks at the public boundary.

Every check raises a ``ValueError`` that names the argument, what was expected and what was found. Nothing is cast,
copied or moved to make an operand fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# One stored matrix per layer: low-rank ``left [Lx, n, r]`` and ``right [Lx, r, C]``, or raw ``(x [Lx, n, C], None)``.
Matrix = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class Paged:
    """A paged cache as destination: row t lives in slot ``(first + t) % S`` of page ``table[(first + t) // S]``.

    Attributes:
        pages: ``[L, P, S, H, D]``.
        table: int64 ``[M]``, pages of this sequence in order, ``first + T <= M * S``.
        first: row of the sequence that row 0 of the span is.
    """

    pages: Tensor
    table: Tensor
    first: int = 0

    def store(self, layers: slice, begin: int, rows: Tensor) -> None:
        """Write ``rows [l, H, t, D]`` of some layers as rows ``begin, begin + 1, ...`` of the span."""
        at = torch.arange(self.first + begin, self.first + begin + rows.shape[2], device=self.table.device)
        size = self.pages.shape[2]
        target = self.pages[layers]
        target[:, self.table[at // size], at % size] = rows.transpose(1, 2).to(target.dtype)


class Scratch:
    """A flat buffer, fp32 by default, that tiles of different shapes reuse; every ``take`` gives up what was there
    before."""

    def __init__(self, like: Tensor, size: int, dtype: torch.dtype = torch.float32) -> None:
        self._flat = torch.empty(size, dtype=dtype, device=like.device)

    def take(self, *shape: int) -> Tensor:
        """Contiguous, uninitialised."""
        return self._flat[: math.prod(shape)].view(shape)


def rows_of(matrix: Matrix) -> int:
    """n, the rows an anchor matrix reaches."""
    return int(matrix[0].shape[1])


def floating(name: str, tensor: Tensor, dim: int) -> None:
    """``tensor`` has ``dim`` dimensions, a kernel's floating dtype, and a unit stride along the last dimension."""
    if tensor.dim() != dim:
        raise ValueError(f"{name} must have {dim} dimensions, got shape {tuple(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32, bfloat16 or float16, got {tensor.dtype}")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous along its last dimension, got strides {tensor.stride()}")


def shaped(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def typed(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")


def placed(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, got {tensor.device}")


def matrices(name: str, anchors: Sequence[Matrix], layers: int, width: int, device: torch.device) -> None:
    """Every anchor is ``([layers, n, r], [layers, r, width])`` or ``([layers, n, width], None)``."""
    for index, (left, right) in enumerate(anchors):
        at = f"{name}[{index}]"
        floating(f"{at} left", left, 3)
        placed(f"{at} left", left, device)
        if right is None:
            shaped(f"{at} (raw)", left, (layers, left.shape[1], width))
            continue
        floating(f"{at} right", right, 3)
        placed(f"{at} right", right, device)
        if left.shape[0] != layers:
            raise ValueError(f"{at} left must have {layers} layers, got shape {tuple(left.shape)}")
        shaped(f"{at} right", right, (layers, left.shape[2], width))


def frequencies(name: str, inv_freq: Tensor, head_dim: int, device: torch.device) -> None:
    """``inv_freq`` is fp32 ``[R / 2]`` with R <= head_dim."""
    if inv_freq.dim() != 1 or 2 * inv_freq.shape[0] > head_dim:
        raise ValueError(f"{name} must be [R / 2] with R <= {head_dim}, got shape {tuple(inv_freq.shape)}")
    typed(name, inv_freq, torch.float32)
    placed(name, inv_freq, device)


def pages(name: str, paged: Paged, shape: Sequence[int], device: torch.device) -> None:
    """``paged`` can take rows of ``shape`` [L, H, T, D]."""
    layers, heads, rows, dim = shape
    floating(f"{name}.pages", paged.pages, 5)
    placed(f"{name}.pages", paged.pages, device)
    found = paged.pages.shape
    if (found[0], found[3], found[4]) != (layers, heads, dim):
        raise ValueError(f"{name}.pages must be [{layers}, P, S, {heads}, {dim}], got {tuple(found)}")
    if paged.table.dim() != 1 or paged.first < 0 or paged.first + rows > paged.table.shape[0] * found[2]:
        raise ValueError(
            f"{name}.table must list the pages of rows {paged.first}..{paged.first + rows - 1}"
            f" at {found[2]} rows a page, got {tuple(paged.table.shape)}"
        )
    typed(f"{name}.table", paged.table, torch.int64)
    placed(f"{name}.table", paged.table, device)
