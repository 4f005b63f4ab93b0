"""Distances of a span to every anchor of a pool, and the softmax weights made of them.

The L1 forms are the paper's (KVCMAS, arXiv 2609.34060; KVComm, 2510.12872): they need the anchors' rows, which are
expanded a tile at a time. The L2 forms need no expansion: with x the span, Q and B an anchor's factors,
``|x_t - Q_t B|^2 = |x_t|^2 - 2 <x_t B^T, Q_t> + Q_t (B B^T) Q_t^T``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.dispatch import Implementation, chosen, narrow
from kernels.operand import Matrix, Scratch, floating, matrices, rows_of

ROWS = 2048  # rows of all layers of a tile together: an expanded tile stays in the caches of the cores
TILE = 1024  # rows of one layer of a tile


def token_l1(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Mean absolute deviation of every row from the same row of every anchor, over layers, heads and dimensions.

    Args:
        x: ``[L, H, T, D]``.
        anchors: A matrices of L layers and width H * D.
        cover: rows compared, 0 <= cover <= T.

    Returns:
        fp32 ``[A, cover]``; inf for rows that an anchor does not reach.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    _check(x, anchors, cover)
    if chosen(x.device) is Implementation.TRITON:
        from kernels.distance_triton import token

        return token(x, anchors, cover, squared=False)
    out = _reached(x, anchors, cover)
    slim = [(a, left, right) for a, (left, right) in enumerate(anchors) if right is not None and narrow(left, right)]
    if slim:
        from kernels.distance_bf16 import add_token_l1

        add_token_l1(out, x, slim, cover)
    done = {a for a, _, _ in slim}
    rest = [a for a in range(len(anchors)) if a not in done]

    def absolute(index: int, layers: slice, rows: slice, off: Tensor) -> None:
        out[rest[index], rows] += off.abs_().sum(2).sum(0)

    _expand(x, [anchors[a] for a in rest], cover, absolute)
    return out.div_(_entries(x))


def token_l2(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Root mean square deviation of every row, arguments and result as :func:`token_l1`.

    Low-rank anchors stay factors: ``sum_l |x_t|^2 + <Q_t (B B^T) - 2 x_t B^T, Q_t>``. The three terms cancel where a
    row is very near, so distances below about 1e-3 of the row's norm are only known to be that small.
    """
    _check(x, anchors, cover)
    if chosen(x.device) is Implementation.TRITON:
        from kernels.distance_triton import token

        return token(x, anchors, cover, squared=True)
    out = _reached(x, anchors, cover)
    norms = torch.zeros(cover, device=x.device)
    group, tile = _tiling(x, cover)
    flat = Scratch(x, group * tile * _width(x))
    thin = [(a, left, right) for a, (left, right) in enumerate(anchors) if right is not None]
    rank = sum(right.shape[1] for _, _, right in thin)
    inner = Scratch(x, group * tile * rank)
    for layers in _slices(x.shape[0], group):
        rights = torch.cat([right[layers].float() for _, _, right in thin], 1) if thin else None
        grams = [(basis := right[layers].float()) @ basis.mT for _, _, right in thin]
        for rows in _slices(cover, tile):
            wide = _flatten(x, layers, rows, flat)
            norms[rows] += torch.linalg.vecdot(wide, wide).sum(0)
            if rights is None:
                continue
            cross = torch.bmm(wide, rights.mT, out=inner.take(wide.shape[0], wide.shape[1], rank))
            column = 0
            for (a, left, right), gram in zip(thin, grams, strict=True):
                part = cross[..., column : column + right.shape[1]]
                column += right.shape[1]
                live = max(0, min(rows_of((left, right)), rows.stop) - rows.start)
                if live:
                    factor = left[layers, rows.start : rows.start + live].float()
                    quadratic = torch.baddbmm(part[:, :live], factor, gram, beta=-2)
                    out[a, rows.start : rows.start + live] += quadratic.mul_(factor).sum(2).sum(0)
    for a, _, _ in thin:
        out[a] += norms
    raw = [(a, anchor) for a, anchor in enumerate(anchors) if anchor[1] is None]

    def squared(index: int, layers: slice, rows: slice, off: Tensor) -> None:
        out[raw[index][0], rows] += off.square_().sum(2).sum(0)

    _expand(x, [anchor for _, anchor in raw], cover, squared)
    return out.clamp_min_(0).div_(_entries(x)).sqrt_()


