"""What GraphFlow and Kamera share: corrections of exactly the content and relation they were measured on.

A relation that was never measured has no correction: the hop goes dense (and may be measured), or the span's
context-free base serves uncorrected. The key lookup itself is the gate.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from methods.base import Engine, Executed, Hop, Plan, Shape
from methods.family import DeltaMethod
from methods.frame import Frame
from methods.gate import Always
from methods.glue import Glue
from methods.grid import Exact, Grid
from methods.lowrank import Codec, Full
from methods.options import at_least
from methods.weights import Uniform


@dataclass
class RelationMethod(DeltaMethod):
    """Hyperparameters of every exact-key method; subclasses say what a key is and how a correction is stored.

    Attributes:
        build_requests: the first so many requests run dense and are measured; warm-up requests count.
        online: whether relations are measured after that too.
        pool: relations kept per span role and reader (per span role, where the reader is no part of the key).
        glue: private text after the first shared span.
        first_agent: whether spans that no earlier agent holds are reused too.
        role_cache: reuse hops take the agent's role prompt from an exact cache.
    """

    build_requests: int
    online: bool
    pool: int
    glue: Glue
    first_agent: bool
    role_cache: bool

    @property
    @abstractmethod
    def dense_on_miss(self) -> bool: ...

    @abstractmethod
    def codec(self, shape: Shape) -> Codec:
        """How corrections are stored."""

    @abstractmethod
    def relation(self) -> tuple[Exact, int]:
        """What a key consists of, and from how many sightings on a relation is stored."""

    @property
    def building(self) -> bool:
        return self.sharing.seen < self.build_requests

    @property
    def frozen(self) -> bool:
        return not self.online and not self.building

    def grid(self, shape: Shape) -> Grid:
        exact, frequency = self.relation()
        base, codec = Full(shape.dtype), self.codec(shape)
        return Grid(
            base_key=base,
            base_value=base,
            delta=codec,
            glue_delta=codec,
            weighting=Uniform(),
            gate=Always(),
            frame=Frame("derotated", "fp32", shape.rope),
            reference="context_free",
            first_agent=self.first_agent,
            exact=exact,
            min_frequency=frequency,
            pool=self.pool,
            hot=1,
            glue=self.glue,
            partial=False,
            min_anchors=1 if self.dense_on_miss else 0,
            role_cache=self.role_cache,
        )

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        return self.sharing.plan(self._phased(hop), engine, learning=not self.frozen)

    def observe(self, hop: Hop, executed: Executed) -> None:
        self.sharing.observe(self._phased(hop), executed, learning=not self.frozen)

    def _phased(self, hop: Hop) -> Hop:
        """While the method builds, every hop is a warm-up hop."""
        return replace(hop, warmup=hop.warmup or self.building)

    def notes(self) -> Mapping[str, float]:
        """Beside the engine's notes, relations that are stored and that were ever seen, over all requests."""
        kept = sum(len(pool) for pool in self.sharing.pools.values())
        counts = {"relations_kept": float(kept), "relations_seen": float(len(self.sharing.sightings))}
        return {**self.sharing.notes(), **counts}


def check(method: RelationMethod) -> None:
    """Raises ValueError for a value outside its range."""
    at_least("build_requests", method.build_requests, 0)
    at_least("pool", method.pool, 1)
