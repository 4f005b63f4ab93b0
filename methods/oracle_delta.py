"""Control: the true delta of this very hop at rank r. The ceiling of any low-rank correction of a reused cache.

It reads the dense cache of the hop it is meant to save; that prefill is charged to the hop and noted on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from kernels.factor import factorise
from methods.ability import Ability
from methods.base import KV, Engine, FreshRows, Hop, Plan, Reuse, Rows, RowSchedule, Shape
from methods.corrected import Corrected
from methods.frame import Blend, Frame
from methods.limits import Limits
from methods.lowrank import Operand
from methods.options import at_least, one_of
from methods.recompute import Origin, Recompute


@dataclass
class OracleDelta(Recompute):
    """Further hyperparameters are those of :class:`methods.recompute.Recompute`.

    Attributes:
        rank: components of each layer's true delta that are added, keys (de-rotated) and values apart, in fp32 and
            never stored; 0 adds the whole delta.
        fidelity: what the implementation was written from.
    """

    rank: int = 32
    source: Origin = "upstream"
    role_cache: bool = True
    fidelity: str = "control"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        at_least("rank", self.rank, 0, "0 adds the whole delta")
        one_of("source", self.source, get_args(Origin))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(exact={"rank": 0})

    def bind(self, shape: Shape, seed: int) -> None:
        super().bind(shape, seed)
        self._frame = Frame("derotated", "fp32", shape.rope)

    @property
    def requires(self) -> frozenset[Ability]:
        return frozenset({Ability.oracle})

    def rows(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> RowSchedule:
        return FreshRows()

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        plan = super().plan(hop, engine)
        if not isinstance(plan, Reuse):
            return plan
        truth = engine.oracle(hop.prompt)
        return replace(plan, rows={i: self._corrected(hop, i, rows, truth) for i, rows in plan.rows.items()})

    def _corrected(self, hop: Hop, index: int, rows: Rows, truth: KV) -> Rows:
        """The rows of a span plus their delta; the role prompt is exact as it is."""
        place = hop.prompt.placed[index]
        if place.span is None or not isinstance(rows, KV):
            return rows
        dk, dv = self._frame.delta(truth.rows(place.start, place.stop), rows)
        weights = torch.ones(1, len(rows), device=dk.device)
        blend = Blend([self._operand(dk[1:])], [self._operand(dv[1:])], weights, weights)
        return Corrected(self._frame, self._frame.keys(rows), self._frame.values(rows), blend)

    def _operand(self, delta: Tensor) -> Operand:
        """``[L - 1, H, n, D]`` at its leading components."""
        flat = delta.transpose(1, 2).flatten(2).contiguous()
        if not self.rank or not flat.shape[0]:
            return flat, None
        found = factorise(flat, self.rank, seed=self.bound.seed)
        return found.left, found.right
