"""Operands of the kernels: what an anchor matrix is, and the checks at the public boundary.

Every check raises a ``ValueError`` that names the argument, what was expected and what was found. Nothing is cast,
copied or moved to make an operand fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# One stored matrix per layer: low-rank ``left [Lx, n, r]`` and ``right [Lx, r, C]``, or raw ``(x [Lx, n, C], None)``.
Matrix = tuple[Tensor, Tensor | None]


def rows_of(matrix: Matrix) -> int:
    """n, the rows an anchor matrix reaches."""
    return int(matrix[0].shape[1])


def floating(name: str, tensor: Tensor, dim: int) -> None:
    """``tensor`` has ``dim`` dimensions, a kernel's floating dtype, and a unit stride along the last dimension."""
    if tensor.dim() != dim:
        raise ValueError(f"{name} must have {dim} dimensions, got shape {tuple(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32, bfloat16 or float16, got {tensor.dtype}")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous along its last dimension, got strides {tensor.stride()}")


def shaped(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def typed(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")


def placed(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, got {tensor.device}")


def matrices(name: str, anchors: Sequence[Matrix], layers: int, width: int, device: torch.device) -> None:
    """Every anchor is ``([layers, n, r], [layers, r, width])`` or ``([layers, n, width], None)``."""
    for index, (left, right) in enumerate(anchors):
        at = f"{name}[{index}]"
        floating(f"{at} left", left, 3)
        placed(f"{at} left", left, device)
        if right is None:
            shaped(f"{at} (raw)", left, (layers, left.shape[1], width))
            continue
        floating(f"{at} right", right, 3)
        placed(f"{at} right", right, device)
        if left.shape[0] != layers:
            raise ValueError(f"{at} left must have {layers} layers, got shape {tuple(left.shape)}")
        shaped(f"{at} right", right, (layers, left.shape[2], width))


def frequencies(name: str, inv_freq: Tensor, head_dim: int, device: torch.device) -> None:
    """``inv_freq`` is fp32 ``[R / 2]`` with R <= head_dim."""
    if inv_freq.dim() != 1 or 2 * inv_freq.shape[0] > head_dim:
        raise ValueError(f"{name} must be [R / 2] with R <= {head_dim}, got shape {tuple(inv_freq.shape)}")
    typed(name, inv_freq, torch.float32)
    placed(name, inv_freq, device)
