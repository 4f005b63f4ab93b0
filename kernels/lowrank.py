"""The fused correction of KVCMAS (arXiv 2609.34060): base plus weighted low-rank deltas, rotated, written in place.

``K = R(start + t) (K_base + sum_a w_a[t] Q_a[t] B_a)`` for every layer and head, V alike without the rotation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.dispatch import Implementation, chosen, narrow
from kernels.operand import Matrix, Paged, Scratch, floating, frequencies, matrices, pages, placed, shaped, typed
from kernels.rope import angles, turn

TILE = 512  # rows of a tile: large enough for the matrix product, small enough that scratch stays near the cores
ROWS = 2048  # rows of all layers of a tile together
GROUP = 8  # layers of a tile at most, when spans are short


def correct(
    keys: Tensor | Paged,
    values: Tensor | Paged,
    base_k: Tensor,
    base_v: Tensor,
    deltas_k: Sequence[Matrix],
    deltas_v: Sequence[Matrix],
    weights_k: Tensor,
    weights_v: Tensor,
    *,
    start: int,
    inv_freq: Tensor,
    scaling: float = 1.0,
    first_layer: int = 1,
) -> None:
    """Write corrected keys and values of T consecutive rows into a cache.

    Args:
        keys, values: destinations ``[L, H, T, D]`` (views of a preallocated cache are fine), or paged caches.
        base_k, base_v: de-rotated reference rows ``[L, H, T, D]``, each of its own dtype.
        deltas_k, deltas_v: A anchors over layers ``first_layer..``, see ``kernels.operand.Matrix``. An anchor with
            fewer than ``cover`` rows contributes to its own rows only.
        weights_k, weights_v: fp32 ``[A, cover]``, cover <= T; rows from ``cover`` on get no correction.
        start: position of row 0.
        inv_freq: fp32 ``[R / 2]``; scaling: factor on cos and sin.
        first_layer: layers below are the rotated base.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    _check(keys, values, base_k, base_v, deltas_k, deltas_v, weights_k, weights_v, inv_freq, first_layer)
    if chosen(base_k.device) is Implementation.TRITON:
        from kernels.lowrank_triton import launch

        launch(
            keys,
            values,
            base_k,
            base_v,
            deltas_k,
            deltas_v,
            weights_k,
            weights_v,
            start,
            inv_freq,
            scaling,
            first_layer,
        )
        return
    at = torch.arange(start, start + base_k.shape[2], device=base_k.device)
    _side(keys, base_k, deltas_k, weights_k, first_layer, angles(at, inv_freq, scaling))
    _side(values, base_v, deltas_v, weights_v, first_layer, None)


