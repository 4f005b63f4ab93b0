"""How one matrix of a pool is stored: in full, or as low-rank factors where that is smaller.

A matrix here is the cache of n tokens at every stored layer, heads concatenated: ``[Lx, n, C]``, KVCMAS (arXiv
2609.34060) section 4. Factors take r (n + C) elements a layer instead of n C, which saves memory only from
n > r C / (C - r) on; shorter matrices stay raw. Keys and values of one delta may share their left factor
(:class:`Joint`): r (n + 2 C) instead of 2 r (n + C) for the two.

Tensors without storage (torch's meta device) are stored without storage, which tells the size of a pool on any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.factor import factorise, factorise_joint

Operand = tuple[Tensor, Tensor | None]


class Matrix(Protocol):
    """A stored matrix of n rows per layer.

    Attributes:
        residual: Frobenius norm of what the stored form lost, over all layers (0 for a raw matrix).
    """

    @property
    def residual(self) -> float: ...

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def operand(self, rows: int) -> Operand:
        """The first ``rows`` rows as kernels take them, views."""

    def scaled(self, channels: Tensor) -> Matrix:
        """Columns of every layer multiplied by ``channels [Lx, C]``, fp32."""

    def tensors(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Raw:
    """``x [Lx, n, C]``."""

    x: Tensor

    @property
    def residual(self) -> float:
        return 0.0

    def __len__(self) -> int:
        return int(self.x.shape[1])

    @property
    def nbytes(self) -> int:
        return self.x.nbytes

    def operand(self, rows: int) -> Operand:
        return self.x[:, :rows], None

    def scaled(self, channels: Tensor) -> Matrix:
        return Raw(self.x.float() * channels[:, None])

    def tensors(self) -> dict[str, Tensor]:
        return {"x": self.x}


@dataclass(frozen=True, eq=False)
class LowRank:
    """``left [Lx, n, r] @ right [Lx, r, C]``."""

    left: Tensor
    right: Tensor
    residual: float

    def __len__(self) -> int:
        return int(self.left.shape[1])

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def operand(self, rows: int) -> Operand:
        return self.left[:, :rows], self.right

    def scaled(self, channels: Tensor) -> Matrix:
        return LowRank(self.left, self.right.float() * channels[:, None], self.residual)

    def tensors(self) -> dict[str, Tensor]:
        return {"left": self.left, "right": self.right}


def matrix(tensors: Mapping[str, Tensor], residual: float) -> Matrix:
    """The inverse of :meth:`Matrix.tensors`."""
    if "x" in tensors:
        return Raw(tensors["x"])
    return LowRank(tensors["left"], tensors["right"], residual)


class Codec(Protocol):
    """How a matrix is stored."""

    def encode(self, x: Tensor, seed: int) -> Matrix:
        """``x [Lx, H, n, D]`` -> its stored form over width C = H * D."""


@dataclass(frozen=True)
class Full:
    """Every entry, in ``dtype``."""

    dtype: torch.dtype

    def encode(self, x: Tensor, seed: int) -> Matrix:
        return Raw(_flat(x).to(self.dtype))


@dataclass(frozen=True)
class Truncated:
    """The leading ``rank`` components, raw below break-even.

    Attributes:
        balanced: spread the singular values over both factors. Otherwise the right factor carries them all, which
            overflows float16 on models with large key biases.
    """

    rank: int
    dtype: torch.dtype
    oversampling: int = 8
    power_iterations: int = 2
    balanced: bool = True

    def encode(self, x: Tensor, seed: int) -> Matrix:
        flat = _flat(x)
        _, rows, width = flat.shape
        if stored_elements(rows, width, self.rank) >= rows * width:
            return Raw(flat.to(self.dtype))
        if flat.is_meta:  # sizes only
            r = min(self.rank, rows, width)
            left, right = (flat.new_empty(len(flat), *size, dtype=self.dtype) for size in ((rows, r), (r, width)))
            return LowRank(left, right, 0.0)
        found = factorise(
            flat, self.rank, seed=seed, oversampling=self.oversampling, power_iterations=self.power_iterations
        )
        scale = _spread(found.energy, self.balanced)
        left, right = found.left * scale[:, None, :], found.right / scale[:, :, None]
        lost = (found.total - found.energy.sum(-1)).clamp_min(0).sum().sqrt()
        return LowRank(left.to(self.dtype).contiguous(), right.to(self.dtype).contiguous(), float(lost))


@dataclass(frozen=True)
class Joint:
    """Keys and values over one left factor of ``rank`` columns, both raw where that takes no fewer bytes.

    De-rotated deltas are dK = dX W_K and dV = dX W_V with dX the change of the normalised hidden state, so
    ``[dK | s dV]`` has the rank of dX. Rotation breaks this, and so do models that normalise their keys. s is the
    ratio of the two norms in each layer: neither matrix is sacrificed to the larger one.

    Attributes:
        Those of :class:`Truncated`.
    """

    rank: int
    dtype: torch.dtype
    oversampling: int = 8
    power_iterations: int = 2
    balanced: bool = True

    def encode(self, keys: Tensor, values: Tensor, seed: int) -> tuple[Matrix, Matrix]:
        """``[Lx, H, n, D]`` each -> stored forms over width C = H * D. Low-rank ones hold the same ``left`` tensor."""
        k, v = _flat(keys), _flat(values)
        _, rows, width = k.shape
        if joint_elements(rows, width, self.rank) >= 2 * rows * width:
            return Raw(k.to(self.dtype)), Raw(v.to(self.dtype))
        if k.is_meta:  # sizes only
            r = min(self.rank, rows, 2 * width)
            left = k.new_empty(len(k), rows, r, dtype=self.dtype)
            own_k, own_v = (k.new_empty(len(k), r, width, dtype=self.dtype) for _ in range(2))
            return LowRank(left, own_k, 0.0), LowRank(left, own_v, 0.0)
        k, v = k.float(), v.float()
        norm_k, norm_v = (torch.linalg.vector_norm(x, dim=(1, 2)) for x in (k, v))
        ratio = torch.where((norm_k > 0) & (norm_v > 0), norm_k / norm_v, 1.0)[:, None, None]
        found, right_k, right_v = factorise_joint(
            k,
            v.mul_(ratio),
            self.rank,
            seed=seed,
            oversampling=self.oversampling,
            power_iterations=self.power_iterations,
        )
        right_v = right_v / ratio
        # orthonormal columns on the left: what the right factors do not hold is lost
        lost_k, lost_v = (
            float((norm.square() - right.square().sum((1, 2))).clamp_min(0).sum().sqrt())
            for norm, right in ((norm_k, right_k), (norm_v, right_v))
        )
        scale = _spread(found.energy, self.balanced)
        left = (found.left * scale[:, None, :]).to(self.dtype).contiguous()
        right_k, right_v = ((x / scale[:, :, None]).to(self.dtype).contiguous() for x in (right_k, right_v))
        return LowRank(left, right_k, lost_k), LowRank(left, right_v, lost_v)


def codec(rank: int, dtype: torch.dtype, oversampling: int, power_iterations: int, balanced: bool) -> Codec:
    """Rank 0 means the full matrix, as in the paper's own switches."""
    return Truncated(rank, dtype, oversampling, power_iterations, balanced) if rank else Full(dtype)


