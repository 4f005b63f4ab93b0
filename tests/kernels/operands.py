"""Inputs and comparisons that the kernel tests share."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {
    torch.float32: 1e-5,  # order of summation
    torch.float16: 2e-3,  # one rounding of the result, one of a weighted factor
    torch.bfloat16: 1e-2,  # the same with 8 bits; the interpreter truncates
}


def relative(found: Tensor, expected: Tensor) -> float:
    """Relative RMS error; a NaN or inf where the other side has none is an error of its own."""
    assert found.shape == expected.shape
    found, expected = found.double(), expected.double()
    assert torch.equal(found.isfinite(), expected.isfinite()), "not finite in different places"
    assert torch.equal(found.isnan(), expected.isnan()), "NaN in different places"
    found, expected = found[found.isfinite()], expected[expected.isfinite()]
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12)) if expected.numel() else 0.0


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies(rotated: int) -> Tensor:
    return 1e4 ** (-torch.arange(rotated // 2) / max(rotated // 2, 1))


def span(layers: int, heads: int, rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(layers, heads, rows, dim, generator=generator(seed)).to(dtype)


def pool(
    layers: int, reaches: list[tuple[int, int | None]], width: int, dtype: torch.dtype = torch.float32, seed: int = 1
) -> list[tuple[Tensor, Tensor | None]]:
    """Anchors given as (rows, rank); rank None is raw."""
    draw = generator(seed)
    anchors: list[tuple[Tensor, Tensor | None]] = []
    for rows, rank in reaches:
        if rank is None:
            anchors.append((torch.randn(layers, rows, width, generator=draw).to(dtype), None))
        else:
            left = torch.randn(layers, rows, rank, generator=draw) / max(rank, 1) ** 0.5
            anchors.append((left.to(dtype), torch.randn(layers, rank, width, generator=draw).to(dtype)))
    return anchors


def expanded(anchor: tuple[Tensor, Tensor | None]) -> Tensor:
    left, right = anchor
    return left.double() if right is None else left.double() @ right.double()


def flat(x: Tensor) -> Tensor:
    """``[L, H, T, D]`` -> fp64 ``[L, T, H * D]``."""
    return x.double().transpose(1, 2).flatten(2)


def turned(x: Tensor, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> Tensor:
    """Rotation as complex multiplication in fp64: independent of the kernels' arithmetic."""
    half = inv_freq.shape[0]
    x = x.double()
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    angle = (positions.float()[:, None] * inv_freq[None, :]).double()
    pairs = pairs * torch.polar(torch.full_like(angle, scaling), angle)
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * half :]], -1)


def softmaxed(anchors: int, cover: int, seed: int = 2) -> Tensor:
    return torch.softmax(torch.randn(anchors, cover, generator=generator(seed)), 0)
