"""What the Triton kernels share: where a row lives, tables of anchors, block sizes, and the dot's operand type."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operand import Matrix, Paged

FIELDS = 7  # of a table row: left, left layer stride, left row stride, rows, right, right layer stride, columns


class Destination(NamedTuple):
    """A dense ``[L, H, T, D]`` tensor or a paged cache as kernel arguments; ``page`` is 0 for a dense one."""

    tensor: Tensor
    layer: int
    head: int
    row: int
    jump: int
    table: Tensor
    first: int
    page: int


def destination(target: Tensor | Paged) -> Destination:
    if isinstance(target, Paged):
        p = target.pages
        return Destination(
            p, p.stride(0), p.stride(3), p.stride(2), p.stride(1), target.table, target.first, int(p.shape[2])
        )
    return Destination(target, target.stride(0), target.stride(1), target.stride(2), 0, target, 0, 0)


class Table(NamedTuple):
    """Addresses and strides of anchors, cut along the rank into pieces.

    Attributes:
        entries: int64 ``[pieces, FIELDS]``.
        owners: for every piece, the index of its anchor.
        align: 16 if every address (in bytes), stride and column count is a multiple of 16, so that a kernel may use
            vector loads, else 1.
    """

    entries: Tensor
    owners: list[int]
    align: int


def table(anchors: Sequence[Matrix], block: int, device: torch.device) -> Table:
    """A table with at most ``block`` columns a piece."""
    entries: list[list[int]] = []
    owners: list[int] = []
    for index, (left, right) in enumerate(anchors):
        rank = left.shape[2]
        for column in range(0, rank, block):
            entry = [left.data_ptr() + column * left.element_size(), left.stride(0), left.stride(1), left.shape[1]]
            if right is None:
                entry += [0, 0]
            else:
                offset = column * right.stride(1) * right.element_size()
                entry += [right.data_ptr() + offset, right.stride(0)]
            entries.append([*entry, min(block, rank - column)])
            owners.append(index)
    aligned = all(number % 16 == 0 for entry in entries for at, number in enumerate(entry) if at != 3)
    numbers = torch.tensor(entries, dtype=torch.int64, device=device).view(-1, FIELDS)
    return Table(numbers, owners, 16 if aligned else 1)


def uniform(anchors: Sequence[Matrix]) -> None:
    """One kernel launch reads every anchor with one element type and dense rows of the right factors.

    Raises:
        ValueError: if the anchors do not allow that.
    """
    kinds = {part.dtype for left, right in anchors for part in (left, right) if part is not None}
    if len(kinds) > 1:
        raise ValueError(f"anchors must have one dtype for the triton implementation, got {sorted(map(str, kinds))}")
    for index, (_, right) in enumerate(anchors):
        if right is not None and right.stride(1) != right.shape[2]:
            raise ValueError(f"anchors[{index}] right must have contiguous rows, got strides {right.stride()}")


def block(size: int, least: int = 16) -> int:
    """The power of two that covers ``size``."""
    return max(least, triton.next_power_of_2(max(size, 1)))


def interpreted(device: torch.device) -> bool:
    """Tensors in host memory reach a kernel only through the interpreter, whose dot must not see 16-bit operands."""
    return device.type == "cpu"


@triton.jit
def row_offset(t, row, jump, table, first, PAGE: tl.constexpr):
    """Offset of rows ``t`` (int64 tile) in a dense or paged cache."""
    if PAGE == 0:
        return t * row
    at = t + first
    return tl.load(table + at // PAGE) * jump + (at % PAGE) * row
