"""Dense: every agent prefills its whole prompt, the reference of everything else.

Two honest variants. Cold recomputes everything. With ``prefix_cache`` the agent's own role prompt comes from an exact
cache, as vLLM and SGLang do by default; what is left is what a user pays today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from methods.ability import NOTHING, Ability
from methods.base import Dense, Engine, Executed, Hop, Plan, Reuse, Shape, Snapshot, StateBytes
from methods.limits import Limits
from methods.prefix import RolePrefixes


@dataclass
class DenseMethod:
    """Attributes:
    prefix_cache: take the role prompt (segment 0) from an exact prefix cache.
    fidelity: what the implementation was written from.
    """

    prefix_cache: bool = False
    fidelity: str = "code"
    _prefixes: RolePrefixes = field(default_factory=RolePrefixes, init=False, repr=False, compare=False)

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(dense={})

    def bind(self, shape: Shape, seed: int) -> None:
        self._prefixes = RolePrefixes(device=shape.device)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        prefix = self._prefixes.rows(hop) if self.prefix_cache and not hop.warmup else None
        return Dense() if prefix is None else Reuse({0: prefix}, exact=True)

    def observe(self, hop: Hop, executed: Executed) -> None:
        if self.prefix_cache:
            self._prefixes.learn(hop, executed)

    def end(self, trajectory: str) -> None:
        self._prefixes.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return StateBytes(base=self._prefixes.nbytes)

    @property
    def requires(self) -> frozenset[Ability]:
        return NOTHING

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    def snapshot(self) -> Snapshot | None:
        return self._prefixes.dump() if self.prefix_cache else None

    def restore(self, snapshot: Snapshot) -> None:
        self._prefixes.load(snapshot)

    def notes(self) -> Mapping[str, float]:
        return {}
