"""Control: CacheBlend's routine and budget, rows chosen by their true error. The ceiling of any fixed selection.

It reads the dense cache of the very hop it is meant to save; that prefill is charged to the hop and noted on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from methods.ability import Ability
from methods.base import KV, Engine, Hop
from methods.checked import Checked
from methods.options import one_of
from methods.scores import Given, Part, Score


@dataclass
class OracleTokens(Checked):
    """Further hyperparameters are those of :class:`methods.checked.Checked`.

    Attributes:
        score: error of values, keys or both. Per layer ||reused - true||^2 of a row over the mean ||true||^2 of its
            span, summed over the layers from the check layer on, so that no layer counts by its scale.
    """

    score: Part = "kv"
    fidelity: str = "control"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        super().__post_init__()
        one_of("score", self.score, get_args(Part))

    @property
    def requires(self) -> frozenset[Ability]:
        return super().requires | {Ability.oracle}

    def scored(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> Score:
        rope, truth = self.bound.shape.rope, engine.oracle(hop.prompt)
        scores = torch.zeros(len(hop.prompt), device=self.bound.shape.device)
        for index, held in reused.items():
            place = hop.prompt.placed[index]
            mine, true = held.derotated(rope), truth.rows(place.start, place.stop).derotated(rope)
            pairs = [(mine.v, true.v)] * ("v" in self.score) + [(mine.k, true.k)] * ("k" in self.score)
            for used, exact in pairs:
                scores[place.start : place.stop] += self._errors(used, exact)
        return Given(scores)

    def _errors(self, used: Tensor, exact: Tensor) -> Tensor:
        """Relative squared error per row of two ``[L, H, T, D]``, summed over layers; fp32 ``[T]``."""
        total = torch.zeros(used.shape[2], device=used.device)
        for mine, true in zip(used[self.check_layer :].float(), exact[self.check_layer :].float(), strict=True):
            size = true.square().sum((0, 2)).mean().clamp_min(torch.finfo(torch.float32).tiny)
            total += (mine - true).square().sum((0, 2)) / size
        return total
