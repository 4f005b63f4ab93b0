"""How good corrections have been on requests that they had not seen: predict first, learn afterwards.

Every dense hop is corrected on paper before it is learned. Its sums are relative to the energy of its exact rows, so
that long spans count no more than short ones, and fade over ``WINDOW`` requests, so that a map is judged as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 32  # requests after which evidence has faded to 1 / e
TRUST = 1.0  # standard errors by which a correction must have agreed with the truth before any of it is applied


@dataclass(frozen=True, eq=False)
class Evidence:
    """Faded sums over requests; G = 2 kinds (keys, values) x (L - 1) layers, p predicted, d true delta, x exact rows.

    Attributes:
        moved, agreed, spent: fp64 ``[G]``, of |d|^2, d.p and |p|^2 over |x|^2; surprise: of the squares of d.p / |x|^2.
        ratios: fp64 ``[3]``, of 1, r and r^2, where r is the true over the predicted relative error of a hop.
    """

    moved: Tensor
    agreed: Tensor
    spent: Tensor
    surprise: Tensor
    ratios: Tensor

    @classmethod
    def none(cls, groups: int, device: torch.device) -> Evidence:
        zero = torch.zeros(groups, dtype=torch.float64, device=device)
        return cls(zero, zero, zero, zero, torch.zeros(3, dtype=torch.float64, device=device))

    def shares(self) -> Tensor:
        """fp32 ``[G]`` in [0, 1]: how much of its correction each layer of keys and of values has earned.

        The share that would have left the least energy, and none where the agreement is no clearer than chance: what
        is not known to help is rotated only. Against a prediction that has nothing to do with the truth the test
        fails with one request, and with many in five cases of six.
        """
        best = self.agreed / self.spent.clamp_min(torch.finfo(torch.float64).tiny)
        clear = self.agreed > TRUST * self.surprise.sqrt() * (1 + 1e-9)  # one request alone is never clear
        return torch.where(clear, best.clamp(0, 1), torch.zeros_like(best)).float()

    def margin(self) -> float:
        """Factor on a predicted error; inf while nothing is known.

        Mean ratio of true to predicted, not below 1, plus one standard error, with one imagined request at a spread of
        100 %, so that few say little.
        """
        count, total, squares = self.ratios.tolist()
        if not count:
            return float("inf")
        mean = total / count
        variance = (max(squares - total * mean, 0.0) + mean * mean) / count
        return float(max(mean, 1.0) + (variance / count) ** 0.5)

    def after(self, moved: Tensor, agreed: Tensor, spent: Tensor, ratio: float | None) -> Evidence:
        """With one more request, all ``[G]`` relative to its exact rows; ``ratio`` None if no error was predicted."""
        keep = 1 - 1 / WINDOW
        one = [0.0, 0.0, 0.0] if ratio is None else [1.0, ratio, ratio * ratio]
        return Evidence(
            keep * self.moved + moved.double(),
            keep * self.agreed + agreed.double(),
            keep * self.spent + spent.double(),
            keep * self.surprise + agreed.double().square(),
            keep * self.ratios + torch.tensor(one, dtype=torch.float64, device=self.ratios.device),
        )

    def tensors(self) -> dict[str, Tensor]:
        names = ("moved", "agreed", "spent", "surprise", "ratios")
        return {f"evidence.{name}": getattr(self, name) for name in names}

    @classmethod
    def load(cls, blob: Mapping[str, Tensor]) -> Evidence:
        return cls(*(blob[f"evidence.{name}"] for name in ("moved", "agreed", "spent", "surprise", "ratios")))


@dataclass(frozen=True, eq=False)
class Risk:
    """Relative energy that a correction leaves at each row, predicted from the same features as the correction.

    Attributes:
        gram: fp64 ``[p, p]``; cross: fp64 ``[p, 2]``, of features with 1 and with energy; all fade as evidence does.
        mean: fp64 ``[2]``, number of rows and sum of their energy.
        slope: fp32 ``[p]``.
    """

    gram: Tensor
    cross: Tensor
    mean: Tensor
    slope: Tensor

    @classmethod
    def none(cls, size: int, device: torch.device) -> Risk:
        def zero(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(zero(size, size), zero(size, 2), zero(2), zero(size).float())

    @property
    def known(self) -> bool:
        return bool(self.mean[0] > 0)

    def of(self, features: Tensor) -> Tensor:
        """fp32 ``[T]``: predicted energy of rows with ``features [T, p]``; never below a quarter of the mean."""
        mean = float(self.mean[1] / self.mean[0].clamp_min(1e-30))
        return (mean + features @ self.slope).clamp_min(0.25 * mean)

    def after(self, features: Tensor, energy: Tensor, penalty: float) -> Risk:
        """With the rows of one more request: true ``energy [T]`` left at rows with ``features [T, p]``."""
        keep, wide, true = 1 - 1 / WINDOW, features.double(), energy.double()
        ones = torch.ones_like(true)
        mean = keep * self.mean + torch.stack([ones.sum(), true.sum()])
        gram = keep * self.gram + wide.T @ wide
        cross = keep * self.cross + wide.T @ torch.stack([ones, true], 1)
        deviation = cross[:, 1:] - cross[:, :1] * mean[1] / mean[0]  # from the mean as it is now
        ridge = gram + penalty * torch.eye(len(gram), dtype=torch.float64, device=gram.device)
        slope = torch.cholesky_solve(deviation, torch.linalg.cholesky(ridge))[:, 0].float()
        return Risk(gram, cross, mean, slope)

    def tensors(self) -> dict[str, Tensor]:
        return {"risk.gram": self.gram, "risk.cross": self.cross, "risk.mean": self.mean, "risk.slope": self.slope}

    @classmethod
    def load(cls, blob: Mapping[str, Tensor]) -> Risk:
        return cls(blob["risk.gram"], blob["risk.cross"], blob["risk.mean"], blob["risk.slope"])
