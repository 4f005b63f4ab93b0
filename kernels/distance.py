"""Distances of a span to every anchor of a pool, and the softmax weights made of them.

The L1 forms are the paper's (KVCMAS, arXiv 2609.34060; KVComm, 2510.12872): they need the anchors' rows, which are
expanded a tile at a time. The L2 forms need no expansion: with x the span, Q and B an anchor's factors,
``|x_t - Q_t B|^2 = |x_t|^2 - 2 <x_t B^T, Q_t> + Q_t (B B^T) Q_t^T``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.operand import Matrix, floating, matrices, rows_of


def token_l1(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Mean absolute deviation of every row from the same row of every anchor, over layers, heads and dimensions.

    Args:
        x: ``[L, H, T, D]``.
        anchors: A matrices of L layers and width H * D.
        cover: rows compared, 0 <= cover <= T.

    Returns:
        fp32 ``[A, cover]``; inf for rows that an anchor does not reach.
    """
    _check(x, anchors, cover)
    out = _far(x, anchors, cover)
    for a, anchor in enumerate(anchors):
        reach = min(cover, rows_of(anchor))
        total = torch.zeros(reach, device=x.device)
        for layer in range(x.shape[0]):
            total += _difference(x, anchor, layer, reach).abs().sum(1)
        out[a, :reach] = total / _entries(x)
    return out


def token_l2(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Root mean square deviation of every row, arguments and result as :func:`token_l1`; anchors stay factors."""
    _check(x, anchors, cover)
    out = _far(x, anchors, cover)
    for a, anchor in enumerate(anchors):
        reach = min(cover, rows_of(anchor))
        out[a, :reach] = (_squares(x, anchor, reach).sum(0) / _entries(x)).sqrt()
    return out


def span_l2(x: Tensor, anchors: Sequence[Matrix]) -> Tensor:
    """Frobenius distance of all T rows of ``x [L, H, T, D]`` to the first T rows of every anchor, fp32 ``[A]``.

    Raises:
        ValueError: if an anchor has fewer than T rows, or naming another argument that does not fit.
    """
    rows = x.shape[-2] if x.dim() == 4 else 0
    _check(x, anchors, rows)
    for index, anchor in enumerate(anchors):
        if rows_of(anchor) < rows:
            raise ValueError(f"anchors[{index}] must have at least {rows} rows, got {rows_of(anchor)}")
    out = torch.zeros(len(anchors), device=x.device)
    for a, anchor in enumerate(anchors):
        out[a] = _squares(x, anchor, rows).sum().sqrt()
    return out


def layer_l1(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """Mean absolute deviation per anchor and layer over the first ``cover`` rows (those the anchor reaches), heads
    and dimensions, fp32 ``[A, L]``; inf for an anchor without rows."""
    _check(x, anchors, cover)
    out = torch.full((len(anchors), x.shape[0]), torch.inf, device=x.device)
    for a, anchor in enumerate(anchors):
        reach = min(cover, rows_of(anchor))
        for layer in range(x.shape[0] if reach else 0):
            out[a, layer] = _difference(x, anchor, layer, reach).abs().mean()
    return out


def channel_l2(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    """L2 norm of the deviation over the first ``cover`` rows (those the anchor reaches) per anchor, layer, head and
    dimension, fp32 ``[A, L, H, D]``; inf for an anchor without rows."""
    _check(x, anchors, cover)
    layers, heads, _, dim = x.shape
    out = torch.full((len(anchors), layers, heads, dim), torch.inf, device=x.device)
    for a, anchor in enumerate(anchors):
        reach = min(cover, rows_of(anchor))
        for layer in range(layers if reach else 0):
            out[a, layer] = torch.linalg.vector_norm(_difference(x, anchor, layer, reach), dim=0).view(heads, dim)
    return out


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


def _rows(x: Tensor, layer: int, rows: int) -> Tensor:
    """Rows of one layer with heads concatenated, fp32 ``[rows, H * D]``."""
    return x[layer, :, :rows].transpose(0, 1).flatten(1).float()


def _difference(x: Tensor, anchor: Matrix, layer: int, rows: int) -> Tensor:
    left, right = anchor[0][layer, :rows].float(), anchor[1]
    return _rows(x, layer, rows) - (left if right is None else left @ right[layer].float())


def _squares(x: Tensor, anchor: Matrix, rows: int) -> Tensor:
    """Squared deviation of every row and layer, ``[L, rows]``."""
    left, right = anchor
    out = []
    for layer in range(x.shape[0]):
        flat, factor = _rows(x, layer, rows), left[layer, :rows].float()
        if right is None:
            out.append((flat - factor).square().sum(1))
            continue
        basis = right[layer].float()
        inner = factor @ (basis @ basis.mT) - 2 * (flat @ basis.mT)
        out.append((flat.square().sum(1) + (inner * factor).sum(1)).clamp_min(0))
    return torch.stack(out) if out else x.new_zeros(0, rows, dtype=torch.float32)


def _far(x: Tensor, anchors: Sequence[Matrix], cover: int) -> Tensor:
    return torch.full((len(anchors), cover), torch.inf, device=x.device)


def _entries(x: Tensor) -> int:
    return x.shape[0] * x.shape[1] * x.shape[3]


def _check(x: Tensor, anchors: Sequence[Matrix], cover: int) -> None:
    floating("x", x, 4)
    layers, heads, rows, dim = x.shape
    matrices("anchors", anchors, layers, heads * dim, x.device)
    if not 0 <= cover <= rows:
        raise ValueError(f"cover must be in 0..{rows}, got {cover}")
