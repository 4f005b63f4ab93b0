"""AgentKVShift (arXiv 2607.21604): recompute a few probe rows of each span, move the others by what the probes show.

From the check layer on, the mean residual of the probes' fresh against their reused keys and values is added to all
other rows of the span. Ours: key residuals are averaged de-rotated, since an average of rotated rows mixes positions;
one set of probes for keys and values; the damping, which the available descriptions do not define.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from methods.base import KV, Engine, Hop, Probe, Rope, RowSchedule, RowView, Selection, Shape, Shift
from methods.checked import WriteBack
from methods.limits import Limits
from methods.options import at_least, one_of
from methods.recompute import Origin, Recompute, among, candidates, check_layer_fits, share, top, union
from methods.scores import Deviation, Part, squares

Damp = Literal["none", "deviation"]


@dataclass
class AgentKVShift(Recompute):
    """Attributes:
    ratio: probes are the ceil(ratio n) rows of a span of n that deviate most at the check layer.
    score: deviation of keys, values or both.
    damp: ``deviation`` scales each row's shift by min(1, its deviation over the probes' mean deviation), for keys
        and values apart, as seen at the check layer.
    write_back: at the check layer the other rows are shifted like everywhere else (``kept``), or take the fresh
        keys and values that were computed to score them (``all``).
    check_layer: where probes are chosen; the layers below run in full.
    source, role_cache: see :class:`methods.recompute.Recompute`.
    fidelity: what the implementation was written from.
    """

    ratio: float = 0.15
    score: Part = "kv"
    damp: Damp = "none"
    write_back: WriteBack = "kept"
    check_layer: int = 1
    source: Origin = "upstream"
    role_cache: bool = True
    fidelity: str = "abstract"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        share("ratio", self.ratio)
        at_least("check_layer", self.check_layer, 1, "layer 0 depends on no context and cannot deviate")
        for option, names in (("score", Part), ("damp", Damp), ("write_back", WriteBack), ("source", Origin)):
            one_of(option, getattr(self, option), get_args(names))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(dense={"ratio": 1.0}, reuse={"ratio": 0.0, "write_back": "kept", "check_layer": 1})

    def bind(self, shape: Shape, seed: int) -> None:
        check_layer_fits(self.check_layer, shape)
        super().bind(shape, seed)

    def rows(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> RowSchedule:
        rope, damped, write_all = self.bound.shape.rope, self.damp == "deviation", self.write_back == "all"
        return ShiftedRows(tuple(reused), self.ratio, self.check_layer, self.score, rope, damped, write_all)


@dataclass(eq=False)
class ShiftedRows:
    """The schedule; ``factors`` are the damping ``[P]`` of keys and values of each span's other rows."""

    spans: tuple[int, ...]
    ratio: float
    check_layer: int
    score: Part
    rope: Rope
    damped: bool
    write_all: bool
    factors: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def first_rows(self, view: RowView) -> Tensor:
        return union(view.fresh, *candidates(view, self.spans))

    def probes(self, layer: int) -> bool:
        return layer >= self.check_layer

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if probe is None:
            return Selection(current)
        spans = candidates(view, self.spans)
        checking = layer == self.check_layer
        kept = [self._probes(probe, view, rows) if checking else among(rows, current) for rows in spans]
        others = [rows[~torch.isin(rows, probes)] for rows, probes in zip(spans, kept, strict=True)]
        if checking:
            self.factors = [self._damping(probe, *pair) for pair in zip(kept, others, strict=True)]
        moves = [self._shift(probe, *group) for group in zip(kept, others, self.factors, strict=True)]
        shift = Shift(
            torch.cat([move.rows for move in moves]),
            torch.cat([move.keys for move in moves], dim=1),
            torch.cat([move.values for move in moves], dim=1),
        )
        write = current if checking and self.write_all else None
        return Selection(union(view.fresh, *kept), write=write, shift=shift)

    def _probes(self, probe: Probe, view: RowView, rows: Tensor) -> Tensor:
        count = math.ceil(self.ratio * len(rows) - 1e-9)  # 0.07 * 100 is a hair above 7
        return rows[top(Deviation(self.score)(probe, view, rows), count)].sort().values

    def _damping(self, probe: Probe, kept: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        if not self.damped or not len(kept):
            return torch.ones(len(others), device=others.device), torch.ones(len(others), device=others.device)
        mine, theirs = torch.searchsorted(probe.rows, others), torch.searchsorted(probe.rows, kept)

        def factor(fresh: Tensor, reused: Tensor) -> Tensor:
            size = squares(fresh[:, theirs], reused[:, theirs]).sqrt().mean()
            own = squares(fresh[:, mine], reused[:, mine]).sqrt()
            return (own / size.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1.0)

        return factor(probe.fresh_k, probe.reused_k), factor(probe.fresh_v, probe.reused_v)

    def _shift(self, probe: Probe, kept: Tensor, others: Tensor, factors: tuple[Tensor, Tensor]) -> Shift:
        if not len(kept):
            others = others[:0]
        at = torch.searchsorted(probe.rows, kept)
        bare = self.rope.remove(probe.fresh_k[:, at].float() - probe.reused_k[:, at].float(), kept)
        keys = bare.sum(1, keepdim=True) / max(len(kept), 1)  # [H, 1, D]
        values = (probe.fresh_v[:, at].float() - probe.reused_v[:, at].float()).sum(1, keepdim=True) / max(len(kept), 1)
        by_key, by_value = (factor[: len(others), None] for factor in factors)
        placed = self.rope.apply(keys.expand(-1, len(others), -1), others)
        return Shift(others, placed * by_key, values * by_value)
