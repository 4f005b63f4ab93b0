"""Rotary position embedding on cached rows.

Reference implementation. Angles are fp32 whatever the data type, frequencies come from the model.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> Tensor:
    """Rotate rows by their positions.

    Args:
        x: ``[..., T, D]`` floating point.
        positions: int64 ``[T]``; negative positions rotate back.
        inv_freq: fp32 ``[R / 2]`` with R <= D; dimension i is paired with i + R/2 (half-split), dimensions
            from R on pass through.
        scaling: factor on cos and sin.

    Returns:
        ``[..., T, D]`` in the dtype of ``x``.

    Raises:
        ValueError: naming the argument whose shape, dtype or device does not fit.
    """
    half = inv_freq.shape[0]
    if positions.dim() != 1 or positions.shape[0] != x.shape[-2]:
        raise ValueError(f"positions must be [T] with T = {x.shape[-2]}, got {tuple(positions.shape)}")
    if 2 * half > x.shape[-1]:
        raise ValueError(f"inv_freq has {half} frequencies, more than half of the head dimension {x.shape[-1]}")
    angle = positions.to(torch.float32)[:, None] * inv_freq.to(torch.float32)[None, :]
    cos, sin = angle.cos() * scaling, angle.sin() * scaling
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    out = torch.empty_like(x)
    out[..., :half] = a * cos - b * sin
    out[..., half : 2 * half] = b * cos + a * sin
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out
