"""L1 distances on processors with units for bf16 products; see ``kernels.distance`` for the specification.

An expanded tile is bf16: the product subtracts itself from the span's rows in fp32 and is rounded once, so what is
rounded is the difference. Keys come here de-rotated in fp32 and are rounded too, as the cache they were read from was.
Sums over a block of columns are a product with zeros and ones, again with fp32 sums, which costs less than a reduction;
thousands of such sums make one distance, so their rounding does not show.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.operand import Scratch

CELLS = 3 << 19  # entries of a tile: large enough for the overhead of a product, small enough to stay near the cores
TILE = 1024  # rows of one layer of a tile
BLOCKS = 8  # sums of a row, which the following fp32 reduction adds


def add_token_l1(out: Tensor, x: Tensor, anchors: Sequence[tuple[int, Tensor, Tensor]], cover: int) -> None:
    """Add ``|x - left @ right|``, summed over layers, heads and dimensions, to fp32 ``out [A, cover]``.

    Args:
        x: ``[L, H, T, D]``.
        anchors: rows of ``out`` with bf16 factors ``[L, n, r]`` and ``[L, r, H * D]``.
    """
    layers, heads, _, dim = x.shape
    width = heads * dim
    tile = max(1, min(TILE, cover, CELLS // max(1, width)))
    group = max(1, min(CELLS // max(1, tile * width), layers))
    flat, expanded = (Scratch(x, group * tile * width, torch.bfloat16) for _ in range(2))
    partial = Scratch(x, group * tile * BLOCKS, torch.bfloat16)
    column = torch.arange(width, device=x.device)[:, None]
    ones = (column * BLOCKS // max(1, width) == torch.arange(BLOCKS, device=x.device)).to(torch.bfloat16)  # [C, BLOCKS]
    for low in range(0, layers, group):
        span = slice(low, min(low + group, layers))
        for begin in range(0, cover, tile):
            source = x[span, :, begin : min(begin + tile, cover)].transpose(1, 2)
            rows = flat.take(*source.shape).copy_(source).flatten(2)  # [l, t, C]
            for a, left, right in anchors:
                live = min(left.shape[1] - begin, rows.shape[1])
                if live <= 0:
                    continue
                off = expanded.take(rows.shape[0], live, width).copy_(rows[:, :live])
                off.baddbmm_(left[span, begin : begin + live], right[span], alpha=-1).abs_()
                sums = torch.mm(off.flatten(0, 1), ones, out=partial.take(off.shape[0] * live, BLOCKS))
                out[a, begin : begin + live] += sums.view(-1, live, BLOCKS).float().sum((0, 2))
