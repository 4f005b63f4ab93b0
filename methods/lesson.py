"""What a dense hop teaches an edge, and the options under which it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = ("source", "delta", "energy", "distance")


@dataclass(frozen=True)
class Settings:
    """See :class:`methods.ridge.Ridge`; ``groups`` is 2 (L - 1), ``width`` C, ``taps`` the layers looked at."""

    features: int
    landmarks: int
    rank: int
    warmup: int
    memory: int
    caution: float
    penalty: float | None
    shrink: bool
    groups: int
    width: int
    taps: int
    floor: float

    @property
    def keep(self) -> float:
        return 1 - 1 / self.memory


@dataclass(frozen=True, eq=False)
class Lesson:
    """Rows of one span in a dense hop.

    Attributes:
        source: fp32 ``[n, S]``, tapped values; delta: fp32 ``[n, G C]``, keys of all layers from 1 on, then values;
        energy: fp64 ``[G]``, squared norm of the exact rows; distance: int64 ``[n]`` from the span's start.
    """

    source: Tensor
    delta: Tensor
    energy: Tensor
    distance: Tensor

    def __len__(self) -> int:
        return len(self.distance)

    def thinned(self, most: int) -> Lesson:
        """At most ``most`` of them, evenly spaced; the energy is scaled alike."""
        if len(self) <= most:
            return self
        at = torch.arange(most, device=self.distance.device) * len(self) // most
        return Lesson(self.source[at], self.delta[at], self.energy * (most / len(self)), self.distance[at])
