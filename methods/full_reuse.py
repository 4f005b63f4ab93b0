"""Full reuse (FullShared): take each span's cache as it is, correct nothing.

``rotated`` moves the upstream cache to the reader's positions: the baseline of CacheBlend (arXiv 2405.16444) and the
"rotation only" row of KVComm (arXiv 2510.12872). ``naive`` leaves the keys at the positions of the source.
``isolated`` takes a context-free encode of the span instead of the upstream cache; its cost is charged to the hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from torch import Tensor

from methods.ability import NOTHING, Ability
from methods.base import KV, Dense, Engine, Executed, Hop, Plan, Reuse, Rope, Rows, Shape, Snapshot, StateBytes
from methods.limits import Limits
from methods.options import one_of
from methods.prefix import RolePrefixes

Mode = Literal["naive", "rotated", "isolated"]


@dataclass(frozen=True, eq=False)
class Unmoved:
    """Rows as they were cached, whatever position they are placed at."""

    kv: KV

    def __len__(self) -> int:
        return len(self.kv)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        replace(self.kv, start=None if self.kv.start is None else start).write(keys, values, start, rope)


@dataclass
class FullReuse:
    """Attributes:
    mode: where a span's rows come from and whether they move.
    role_cache: take the agent's role prompt from an exact cache.
    fidelity: what the implementation was written from.
    """

    mode: Mode = "rotated"
    role_cache: bool = True
    fidelity: str = "paper"
    _prefixes: RolePrefixes = field(default_factory=RolePrefixes, init=False, repr=False, compare=False)
    _encoded: dict[str, dict[tuple[int, ...], KV]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode."""
        one_of("mode", self.mode, get_args(Mode))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(reuse={})

    def bind(self, shape: Shape, seed: int) -> None:
        self._prefixes, self._encoded = RolePrefixes(device=shape.device), {}

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        if hop.warmup:
            return Dense()
        rows: dict[int, Rows] = {}
        for place in hop.prompt.shared():
            if place.span is None or place.span.id not in hop.sources:
                continue
            kv = hop.sources[place.span.id].kv
            if self.mode == "isolated":
                kept = self._encoded.setdefault(hop.trajectory, {})
                if place.span.ids not in kept:
                    kept[place.span.ids] = engine.encode(place.span.ids)
                kv = kept[place.span.ids]
            rows[place.index] = Unmoved(kv) if self.mode == "naive" else kv
        if not rows:
            return Dense()
        prefix = self._prefixes.rows(hop) if self.role_cache else None
        return Reuse(rows if prefix is None else {0: prefix, **rows})

    def observe(self, hop: Hop, executed: Executed) -> None:
        if self.role_cache:
            self._prefixes.learn(hop, executed)

    def end(self, trajectory: str) -> None:
        self._prefixes.end(trajectory)
        self._encoded.pop(trajectory, None)

    def state_bytes(self) -> StateBytes:
        return StateBytes(base=self._prefixes.nbytes)

    @property
    def requires(self) -> frozenset[Ability]:
        return NOTHING

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    def snapshot(self) -> Snapshot | None:
        return self._prefixes.dump() if self.role_cache else None

    def restore(self, snapshot: Snapshot) -> None:
        self._prefixes.load(snapshot)

    def notes(self) -> Mapping[str, float]:
        return {}
