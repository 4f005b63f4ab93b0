"""Rotary position embedding on cached rows.

Angles are fp32 whatever the data type; frequencies and scaling come from the model. A dimension i is paired with
i + R/2 (half-split), dimensions from R on pass through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Implementation, chosen
from kernels.operand import Paged, floating, frequencies, pages, placed, shaped


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
    if x.dim() <= 4 and chosen(x.device) is Implementation.TRITON:
        from kernels.rope_triton import launch

        lift = (1,) * (4 - x.dim())
        launch(out.view(*lift, *x.shape), x[(None,) * (4 - x.dim())], positions, inv_freq, scaling)
        return out
    cos, sin = angles(positions, inv_freq, scaling)
    pieces = zip(x, out, strict=True) if x.dim() == 4 else ((x, out),)
    for source, target in pieces:
        if x.dtype == torch.float32:
            turn(target, source, cos, sin)
        else:
            wide = source.float()
            turned = torch.empty_like(wide)
            turn(turned, wide, cos, sin)
            target.copy_(turned)
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
    if chosen(x.device) is Implementation.TRITON:
        from kernels.rope_triton import launch

        launch(destination, x, positions, inv_freq, scaling)
        return
    cos, sin = angles(positions, inv_freq, scaling)
    for layer in range(x.shape[0]):
        wide = x[layer].float()
        turned = torch.empty_like(wide)
        turn(turned, wide, cos, sin)
        if isinstance(destination, Paged):
            destination.store(slice(layer, layer + 1), 0, turned[None])
        else:
            destination[layer].copy_(turned)


def angles(positions: Tensor, inv_freq: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Scaled cos and sin, fp32 ``[T, R / 2]`` each."""
    angle = positions.to(torch.float32)[:, None] * inv_freq[None, :]
    return angle.cos() * scaling, angle.sin() * scaling


def turn(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate fp32 ``x [..., T, D]`` into another fp32 tensor with two reads and two writes of each half."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    low, high = out[..., :half], out[..., half : 2 * half]
    torch.mul(a, cos, out=low)
    low.addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=high)
    high.addcmul_(a, sin)
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]


def _check(x: Tensor, positions: Tensor, inv_freq: Tensor, rows: int) -> None:
    floating("x", x, x.dim())
    shaped("positions", positions, (rows,))
    if positions.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"positions must be int64 or int32, got {positions.dtype}")
    placed("positions", positions, x.device)
    frequencies("inv_freq", inv_freq, x.shape[-1], x.device)
