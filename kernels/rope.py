"""Rotary position embedding on cached rows.

Angles are fp32 whatever the data type; frequencies and scaling come from the model. A dimension i is paired with
i + R/2 (half-split), dimensions from R on pass through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Implementation, chosen
from kernels.operand import Paged, Scratch, floating, frequencies, pages, placed, shaped

TILE = 512  # rows of a tile
CELLS = 1 << 18  # entries of a tile, 1 MiB in fp32


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> Tensor:
    """Rotate rows by their positions.

    Args:
        x: ``[..., T, D]`` fp32, bf16 or fp16.
        positions: integers ``[T]``; negative positions rotate back, equal ones move all rows by a net offset.
        inv_freq: fp32 ``[R / 2]`` with R <= D.
        scaling: factor on cos and sin.

    Returns:
        ``[..., T, D]`` contiguous, in the dtype of ``x``; arithmetic is fp32 with one final rounding.

    Raises:
        ValueError: naming the argument whose shape, dtype or device does not fit.
    """
    if x.dim() < 2:
        raise ValueError(f"x must be [..., T, D], got shape {tuple(x.shape)}")
    _check(x, positions, inv_freq, x.shape[-2])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    source = x[(None,) * (4 - x.dim())] if x.dim() < 4 else x.flatten(0, -4)
    _place(out.view(source.shape), source, positions, inv_freq, scaling)
    return out


def place(destination: Tensor | Paged, x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> None:
    """Rotate ``x [L, H, T, D]`` straight into a cache: dense ``[L, H, T, D]`` (any strides) or paged.

    Arguments as :func:`rotate`; the destination has its own dtype.
    """
    floating("x", x, 4)
    _check(x, positions, inv_freq, x.shape[2])
    if isinstance(destination, Paged):
        pages("destination", destination, x.shape, x.device)
    else:
        floating("destination", destination, 4)
        shaped("destination", destination, x.shape)
        placed("destination", destination, x.device)
    _place(destination, x, positions, inv_freq, scaling)


def _place(destination: Tensor | Paged, x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float) -> None:
    """Checked operands, ``x [L, H, T, D]``; tiles of some rows of some layers, small enough for the caches."""
    if x.is_meta:  # sizes only
        return
    if chosen(x.device) is Implementation.TRITON:
        from kernels.rope_triton import launch

        launch(destination, x, positions, inv_freq, scaling)
        return
    layers, heads, rows, dim = x.shape
    cos, sin = angles(positions, inv_freq, scaling)
    tile = max(1, min(TILE, rows))
    group = max(1, min(CELLS // max(1, heads * tile * dim), layers))
    wide = Scratch(x, group * heads * tile * dim)
    turned = Scratch(x, group * heads * tile * dim)
    for low in range(0, layers, group):
        span = slice(low, min(low + group, layers))
        for begin in range(0, rows, tile):
            end = min(begin + tile, rows)
            source = x[span, :, begin:end]
            if x.dtype != torch.float32:
                source = wide.take(*source.shape).copy_(source)
            if not isinstance(destination, Paged) and destination.dtype == torch.float32:
                turn(destination[span, :, begin:end], source, cos[begin:end], sin[begin:end])
                continue
            target = turned.take(*source.shape)
            turn(target, source, cos[begin:end], sin[begin:end])
            if isinstance(destination, Paged):
                destination.store(span, begin, target)
            else:
                destination[span, :, begin:end].copy_(target)


def angles(positions: Tensor, inv_freq: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Scaled cos and sin, fp32 ``[T, R / 2]`` each."""
    angle = positions.to(torch.float32)[:, None] * inv_freq[None, :]
    return angle.cos() * scaling, angle.sin() * scaling


def turn(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate fp32 ``x [..., T, D]`` into another fp32 tensor: one pass over whole rows, one over each half."""
    half = cos.shape[-1]
    torch.mul(x[..., : 2 * half], cos.repeat(1, 2), out=out[..., : 2 * half])
    out[..., :half].addcmul_(x[..., half : 2 * half], sin, value=-1)
    out[..., half : 2 * half].addcmul_(x[..., :half], sin)
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]


def _check(x: Tensor, positions: Tensor, inv_freq: Tensor, rows: int) -> None:
    floating("x", x, x.dim())
    shaped("positions", positions, (rows,))
    if positions.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"positions must be int64 or int32, got {positions.dtype}")
    placed("positions", positions, x.device)
    frequencies("inv_freq", inv_freq, x.shape[-1], x.device)