def span_l2(x: Tensor, anchors: Sequence[Matrix]) -> Tensor:
    """Frobenius distance of all T rows of ``x [L, H, T, D]`` to the first T rows of every anchor, fp32 ``[A]``.

    Low-rank anchors stay factors: ``|X|^2 + sum_l <(Q^T Q) B - 2 Q^T X, B>``, matrix products only.

    Raises:
        ValueError: if an anchor has fewer than T rows, or naming another argument that does not fit.
    """
    _check(x, anchors, x.shape[2] if x.dim() == 4 else 0)
    total = x.shape[2]
    for index, anchor in enumerate(anchors):
        if rows_of(anchor) < total:
            raise ValueError(f"anchors[{index}] must have at least {total} rows, got {rows_of(anchor)}")
    if chosen(x.device) is Implementation.TRITON:
        from kernels.distance_triton import span

        return span(x, anchors)
    raw = torch.zeros(len(anchors), device=x.device)
    folded = torch.zeros(len(anchors), device=x.device)
    norm = torch.zeros((), device=x.device)
    group, tile = _tiling(x, total)
    flat = Scratch(x, group * tile * _width(x))
    for layers in _slices(x.shape[0], group):
        rights = [None if right is None else right[layers].float() for _, right in anchors]
        sums = [
            None if right is None else (right.new_zeros(*right.shape[:2], right.shape[1]), torch.zeros_like(right))
            for right in rights
        ]
        for rows in _slices(total, tile):
            wide = _flatten(x, layers, rows, flat)
            norm += torch.linalg.vector_norm(wide).square()
            for a, ((left, _), pair) in enumerate(zip(anchors, sums, strict=True)):
                factor = left[layers, rows].float()
                if pair is None:
                    raw[a] += torch.linalg.vector_norm(wide - factor).square()
                else:
                    pair[0].baddbmm_(factor.mT, factor)
                    pair[1].baddbmm_(factor.mT, wide)
        for a, (right, pair) in enumerate(zip(rights, sums, strict=True)):
            if right is not None and pair is not None:
                folded[a] += ((pair[0] @ right).sub_(pair[1], alpha=2) * right).sum()
    thin = torch.tensor([right is not None for _, right in anchors], device=x.device)
    return torch.where(thin, norm + folded, raw).clamp_min_(0).sqrt_()


