"""The fused correction as one launch per side; see ``kernels.lowrank`` for the specification.

A program owns a tile of rows of one head of one layer. It walks the pieces of all anchors (at most 32 columns of a
left factor each), accumulates the two rotary halves in registers, and adds the base, rotates and stores once. The
weights scale the left factors in fp32, which are then rounded to the type of the matrix product's operands.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operand import Matrix, Paged
from kernels.rope import angles
from kernels.tile import FIELDS, block, destination, interpreted, row_offset, table, uniform

ROWS = 32
RANK = 32


@triton.jit
def lowrank_kernel(
    base, base_layer, base_head, base_row, out, out_layer, out_head, out_row, out_jump, pages, first, cos, sin,
    thin, thin_owner, thin_count, raw, raw_owner, raw_count, weights, weights_anchor, weights_row, factor,
    rows, cover, first_layer, width,
    D: tl.constexpr, HALF: tl.constexpr, ROTATE: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr,
    FIELDS: tl.constexpr, ALIGN: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """``factor`` is never read: its element type is that of every address in the tables."""
    kind: tl.constexpr = factor.dtype.element_ty
    dot: tl.constexpr = tl.float32 if WIDE else kind
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    live = t[:, None] < rows
    d = tl.arange(0, BH)[None, :]
    r = tl.arange(0, BR)
    low = tl.zeros((BT, BH), tl.float32)
    high = tl.zeros((BT, BH), tl.float32)
    rest = tl.zeros((BT, BD), tl.float32)
    e = 2 * HALF + tl.arange(0, BD)[None, :]
    delta = layer - first_layer
    corrected = (delta >= 0) & (tl.program_id(0) * BT < cover)
    for piece in range(tl.where(corrected, thin_count, 0)):
        entry = thin + piece * FIELDS
        left = tl.multiple_of(tl.load(entry), ALIGN).to(tl.pointer_type(kind))
        left_layer = tl.multiple_of(tl.load(entry + 1), ALIGN)
        left_row = tl.multiple_of(tl.load(entry + 2), ALIGN)
        reach = tl.minimum(tl.load(entry + 3), cover)
        right = tl.multiple_of(tl.load(entry + 4), ALIGN).to(tl.pointer_type(kind))
        right_layer = tl.multiple_of(tl.load(entry + 5), ALIGN)
        columns = tl.multiple_of(tl.load(entry + 6), ALIGN)
        anchor = tl.load(thin_owner + piece)
        w = tl.load(weights + anchor * weights_anchor + t * weights_row, t < reach, 0.0)
        q = tl.load(
            left + delta * left_layer + t[:, None] * left_row + r[None, :],
            (t[:, None] < reach) & (r[None, :] < columns), 0.0,
        )  # fmt: skip
        q = (q.to(tl.float32) * w[:, None]).to(dot)
        b = right + delta * right_layer + head * D + r[:, None].to(tl.int64) * width
        mask = (r[:, None] < columns) & (d < HALF)
        low = tl.dot(q, tl.load(b + d, mask, 0.0).to(dot), low, input_precision="ieee")
        high = tl.dot(q, tl.load(b + HALF + d, mask, 0.0).to(dot), high, input_precision="ieee")
        if 2 * HALF < D:
            mask = (r[:, None] < columns) & (e < D)
            rest = tl.dot(q, tl.load(b + e, mask, 0.0).to(dot), rest, input_precision="ieee")
    for piece in range(tl.where(corrected, raw_count, 0)):
        entry = raw + piece * FIELDS
        left = tl.load(entry).to(tl.pointer_type(kind))
        reach = tl.minimum(tl.load(entry + 3), cover)
        anchor = tl.load(raw_owner + piece)
        w = tl.load(weights + anchor * weights_anchor + t * weights_row, t < reach, 0.0)[:, None]
        x = left + delta * tl.load(entry + 1) + t[:, None] * tl.load(entry + 2) + head * D
        mask = (t[:, None] < reach) & (d < HALF)
        low += w * tl.load(x + d, mask, 0.0).to(tl.float32)
        high += w * tl.load(x + HALF + d, mask, 0.0).to(tl.float32)
        if 2 * HALF < D:
            rest += w * tl.load(x + e, (t[:, None] < reach) & (e < D), 0.0).to(tl.float32)
    source = base + layer * base_layer + head * base_head + t[:, None] * base_row
    slot = row_offset(tl.minimum(t, rows - 1), out_row, out_jump, pages, first, PAGE)
    target = out + layer * out_layer + head * out_head + slot[:, None]
    mask = live & (d < HALF)
    low += tl.load(source + d, mask, 0.0).to(tl.float32)
    high += tl.load(source + HALF + d, mask, 0.0).to(tl.float32)
    if ROTATE:
        c = tl.load(cos + t[:, None] * HALF + d, mask, 0.0)
        s = tl.load(sin + t[:, None] * HALF + d, mask, 0.0)
        turned = low * c - high * s
        high = high * c + low * s
        low = turned
    tl.store(target + d, low.to(out.dtype.element_ty), mask)
    tl.store(target + HALF + d, high.to(out.dtype.element_ty), mask)
    if 2 * HALF < D:
        mask = live & (e < D)
        rest += tl.load(source + e, mask, 0.0).to(tl.float32)
        tl.store(target + e, rest.to(out.dtype.element_ty), mask)


def launch(
    keys: Tensor | Paged,
    values: Tensor | Paged,
    base_k: Tensor,
    base_v: Tensor,
    deltas_k: Sequence[Matrix],
    deltas_v: Sequence[Matrix],
    weights_k: Tensor,
    weights_v: Tensor,
    start: int,
    inv_freq: Tensor,
    scaling: float,
    first_layer: int,
) -> None:
    """Both sides; operands are checked by the caller, except what only this implementation asks for."""
    if not base_k.numel():
        return
    at = torch.arange(start, start + base_k.shape[2], device=base_k.device)
    angle = angles(at, inv_freq, scaling)
    _side(keys, base_k, deltas_k, weights_k, first_layer, angle)
    _side(values, base_v, deltas_v, weights_v, first_layer, None)


def _side(
    target: Tensor | Paged,
    base: Tensor,
    deltas: Sequence[Matrix],
    weights: Tensor,
    first_layer: int,
    angle: tuple[Tensor, Tensor] | None,
) -> None:
    uniform(deltas)
    layers, heads, rows, dim = base.shape
    device = base.device
    thin = [(a, pair) for a, pair in enumerate(deltas) if pair[1] is not None]
    raw = [(a, pair) for a, pair in enumerate(deltas) if pair[1] is None]
    thin_table = table([pair for _, pair in thin], RANK, device)
    raw_table = table([pair for _, pair in raw], heads * dim, device)
    half = dim // 2 if angle is None else angle[0].shape[1]
    cos, sin = (base, base) if angle is None else angle
    to = destination(target)
    lowrank_kernel[(triton.cdiv(rows, ROWS), heads, layers)](
        base, *base.stride()[:3], to.tensor, to.layer, to.head, to.row, to.jump, to.table, to.first, cos, sin,
        thin_table.entries, _indices([thin[i][0] for i in thin_table.owners], device), len(thin_table.owners),
        raw_table.entries, _indices([raw[i][0] for i in raw_table.owners], device), len(raw_table.owners),
        weights, *weights.stride(), deltas[0][0] if deltas else base, rows, weights.shape[1] if deltas else 0,
        first_layer, heads * dim,
        D=dim, HALF=half, ROTATE=angle is not None, PAGE=to.page, WIDE=interpreted(device),
        FIELDS=FIELDS, ALIGN=thin_table.align, BT=ROWS, BH=block(half), BD=block(dim - 2 * half), BR=RANK,
    )  # fmt: skip


def _indices(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
