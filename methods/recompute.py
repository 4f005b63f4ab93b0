"""What methods that recompute some rows of reused spans share: where the rows come from, and the role prompt.

Reused rows are the upstream agent's, or a context-free encode of the span. Private text always runs fresh, except
that the role prompt may come from an exact cache; so does a span that no earlier hop holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from methods.ability import Ability
from methods.base import (
    KV,
    Dense,
    Engine,
    Executed,
    Hop,
    Plan,
    Reuse,
    RowSchedule,
    RowView,
    Shape,
    Snapshot,
    StateBytes,
)
from methods.prefix import RolePrefixes
from methods.segment import Placed

Origin = Literal["upstream", "isolated"]


@dataclass(frozen=True, eq=False)
class Bound:
    """What a method holds once it knows the model: caches of role prompts, and context-free encodes by trajectory."""

    shape: Shape
    seed: int
    prefixes: RolePrefixes
    encoded: dict[str, dict[tuple[int, ...], KV]] = field(default_factory=dict)

    def isolated(self, hop: Hop, place: Placed, engine: Engine) -> KV:
        kept = self.encoded.setdefault(hop.trajectory, {})
        ids = place.segment.ids
        if ids not in kept:
            kept[ids] = engine.encode(ids)
        return kept[ids]


class Recompute(ABC):
    """A method that reuses spans and recomputes the rows that :meth:`rows` says.

    Attributes:
        source: reused rows are the ``upstream`` agent's, or an ``isolated`` encode of the span, which is charged to
            the hop.
        role_cache: take the agent's role prompt from an exact cache.
    """

    source: Origin
    role_cache: bool
    _bound: Bound | None = None

    @abstractmethod
    def rows(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> RowSchedule:
        """Which rows run, given the reused rows by segment index, in prompt order."""

    def bind(self, shape: Shape, seed: int) -> None:
        self._bound = Bound(shape, seed, RolePrefixes(device=shape.device))

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        if hop.warmup:
            return Dense()
        reused: dict[int, KV] = {}
        for place in hop.prompt.shared():
            if place.span is not None and place.span.id in hop.sources:
                upstream = hop.sources[place.span.id].kv
                isolated = self.source == "isolated"
                reused[place.index] = self.bound.isolated(hop, place, engine) if isolated else upstream
        if not reused:
            return Dense()
        schedule = self.rows(hop, reused, engine)
        prefix = self.bound.prefixes.rows(hop) if self.role_cache else None
        return Reuse(reused if prefix is None else {0: prefix, **reused}, schedule)

    def observe(self, hop: Hop, executed: Executed) -> None:
        if self.role_cache:
            self.bound.prefixes.learn(hop, executed)

    def end(self, trajectory: str) -> None:
        self.bound.prefixes.end(trajectory)
        self.bound.encoded.pop(trajectory, None)

    def state_bytes(self) -> StateBytes:
        return StateBytes(base=self.bound.prefixes.nbytes)

    def snapshot(self) -> Snapshot | None:
        return self.bound.prefixes.dump() if self.role_cache else None

    def restore(self, snapshot: Snapshot) -> None:
        self.bound.prefixes.load(snapshot)

    def notes(self) -> Mapping[str, float]:
        return {}

    @property
    def requires(self) -> frozenset[Ability]:
        return frozenset({Ability.row_schedule})

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    @property
    def bound(self) -> Bound:
        if self._bound is None:
            raise ValueError("the method has not met a model yet: call bind(shape, seed) first")
        return self._bound


def candidates(view: RowView, spans: tuple[int, ...]) -> list[Tensor]:
    """By span, the rows a schedule may choose among: reused ones, without a last row, which runs anyway."""
    return [rows[~torch.isin(rows, view.fresh)] for rows in (view.reused[index] for index in spans)]


def among(rows: Tensor, current: Tensor) -> Tensor:
    """Those of ``rows`` that are in ``current``."""
    return rows[torch.isin(rows, current)]


def union(*rows: Tensor) -> Tensor:
    """Sorted union of int64 rows."""
    both: Tensor = torch.unique(torch.cat(rows))  # sorted
    return both


def top(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` highest ``scores [R]``; the lower index wins a tie."""
    return scores.sort(descending=True, stable=True).indices[:count]


def check_layer_fits(check_layer: int, shape: Shape) -> None:
    """Raises ValueError if the model has no such layer."""
    if check_layer >= shape.layers:
        raise ValueError(f"check_layer must be below the model's {shape.layers} layers, got {check_layer}")


def share(option: str, value: float) -> None:
    """Raises ValueError unless ``value`` is in [0, 1]."""
    if isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{option} must be a share of the span tokens in [0, 1], got {value}")
