"""Effective rank of a matrix: how many components hold a share of its energy, and how evenly it is spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ENERGIES = (0.90, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Energies (squared singular values) of matrices, fp64 ``[B, min(n, C)]``, largest first."""

    energy: Tensor

    @classmethod
    def of(cls, matrices: Tensor) -> Spectrum:
        """Of ``[B, n, C]``, through the smaller Gram matrix in fp64: energies below 1e-13 of the largest are rounding,
        which no rank at 99 % or less sees."""
        wide = matrices.double()
        gram = wide @ wide.transpose(1, 2) if wide.shape[1] <= wide.shape[2] else wide.transpose(1, 2) @ wide
        return cls(torch.linalg.eigvalsh(gram).flip(1).clamp_min(0))

    def rank_at(self, share: float) -> Tensor:
        """int64 ``[B]``: the fewest leading components with this share of the energy; 0 for a zero matrix."""
        total = self.energy.sum(1, keepdim=True)
        reached = self.energy.cumsum(1) >= share * total * (1 - 1e-12)
        found: Tensor = reached.long().argmax(1) + 1
        return torch.where(total[:, 0] > 0, found, torch.zeros_like(found))

    def entropy_rank(self) -> Tensor:
        """fp64 ``[B]``: exp(-sum p log p) of p = energy / total; 0 for a zero matrix."""
        total = self.energy.sum(1, keepdim=True)
        p = self.energy / total.clamp_min(1e-300)
        entropy = -torch.special.xlogy(p, p).sum(1)
        return torch.where(total[:, 0] > 0, entropy.exp(), torch.zeros_like(entropy))
