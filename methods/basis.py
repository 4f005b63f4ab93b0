"""What a correction is predicted from: a token's source cache in a few numbers, and where the token stands.

Features of a row, side by side: position (a constant, decays of its distance from the span's start, the first row),
the projection of its values on principal directions, some of these times two decays, and its similarity to landmark
rows (Nystroem features of a Gaussian kernel: tokens like those that have been seen are corrected as those were).
Values carry no rotation, so that nothing has to be rotated back for it, and a few layers say what all of them say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Shape

TAPS = 8  # layers that are looked at, evenly spaced from layer 1 on
PLACES = 6  # position features
MIXED = 16  # leading directions that also count by the row's distance from the start
REACH = (3.0, 10.0)  # rows over which their weight falls by a factor e
LIFT = 3.0  # of position features: their coefficients are as good as free
NEAR = 8.0  # of landmark features, which are small numbers otherwise
FLAT = 1e-3  # smallest eigenvalue of the landmarks' kernel that is scaled up in full


def taps(shape: Shape) -> list[int]:
    """The layers whose values are looked at; layer 0 knows the token only, and is taken where there is no other."""
    step = -(-max(shape.layers - 1, 1) // TAPS)
    return list(range(min(1, shape.layers - 1), shape.layers, step))


def tapped(values: Tensor, layers: list[int]) -> Tensor:
    """Values ``[L, H, T, D]`` -> fp32 rows ``[T, len(layers) * H * D]``."""
    rows: Tensor = values[layers].float().permute(2, 0, 1, 3).flatten(1)
    return rows


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions and landmarks; both stay as they were first chosen, so that statistics over them can be summed.

    Attributes:
        mean: fp32 ``[S]``; directions: fp32 ``[S, R]``, scaled so that features have unit mean square.
        landmarks: fp32 ``[m, R]``, features of rows; whitening: fp32 ``[m, m]``, inverse root of their kernel.
    """

    mean: Tensor
    directions: Tensor
    landmarks: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, rows: Tensor, groups: int, features: int, landmarks: int, floor: float = FLAT) -> Basis:
        """The basis of rows ``[n, S]``, n >= 1.

        Args:
            groups: layers in a row, each of which is scaled to unit variance first.
            features: directions wanted; at most min(n, S) are there.
            landmarks: rows wanted, evenly spaced over the n.
        """
        mean = rows.mean(0)
        centred = rows - mean
        spread = centred.view(len(rows), groups, -1).square().mean((0, 2)).sqrt()
        scale = spread.clamp_min(1e-6).reciprocal().repeat_interleave(rows.shape[1] // groups)
        vectors = _leading(centred * scale, features)
        found = (centred * scale) @ vectors
        size = found.square().mean().sqrt().clamp_min(1e-12)
        directions = scale[:, None] * vectors / size
        count = min(landmarks, len(rows))
        picked = torch.arange(count, device=rows.device) * len(rows) // max(count, 1)
        marks = (found / size)[picked]
        values, basis = torch.linalg.eigh(similarity(marks, marks).double())
        whitening = (basis * values.clamp_min(floor).rsqrt()).float()
        return cls(mean, directions, marks, whitening)

    @property
    def size(self) -> int:
        """p, the features of a row."""
        return PLACES + self.directions.shape[1] + len(REACH) * self._mixed + len(self.landmarks)

    @property
    def _mixed(self) -> int:
        return min(MIXED, self.directions.shape[1])

    def features(self, rows: Tensor, distance: Tensor) -> Tensor:
        """Rows ``[T, S]`` that stand ``distance [T]`` rows from the span's start -> fp32 ``[T, p]``."""
        main = rows @ self.directions - self.mean @ self.directions
        t = distance.float()
        mixed = [main[:, : self._mixed] * torch.exp(-t / reach)[:, None] for reach in REACH]
        near = similarity(main, self.landmarks) @ self.whitening
        return torch.cat([places(t) * LIFT, main, *mixed, near * NEAR], 1)

    def tensors(self) -> dict[str, Tensor]:
        return {
            "mean": self.mean,
            "directions": self.directions,
            "landmarks": self.landmarks,
            "whitening": self.whitening,
        }

    @classmethod
    def load(cls, blob: Mapping[str, Tensor]) -> Basis:
        return cls(blob["mean"], blob["directions"], blob["landmarks"], blob["whitening"])


def places(distance: Tensor) -> Tensor:
    """Position features ``[T, PLACES]`` of fp32 ``distance [T]``."""
    t = distance
    return torch.stack(
        [torch.ones_like(t), torch.exp(-t / 2), torch.exp(-t / 8), torch.exp(-t / 32), 1 / (1 + t), (t == 0).float()], 1
    )


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """Gaussian kernel ``[n, m]`` of ``a [n, R]`` and ``b [m, R]``; its width is the spread of all rows, R."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return torch.exp(-squares.clamp_min(0) / max(a.shape[1], 1))


def _leading(rows: Tensor, count: int) -> Tensor:
    """The leading right singular vectors of ``rows [n, S]``, ``[S, min(count, n, S)]``, with fixed signs."""
    kept = min(count, *rows.shape)
    wide = rows.double()
    if rows.shape[0] < rows.shape[1]:
        left = torch.linalg.eigh(wide @ wide.T)[1]
        left = left.flip(1)[:, :kept]
        vectors = wide.T @ left
        vectors = vectors / vectors.norm(dim=0).clamp_min(1e-12)
    else:
        vectors = torch.linalg.eigh(wide.T @ wide)[1].flip(1)[:, :kept]
    sign = vectors.gather(0, vectors.abs().argmax(0)[None]).sign()
    fixed: Tensor = vectors * torch.where(sign == 0, torch.ones_like(sign), sign)
    return fixed.float()
