"""What the methods of the delta family share: a point of the grid, bound to a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from methods import state
from methods.ability import NOTHING, Ability
from methods.base import Engine, Executed, Hop, Plan, Shape, Snapshot, StateBytes
from methods.delta import DeltaSharing
from methods.grid import Grid


class DeltaMethod(ABC):
    """A method whose hyperparameters name a point of the grid; subclasses say which one in :meth:`grid`."""

    _sharing: DeltaSharing | None = None

    @abstractmethod
    def grid(self, shape: Shape) -> Grid:
        """The point of the grid that the hyperparameters name, for this model."""

    def bind(self, shape: Shape, seed: int) -> None:
        self._sharing = DeltaSharing(self.grid(shape), shape, seed)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        return self.sharing.plan(hop, engine)

    def observe(self, hop: Hop, executed: Executed) -> None:
        self.sharing.observe(hop, executed)

    def end(self, trajectory: str) -> None:
        self.sharing.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return self.sharing.state_bytes()

    def snapshot(self) -> Snapshot | None:
        return state.dump(self.sharing)

    def restore(self, snapshot: Snapshot) -> None:
        state.load(self.sharing, snapshot)

    def notes(self) -> Mapping[str, float]:
        return self.sharing.notes()

    @property
    def requires(self) -> frozenset[Ability]:
        return NOTHING

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    @property
    def sharing(self) -> DeltaSharing:
        if self._sharing is None:
            raise ValueError("the method has not met a model yet: call bind(shape, seed) first")
        return self._sharing
