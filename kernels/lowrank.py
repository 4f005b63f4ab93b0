"""The fused correction of KVCMAS (arXiv 2609.34060): base plus weighted low-rank deltas, rotated, written in place.

``K = R(start + t) (K_base + sum_a w_a[t] Q_a[t] B_a)`` for every layer and head, V alike without the rotation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.operand import Matrix, floating, frequencies, matrices, placed, shaped, typed
from kernels.rope import rotate


def correct(
    keys: Tensor,
    values: Tensor,
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
        keys, values: destinations ``[L, H, T, D]``, one dtype; views of a preallocated cache are fine.
        base_k, base_v: de-rotated reference rows ``[L, H, T, D]``.
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
    rows = keys.shape[2]
    at = torch.arange(start, start + rows, device=keys.device)
    for layer in range(keys.shape[0]):
        k = base_k[layer].float()
        v = base_v[layer].float()
        if layer >= first_layer:
            k = k + _blend(deltas_k, weights_k, layer - first_layer, k)
            v = v + _blend(deltas_v, weights_v, layer - first_layer, v)
        keys[layer] = rotate(k, at, inv_freq, scaling)
        values[layer] = v


def _blend(deltas: Sequence[Matrix], weights: Tensor, layer: int, like: Tensor) -> Tensor:
    """Weighted sum of one layer's deltas, ``[H, T, D]`` fp32."""
    heads, rows, dim = like.shape
    out = like.new_zeros(rows, heads * dim)
    for weight, (left, right) in zip(weights, deltas, strict=True):
        reach = min(left.shape[1], weight.shape[0])
        delta = left[layer, :reach].float()
        if right is not None:
            delta = delta @ right[layer].float()
        out[:reach] += weight[:reach, None] * delta
    return out.view(rows, heads, dim).transpose(0, 1)


def _check(
    keys: Tensor,
    values: Tensor,
    base_k: Tensor,
    base_v: Tensor,
    deltas_k: Sequence[Matrix],
    deltas_v: Sequence[Matrix],
    weights_k: Tensor,
    weights_v: Tensor,
    inv_freq: Tensor,
    first_layer: int,
) -> None:
    device = keys.device
    floating("keys", keys, 4)
    layers, heads, rows, dim = keys.shape
    for name, tensor in (("values", values), ("base_k", base_k), ("base_v", base_v)):
        floating(name, tensor, 4)
        shaped(name, tensor, keys.shape)
        placed(name, tensor, device)
    typed("values", values, keys.dtype)
    typed("base_v", base_v, base_k.dtype)
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