def joint_codec(
    rank: int, dtype: torch.dtype, oversampling: int, power_iterations: int, balanced: bool
) -> Codec | Joint:
    """Rank 0 means full matrices, as in :func:`codec`."""
    return Joint(rank, dtype, oversampling, power_iterations, balanced) if rank else Full(dtype)


def stored_elements(rows: int, width: int, rank: int) -> int:
    """Elements per layer of an ``n x C`` matrix: r (n + C), or n C when that is not more (or rank is 0)."""
    r = min(rank, rows, width)
    return min(r * (rows + width), rows * width) if r else rows * width


def pair_bytes(layers: int, rows: int, width: int, rank_key: int, rank_value: int, itemsize: int) -> int:
    """Analytic size of one K/V pair over ``layers`` layers: 2 L r (n + C) e at equal ranks above break-even."""
    elements = stored_elements(rows, width, rank_key) + stored_elements(rows, width, rank_value)
    return layers * elements * itemsize


def joint_elements(rows: int, width: int, rank: int) -> int:
    """Elements per layer of a K/V pair over one left factor: r (n + 2 C), or 2 n C when that is not more."""
    r = min(rank, rows, 2 * width)
    return min(r * (rows + 2 * width), 2 * rows * width) if r else 2 * rows * width


def joint_bytes(layers: int, rows: int, width: int, rank: int, itemsize: int) -> int:
    """Analytic size of one joint K/V pair over ``layers`` layers: L r (n + 2 C) e above break-even."""
    return layers * joint_elements(rows, width, rank) * itemsize


def _spread(energy: Tensor, balanced: bool) -> Tensor:
    """Scale ``[Lx, r]`` of the left columns: the root of each singular value, or 1."""
    return torch.where((energy > 0) & balanced, energy, 1.0).pow(0.25)


def _flat(x: Tensor) -> Tensor:
    """``[Lx, H, n, D]`` -> an own copy ``[Lx, n, H * D]``."""
    layers, heads, rows, dim = x.shape
    return x.transpose(1, 2).reshape(layers, rows, heads * dim).clone(memory_format=torch.contiguous_format)
