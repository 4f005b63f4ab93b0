"""A thresholded residual added, rotated and stored in one launch; see ``kernels.sparse`` for the specification.

Packed values are found by counting: torch sums the bits of every row once, a program counts inside its rows.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tile import block

ROWS = 32


@triton.jit
def _bits(bitmap, entry, mask):
    byte = tl.load(bitmap + entry // 8, mask, 0).to(tl.int32)
    return (byte >> (entry % 8).to(tl.int32)) & 1


@triton.jit
def _take(values, offset, bits, mask):
    """Values of the set bits of each row; ``offset`` counts the set bits before the row's first."""
    before = tl.cumsum(bits, 1) - bits
    return tl.load(values + offset[:, None] + before, mask & (bits != 0), 0.0).to(tl.float32)


@triton.jit
def sparse_kernel(
    base, base_layer, base_head, base_row, out, out_layer, out_head, out_row, bitmap, bitmap_layer,
    values, values_layer, before, cos, sin, rows, heads, first_layer,
    D: tl.constexpr, HALF: tl.constexpr, ROTATE: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    live = t[:, None] < rows
    d = tl.arange(0, BH)[None, :]
    e = 2 * HALF + tl.arange(0, BD)[None, :]
    source = base + layer * base_layer + head * base_head + t[:, None] * base_row
    target = out + layer * out_layer + head * out_head + t[:, None] * out_row
    mask = live & (d < HALF)
    low = tl.load(source + d, mask, 0.0).to(tl.float32)
    high = tl.load(source + HALF + d, mask, 0.0).to(tl.float32)
    rest = tl.load(source + e, live & (e < D), 0.0).to(tl.float32)
    delta = layer - first_layer
    if delta >= 0:
        entry = (head * rows + t[:, None]) * D
        plane = bitmap + delta * bitmap_layer
        packed = values + delta * values_layer
        offset = tl.load(before + (delta * heads + head) * rows + t, t < rows, 0).to(tl.int64)
        bits = tl.where(mask, _bits(plane, entry + d, mask), 0)
        low += _take(packed, offset, bits, mask)
        offset += tl.sum(bits, 1)
        bits = tl.where(mask, _bits(plane, entry + HALF + d, mask), 0)
        high += _take(packed, offset, bits, mask)
        if 2 * HALF < D:
            offset += tl.sum(bits, 1)
            bits = tl.where(live & (e < D), _bits(plane, entry + e, live & (e < D)), 0)
            rest += _take(packed, offset, bits, live & (e < D))
    if ROTATE:
        c = tl.load(cos + t[:, None] * HALF + d, mask, 0.0)
        s = tl.load(sin + t[:, None] * HALF + d, mask, 0.0)
        turned = low * c - high * s
        high = high * c + low * s
        low = turned
    tl.store(target + d, low.to(out.dtype.element_ty), mask)
    tl.store(target + HALF + d, high.to(out.dtype.element_ty), mask)
    if 2 * HALF < D:
        tl.store(target + e, rest.to(out.dtype.element_ty), live & (e < D))


def launch(
    out: Tensor, base: Tensor, bitmap: Tensor, values: Tensor, angle: tuple[Tensor, Tensor] | None, first_layer: int
) -> None:
    """``apply``; operands are checked by the caller, D is a multiple of 8."""
    layers, heads, rows, dim = base.shape
    if not base.numel():
        return
    counts = torch.tensor([n.bit_count() for n in range(256)], dtype=torch.uint8, device=base.device)
    of_row = counts[bitmap.int()].view(bitmap.shape[0], heads * rows, dim // 8).sum(2, dtype=torch.int32)
    before = of_row.cumsum(1, dtype=torch.int32) - of_row
    half = dim // 2 if angle is None else angle[0].shape[1]
    cos, sin = (base, base) if angle is None else angle
    sparse_kernel[(triton.cdiv(rows, ROWS), heads, layers)](
        base, *base.stride()[:3], out, *out.stride()[:3], bitmap, bitmap.stride(0), values, values.stride(0),
        before, cos, sin, rows, heads, first_layer,
        D=dim, HALF=half, ROTATE=angle is not None, BT=ROWS, BH=block(half), BD=block(dim - 2 * half),
    )  # fmt: skip
