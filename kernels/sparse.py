"""Thresholded residuals as a bitmap and packed values: GraphFlow's codec (arXiv 2605.22566), applied and rotated.

The paper leaves the threshold open; here every layer keeps its largest entries by magnitude.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.dispatch import Implementation, chosen
from kernels.operand import floating, frequencies, placed, shaped, typed
from kernels.rope import angles, turn


def sparsify(x: Tensor, density: float) -> tuple[Tensor, Tensor]:
    """Keep the ``round(density * size)`` largest entries by magnitude of every layer.

    Ties are broken by index, so every layer keeps the same number of entries.

    Args:
        x: ``[L, ...]`` fp32, bf16 or fp16.
        density: kept share, 0..1.

    Returns:
        bitmap uint8 ``[L, ceil(size / 8)]`` with entry i of a layer at bit i % 8 of byte i // 8, and values
        ``[L, kept]`` in the dtype of x, in index order.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    floating("x", x, x.dim())
    if not 0 <= density <= 1:
        raise ValueError(f"density must be in 0..1, got {density}")
    flat = x.flatten(1)
    layers, size = flat.shape
    kept = round(density * size)
    padded = torch.zeros(layers, 8 * math.ceil(size / 8), dtype=torch.uint8, device=x.device)
    values = x.new_empty(layers, kept)
    for layer in range(layers if kept else 0):
        magnitude = flat[layer].abs().float()
        least = magnitude.kthvalue(size - kept + 1).values
        mask = magnitude > least
        tied = (magnitude == least).nonzero().flatten()
        mask[tied[: kept - int(mask.sum())]] = True
        padded[layer, :size] = mask
        values[layer] = flat[layer][mask]
    place = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=x.device)
    bitmap = (padded.view(layers, -1, 8) * place).sum(-1, dtype=torch.uint8)
    return bitmap, values


def apply(
    destination: Tensor,
    base: Tensor,
    bitmap: Tensor,
    values: Tensor,
    *,
    start: int | None = None,
    inv_freq: Tensor | None = None,
    scaling: float = 1.0,
    first_layer: int = 1,
) -> None:
    """Write ``R(start + t) (base + residual)`` into a cache; without ``start`` nothing is rotated (values).

    Args:
        destination: ``[L, H, T, D]``, a view of a preallocated cache is fine.
        base: ``[L, H, T, D]``, de-rotated.
        bitmap: uint8 ``[L - first_layer, ceil(H * T * D / 8)]``, as :func:`sparsify` makes it of ``[.., H, T, D]``.
        values: ``[L - first_layer, kept]``.
        start: position of row 0, or None.
        inv_freq: fp32 ``[R / 2]``, needed with ``start``; scaling: factor on cos and sin.
        first_layer: layers below are base only.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    floating("destination", destination, 4)
    floating("base", base, 4)
    shaped("base", base, destination.shape)
    placed("base", base, destination.device)
    layers, heads, rows, dim = destination.shape
    if not 0 <= first_layer <= layers:
        raise ValueError(f"first_layer must be in 0..{layers}, got {first_layer}")
    size = heads * rows * dim
    shaped("bitmap", bitmap, (layers - first_layer, math.ceil(size / 8)))
    typed("bitmap", bitmap, torch.uint8)
    placed("bitmap", bitmap, destination.device)
    floating("values", values, 2)
    shaped("values", values, (layers - first_layer, values.shape[1]))
    placed("values", values, destination.device)
    if start is not None and inv_freq is None:
        raise ValueError("inv_freq is needed to rotate: pass it together with start")
    if inv_freq is not None:
        frequencies("inv_freq", inv_freq, dim, destination.device)
    angle = None
    if start is not None and inv_freq is not None:
        angle = angles(torch.arange(start, start + rows, device=destination.device), inv_freq, scaling)
    if chosen(base.device) is Implementation.TRITON and dim % 8 == 0:
        from kernels.sparse_triton import launch

        launch(destination, base, bitmap, values, angle, first_layer)
        return
    place = torch.arange(8, dtype=torch.uint8, device=destination.device)
    for layer in range(layers):
        x = base[layer].float()
        if layer >= first_layer:
            index = layer - first_layer
            mask = ((bitmap[index, :, None] >> place) & 1).flatten()[:size].bool()
            residual = torch.zeros(size, device=x.device)
            residual[mask] = values[index].float()
            x = x + residual.view(heads, rows, dim)
        if angle is not None:
            turned = torch.empty_like(x)
            turn(turned, x, *angle)
            x = turned
        destination[layer] = x
