"""Distances to every anchor with the expanded tile in registers only; see ``kernels.distance`` for the specification.

A program owns a tile of rows, one anchor and a few layers; anchors are the fastest axis of the grid, so programs that
run together read the same rows of the span. Partial sums over layers are written apart and added by torch: no atomics,
the same bits every time. The L2 form squares the same difference, which costs no more here than the Gram form and
does not cancel.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operand import Matrix, rows_of
from kernels.tile import FIELDS, block, interpreted, table, uniform

ROWS = 32
RANK = 32


@triton.jit
def distance_kernel(
    x, x_layer, x_head, x_row, anchors, ends, factor, out, layers, cover, width,
    H: tl.constexpr, D: tl.constexpr, SQUARED: tl.constexpr, RAW: tl.constexpr, GROUP: tl.constexpr,
    WIDE: tl.constexpr, FIELDS: tl.constexpr, ALIGN: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """``anchors`` holds the pieces of all anchors, those of anchor a are ``ends[a] .. ends[a + 1]``."""
    kind: tl.constexpr = factor.dtype.element_ty
    dot: tl.constexpr = tl.float32 if WIDE else kind
    a = tl.program_id(0)
    t = (tl.program_id(1) * BT + tl.arange(0, BT)).to(tl.int64)
    d = tl.arange(0, BD)[None, :]
    r = tl.arange(0, BR)
    begin = tl.load(ends + a)
    end = tl.load(ends + a + 1)
    total = tl.zeros((BT,), tl.float32)
    lower = tl.program_id(2) * GROUP
    for index in range(lower * H, tl.minimum(lower + GROUP, layers) * H):
        layer = index // H
        head = index % H
        mask = (t[:, None] < cover) & (d < D)
        source = x + layer * tl.cast(x_layer, tl.int64) + head * tl.cast(x_head, tl.int64)
        off = tl.load(source + t[:, None] * x_row + d, mask, 0.0).to(tl.float32)
        if RAW:
            entry = anchors + begin * FIELDS
            left = tl.load(entry).to(tl.pointer_type(kind))
            rows = left + layer * tl.load(entry + 1) + t[:, None] * tl.load(entry + 2) + head * D
            off -= tl.load(rows + d, mask & (t[:, None] < tl.load(entry + 3)), 0.0).to(tl.float32)
        else:
            near = tl.zeros((BT, BD), tl.float32)
            for piece in range(begin, end):
                entry = anchors + piece * FIELDS
                left = tl.multiple_of(tl.load(entry), ALIGN).to(tl.pointer_type(kind))
                left_layer = tl.multiple_of(tl.load(entry + 1), ALIGN)
                left_row = tl.multiple_of(tl.load(entry + 2), ALIGN)
                right = tl.multiple_of(tl.load(entry + 4), ALIGN).to(tl.pointer_type(kind))
                right_layer = tl.multiple_of(tl.load(entry + 5), ALIGN)
                columns = tl.multiple_of(tl.load(entry + 6), ALIGN)
                reach = tl.minimum(tl.load(entry + 3), cover)
                q = tl.load(
                    left + layer * left_layer + t[:, None] * left_row + r[None, :],
                    (t[:, None] < reach) & (r[None, :] < columns), 0.0,
                )  # fmt: skip
                b = tl.load(
                    right + layer * right_layer + head * D + r[:, None].to(tl.int64) * width + d,
                    (r[:, None] < columns) & (d < D), 0.0,
                )  # fmt: skip
                near = tl.dot(q.to(dot), b.to(dot), near, input_precision="ieee")
            off -= near
        total += tl.sum(off * off, 1) if SQUARED else tl.sum(tl.abs(off), 1)
    tl.store(out + (tl.program_id(2) * tl.num_programs(0) + a).to(tl.int64) * cover + t, total, t < cover)


def deviations(x: Tensor, anchors: Sequence[Matrix], cover: int, *, squared: bool, group: int) -> Tensor:
    """Sums of ``|x - anchor|`` or its square over heads and dimensions, fp32 ``[ceil(L / group), A, cover]``, each
    over ``group`` layers; meaningless in rows that an anchor does not reach."""
    uniform(anchors)
    layers, heads, _, dim = x.shape
    out = torch.zeros(triton.cdiv(layers, group), len(anchors), cover, device=x.device)
    for raw in (False, True):
        chosen = [a for a, pair in enumerate(anchors) if (pair[1] is None) is raw]
        if not chosen or not cover or not layers:
            continue
        pieces = table([anchors[a] for a in chosen], heads * dim if raw else RANK, x.device)
        ends = torch.tensor(
            [0, *(sum(owner <= i for owner in pieces.owners) for i in range(len(chosen)))], device=x.device
        )
        part = torch.empty(out.shape[0], len(chosen), cover, device=x.device)
        distance_kernel[(len(chosen), triton.cdiv(cover, ROWS), out.shape[0])](
            x, *x.stride()[:3], pieces.entries, ends, anchors[chosen[0]][0], part, layers, cover, heads * dim,
            H=heads, D=dim, SQUARED=squared, RAW=raw, GROUP=group, WIDE=interpreted(x.device),
            FIELDS=FIELDS, ALIGN=pieces.align, BT=ROWS, BD=block(dim), BR=RANK,
        )  # fmt: skip
        out[:, chosen] = part
    return out


def token(x: Tensor, anchors: Sequence[Matrix], cover: int, *, squared: bool) -> Tensor:
    """``token_l1`` or ``token_l2``."""
    entries = x.shape[0] * x.shape[1] * x.shape[3]
    out = deviations(x, anchors, cover, squared=squared, group=8).sum(0).div_(max(entries, 1))
    if squared:
        out.sqrt_()
    for a, anchor in enumerate(anchors):
        out[a, rows_of(anchor) :] = torch.inf
    return out


def span(x: Tensor, anchors: Sequence[Matrix]) -> Tensor:
    """``span_l2``."""
    return deviations(x, anchors, x.shape[2], squared=True, group=8).sum((0, 2)).sqrt_()


def layer(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """``layer_l1``."""
    sums = deviations(x, anchors, cover, squared=False, group=1)
    out = torch.full((len(anchors), x.shape[0]), torch.inf, device=x.device)
    for a, anchor in enumerate(anchors):
        reach = min(cover, rows_of(anchor))
        if reach:
            out[a] = sums[:, a, :reach].sum(1) / (reach * x.shape[1] * x.shape[3])
    return out