def _side(
    destination: Tensor | Paged,
    base: Tensor,
    deltas: Sequence[Matrix],
    weights: Tensor,
    first_layer: int,
    angle: tuple[Tensor, Tensor] | None,
) -> None:
    """Keys (with cos and sin) or values.

    Tiles of a few layers and rows go through scratch buffers made once: weighted left factors side by side along the
    rank, right factors below each other, their product. No delta exists whole. Where factors are narrow
    (:func:`kernels.dispatch.narrow`), so are the weighted ones and the product.
    """
    layers, heads, rows, dim = base.shape
    cover = weights.shape[1] if deltas else 0
    corrected = layers - first_layer if cover else 0
    thin = [(a, left, right) for a, (left, right) in enumerate(deltas) if right is not None]
    raw = [(a, left) for a, (left, right) in enumerate(deltas) if right is None]
    rank = sum(right.shape[1] for _, _, right in thin)
    slim = bool(thin) and not raw and narrow(*(x for _, *pair in thin for x in pair))
    kind = torch.bfloat16 if slim else torch.float32
    held = destination.pages if isinstance(destination, Paged) else destination
    # Without a rotation to come, a base of the product's type joins its fp32 sum: one rounding, one pass less.
    joined = angle is None and base.dtype == held.dtype == kind
    tile = min(TILE, max(rows, 1))
    group = min(GROUP, max(1, ROWS // tile), max(layers, 1))
    spread = weights.to(kind)
    scaled = Scratch(base, group * min(tile, cover) * rank, kind)
    stacked = Scratch(base, group * rank * heads * dim, kind)
    sums = Scratch(base, group * tile * heads * dim, kind)
    wide = Scratch(base, group * tile * heads * dim)
    turned = Scratch(base, group * tile * heads * dim)

    def finish(span: slice, begin: int, end: int, delta: Tensor | None) -> None:
        """Add the base, rotate, and write one tile of the layers ``span``."""
        source = base[span, :, begin:end]
        dense = None if isinstance(destination, Paged) else destination[span, :, begin:end]
        if delta is None:
            out = source
        elif joined:
            out = delta
        else:
            out = (delta if kind == torch.float32 else wide.take(*source.shape).copy_(delta)).add_(source)
        if angle is not None:
            if out.dtype != torch.float32:
                out = wide.take(*source.shape).copy_(out)
            target = dense if dense is not None and dense.dtype == torch.float32 else turned.take(*source.shape)
            turn(target, out, angle[0][begin:end], angle[1][begin:end])
            out = target
        if isinstance(destination, Paged):
            destination.store(span, begin, out)
        elif dense is not None and out is not dense:
            dense.copy_(out)

    for below in range(0, layers - corrected, group):
        span = slice(below, min(below + group, layers - corrected))
        for begin in range(0, rows, tile):
            finish(span, begin, min(begin + tile, rows), None)
    for low in range(0, corrected, group):
        high = min(low + group, corrected)
        span = slice(first_layer + low, first_layer + high)
        rights = stacked.take(high - low, rank, heads * dim)
        torch.cat([right[low:high] for _, _, right in thin], 1, out=rights) if thin else None
        for begin in range(0, cover, tile):
            end = min(begin + tile, cover)
            factors = scaled.take(high - low, end - begin, rank)
            _weight(factors, thin, spread, slice(low, high), begin, end)
            delta = sums.take(high - low, end - begin, heads * dim)
            shown = delta.view(high - low, end - begin, heads, dim).transpose(1, 2)
            if joined:
                shown.copy_(base[span, :, begin:end])
                delta.baddbmm_(factors, rights)
            else:
                torch.bmm(factors, rights, out=delta)
            for a, left in raw:
                live = max(0, min(left.shape[1], end) - begin)
                delta[:, :live].addcmul_(
                    left[low:high, begin : begin + live].float(), weights[a, begin : begin + live, None]
                )
            finish(span, begin, end, shown)
        for begin in range(cover, rows, tile):
            finish(span, begin, min(begin + tile, rows), None)


def _weight(
    out: Tensor, thin: Sequence[tuple[int, Tensor, Tensor]], weights: Tensor, layers: slice, begin: int, end: int
) -> None:
    """Left factors of rows ``begin .. end - 1``, side by side in ``out [l, t, rank]``, each times its anchor's row of
    ``weights [A, cover]``; zero in rows that an anchor does not reach."""
    column = 0
    for a, left, right in thin:
        live = max(0, min(left.shape[1], end) - begin)
        part = out[..., column : column + right.shape[1]]
        column += right.shape[1]
        torch.mul(left[layers, begin : begin + live], weights[a, begin : begin + live, None], out=part[:, :live])
        part[:, live:].zero_()


def _check(
    keys: Tensor | Paged,
    values: Tensor | Paged,
    base_k: Tensor,
    base_v: Tensor,
    deltas_k: Sequence[Matrix],
    deltas_v: Sequence[Matrix],
    weights_k: Tensor,
    weights_v: Tensor,
    inv_freq: Tensor,
    first_layer: int,
) -> None:
    device = base_k.device
    floating("base_k", base_k, 4)
    layers, heads, rows, dim = base_k.shape
    floating("base_v", base_v, 4)
    shaped("base_v", base_v, base_k.shape)
    placed("base_v", base_v, device)
    for name, target in (("keys", keys), ("values", values)):
        if isinstance(target, Paged):
            pages(name, target, base_k.shape, device)
        else:
            floating(name, target, 4)
            shaped(name, target, base_k.shape)
            placed(name, target, device)
    frequencies("inv_freq", inv_freq, dim, device)
    if not 0 <= first_layer <= layers:
        raise ValueError(f"first_layer must be in 0..{layers}, got {first_layer}")
    for side, deltas, weights in (("k", deltas_k, weights_k), ("v", deltas_v, weights_v)):
        matrices(f"deltas_{side}", deltas, layers - first_layer, heads * dim, device)
        name = f"weights_{side}"
        typed(name, weights, torch.float32)
        placed(name, weights, device)
        if weights.dim() != 2 or weights.shape[0] != len(deltas) or weights.shape[1] > rows:
            raise ValueError(
                f"{name} must be [A, cover] with A = {len(deltas)} and cover <= {rows}, got {tuple(weights.shape)}"
            )
    if len(deltas_k) != len(deltas_v):
        raise ValueError(f"deltas_v must have as many anchors as deltas_k ({len(deltas_k)}), got {len(deltas_v)}")
    shaped("weights_v", weights_v, weights_k.shape)
