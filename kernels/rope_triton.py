"""Rotation of cached rows as one launch over all layers and heads; see ``kernels.rope`` for the specification."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.operand import Paged
from kernels.rope import angles
from kernels.tile import block, destination, row_offset

ROWS = 32


@triton.jit
def rope_kernel(
    x, x_layer, x_head, x_row, out, out_layer, out_head, out_row, out_jump, table, first, cos, sin, rows,
    D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    source = x + layer * x_layer + head * x_head + t[:, None] * x_row
    slot = row_offset(tl.minimum(t, rows - 1), out_row, out_jump, table, first, PAGE)
    target = out + layer * out_layer + head * out_head + slot[:, None]
    live = t[:, None] < rows
    d = tl.arange(0, BH)[None, :]
    mask = live & (d < HALF)
    a = tl.load(source + d, mask, 0.0).to(tl.float32)
    b = tl.load(source + HALF + d, mask, 0.0).to(tl.float32)
    c = tl.load(cos + t[:, None] * HALF + d, mask, 0.0)
    s = tl.load(sin + t[:, None] * HALF + d, mask, 0.0)
    tl.store(target + d, (a * c - b * s).to(out.dtype.element_ty), mask)
    tl.store(target + HALF + d, (b * c + a * s).to(out.dtype.element_ty), mask)
    if 2 * HALF < D:
        d = 2 * HALF + tl.arange(0, BD)[None, :]
        mask = live & (d < D)
        tl.store(target + d, tl.load(source + d, mask, 0.0).to(out.dtype.element_ty), mask)


def launch(target: Tensor | Paged, x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float) -> None:
    """Rotate ``x [L, H, T, D]`` into ``target``; operands are checked by the caller."""
    layers, heads, rows, dim = x.shape
    if not x.numel():
        return
    cos, sin = angles(positions, inv_freq, scaling)
    half = inv_freq.shape[0]
    to = destination(target)
    rope_kernel[(triton.cdiv(rows, ROWS), heads, layers)](
        x, *x.stride()[:3], to.tensor, to.layer, to.head, to.row, to.jump, to.table, to.first, cos, sin, rows,
        D=dim, HALF=half, PAGE=to.page, BT=ROWS, BH=block(half), BD=block(dim - 2 * half),
    )  # fmt: skip
