"""Control: CacheBlend's routine and budget, rows chosen at random. What any selector must beat.

The draw depends on the run's seed, the request and the hop, never on what ran before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import torch

from methods.base import KV, Engine, Hop
from methods.checked import Checked
from methods.scores import Given, Score


@dataclass
class RandomTokens(Checked):
    """Hyperparameters are those of :class:`methods.checked.Checked`."""

    fidelity: str = "control"

    def scored(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> Score:
        text = f"{self.bound.seed}/{hop.trajectory}/{hop.index}"
        draw = torch.Generator().manual_seed(int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1)
        scores = torch.zeros(len(hop.prompt))
        for index in reused:
            place = hop.prompt.placed[index]
            scores[place.start : place.stop] = torch.rand(len(place), generator=draw)
        return Given(scores.to(self.bound.shape.device))
