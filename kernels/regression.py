"""Ridge regression with many outputs from sufficient statistics: one Gram matrix, any number of penalties.

``B = (G + penalty I)^-1 C`` for G = F^T F ``[p, p]`` and C = F^T Y ``[p, M]``. One symmetric eigendecomposition serves
every penalty, and the best map of lower rank (Izenman 1975, reduced-rank regression, with a ridge).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A positive semi-definite Gram matrix, decomposed.

    Attributes:
        values: fp64 ``[p]``, none negative.
        vectors: fp64 ``[p, p]``, columns.
    """

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, gram: Tensor) -> Spectrum:
        """Of ``gram [p, p]``, symmetric up to rounding."""
        wide = gram.double()
        values, vectors = torch.linalg.eigh((wide + wide.T) / 2)
        return cls(values.clamp_min(0), vectors)

    def solve(self, cross: Tensor, penalty: float) -> Tensor:
        """fp32 ``[p, M]``: the coefficients for ``cross [p, M]``. Raises ValueError unless the penalty is positive."""
        if not penalty > 0:
            raise ValueError(f"the penalty must be positive, got {penalty}")
        return (self.inverse(penalty) @ cross.double()).float()

    def inverse(self, penalty: float) -> Tensor:
        """fp64 ``(G + penalty I)^-1``."""
        return (self.vectors / (self.values + penalty)) @ self.vectors.T

    def reduced(self, coefficients: Tensor, penalty: float, rank: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The map of at most ``rank`` that is nearest to ``coefficients [p, M]`` on the rows seen.

        Args:
            weights: fp32 ``[M]``, how much an error of each output counts.

        Returns:
            fp32 ``left [p, r]`` and ``right [r, M]`` with left @ right ~ coefficients; r <= min(rank, p).
        """
        size = len(self.values)
        if rank >= size:
            return torch.eye(size, device=coefficients.device), coefficients
        scale = (self.values + penalty).sqrt()
        weighted = coefficients * weights
        outer = (weighted @ weighted.T).double()
        inner = scale[:, None] * (self.vectors.T @ outer @ self.vectors) * scale
        leading = torch.linalg.eigh((inner + inner.T) / 2)[1].flip(1)[:, :rank]
        left = self.vectors @ (leading / scale[:, None])
        right = (leading.T * scale) @ self.vectors.T
        return left.float(), right.float() @ coefficients


def leverage(features: Tensor, inverse: Tensor) -> Tensor:
    """How far rows are from what has been seen: ``f^T (G + penalty I)^-1 f``, ``[T]``, in [0, 1) for rows in G."""
    return ((features @ inverse) * features).sum(1)