def layer_l1(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Mean absolute deviation per anchor and layer over the first ``cover`` rows (those the anchor reaches), heads
    and dimensions, fp32 ``[A, L]``; inf for an anchor without rows."""
    _check(x, anchors, cover)
    if chosen(x.device) is Implementation.TRITON:
        from kernels.distance_triton import layer

        return layer(x, anchors, cover)
    out = torch.zeros(len(anchors), x.shape[0], device=x.device)

    def absolute(a: int, layers: slice, rows: slice, off: Tensor) -> None:
        out[a, layers] += off.abs_().sum(2).sum(1)

    _expand(x, anchors, cover, absolute)
    entries = torch.tensor([float(min(cover, rows_of(anchor)) * _width(x)) for anchor in anchors], device=x.device)
    return torch.where(entries[:, None] > 0, out / entries[:, None].clamp_min(1), torch.inf)


def channel_l2(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """L2 norm of the deviation over the first ``cover`` rows (those the anchor reaches) per anchor, layer, head and
    dimension, fp32 ``[A, L, H, D]``; inf for an anchor without rows."""
    _check(x, anchors, cover)
    layers, heads, _, dim = x.shape
    out = torch.zeros(len(anchors), layers, heads * dim, device=x.device)

    def squared(a: int, layers: slice, rows: slice, off: Tensor) -> None:
        out[a, layers] += off.square_().sum(1)

    _expand(x, anchors, cover, squared)
    for a, anchor in enumerate(anchors):
        if not min(cover, rows_of(anchor)):
            out[a] = torch.inf
    return out.sqrt_().view(len(anchors), layers, heads, dim)


def softmax_weights(distance: Tensor, temperature: float) -> Tensor:
    """Softmax of ``-distance / temperature`` over the anchors.

    Args:
        distance: fp32 ``[A, ...]``, inf for an anchor that cannot take part.
        temperature: > 0.

    Returns:
        fp32 ``[A, ...]``; an infinite distance has weight 0, where all are infinite every weight is 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if distance.dtype != torch.float32 or distance.dim() < 1:
        raise ValueError(f"distance must be float32 [A, ...], got {distance.dtype} {tuple(distance.shape)}")
    if not distance.shape[0]:
        return distance.clone()
    return torch.softmax(-distance / temperature, 0).nan_to_num_(nan=0.0)


def _expand(
    x: Tensor, anchors: Sequence[Matrix], cover: int, visit: Callable[[int, slice, slice, Tensor], None]
) -> None:
    """Call ``visit(anchor, layers, rows, x - anchor)`` tile by tile; the fp32 tile ``[l, t, C]`` is the visitor's."""
    if not anchors:
        return
    group, tile = _tiling(x, cover)
    flat = Scratch(x, group * tile * _width(x))
    scratch = Scratch(x, group * tile * _width(x))
    for layers in _slices(x.shape[0], group):
        rights = [None if right is None else right[layers].float() for _, right in anchors]
        for rows in _slices(cover, tile):
            wide = _flatten(x, layers, rows, flat)
            for a, ((left, _), right) in enumerate(zip(anchors, rights, strict=True)):
                live = max(0, min(left.shape[1], rows.stop) - rows.start)
                if not live:
                    continue
                part = slice(rows.start, rows.start + live)
                off = scratch.take(wide.shape[0], live, wide.shape[2])
                factor = left[layers, part]
                if right is None:
                    torch.sub(wide[:, :live], factor, out=off)
                else:
                    torch.baddbmm(wide[:, :live], factor.float(), right, alpha=-1, out=off)
                visit(a, layers, part, off)


def _tiling(x: Tensor, rows: int) -> tuple[int, int]:
    """Layers and rows of a tile."""
    tile = max(1, min(TILE, rows))
    return max(1, min(ROWS // tile, x.shape[0])), tile


def _slices(size: int, step: int) -> list[slice]:
    return [slice(begin, min(begin + step, size)) for begin in range(0, size, step)]


def _flatten(x: Tensor, layers: slice, rows: slice, scratch: Scratch) -> Tensor:
    """Rows of some layers with heads concatenated, fp32 ``[l, t, H * D]``."""
    part = x[layers, :, rows].transpose(1, 2)
    out = scratch.take(*part.shape)
    return out.copy_(part).flatten(2)


def _reached(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Zero where an anchor has the row, inf elsewhere, ``[A, cover]``."""
    out = torch.full((len(anchors), cover), torch.inf, device=x.device)
    for a, anchor in enumerate(anchors):
        out[a, : rows_of(anchor)] = 0
    return out


def _width(x: Tensor) -> int:
    return x.shape[1] * x.shape[3]


def _entries(x: Tensor) -> int:
    return x.shape[0] * _width(x)


def _check(x: Tensor, anchors: Sequence[Matrix], cover: int) -> None:
    floating("x", x, 4)
    layers, heads, rows, dim = x.shape
    matrices("anchors", anchors, layers, heads * dim, x.device)
    if not 0 <= cover <= rows:
        raise ValueError(f"cover must be in 0..{rows}, got {cover}")
