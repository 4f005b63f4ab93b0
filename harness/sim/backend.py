"""``backend=sim``: what the configuration chooses, and the service that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.errors import UserError
from harness.hint import nearest
from harness.records import Route
from harness.service import Served
from harness.sim.cost_file import read
from harness.sim.costs import CostFile, Recipe, route_cost
from harness.sim.service import VOCAB, Machine, SimService
from methods.base import Method


@dataclass(frozen=True)
class Sim:
    """Options of the simulator (its YAML).

    Attributes:
        costs: ``authors``, ``ours``, or the path of a cost file.
        hardware, model: choices of that file; without effect where it holds measured phases.
        describe: which of its methods; None: the one called as the run's method.
        encode_tokens: length of a context-free encode on the first hop; None: its shared tokens.
        slots: calls that run at once; None: as the file says.
    """

    name: str = "sim"
    costs: str = "ours"
    hardware: str = "a100"
    model: str = "llama31_8b"
    describe: str | None = None
    encode_tokens: int | None = None
    slots: int | None = None
    traces_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")
        if self.encode_tokens is not None and self.encode_tokens < 0:
            raise ValueError(f"encode_tokens must not be negative, got {self.encode_tokens}")

    def check(self, source: Any, method: Method, label: str, seed: int) -> Served:
        """See :class:`harness.service.Server`; the chosen model and method are only names here."""
        file = read(self.costs)
        self._machine(file, self._recipe(file, label))
        sizes = file.models.get(self.model)
        return Served(sizes.context if sizes is not None else None, VOCAB, simulated=True)

    @contextmanager
    def serve(self, source: Any, method: Method, label: str, seed: int) -> Iterator[SimService]:
        """A cold simulator."""
        file = read(self.costs)
        recipe = self._recipe(file, label)
        yield SimService(self._machine(file, recipe), recipe, self.encode_tokens)

    def _recipe(self, file: CostFile, label: str) -> Recipe:
        name = self.describe or label
        if name not in file.methods:
            option = f"backend.describe={name}" if self.describe else f"method={name}"
            raise UserError(f"{option}: backend.costs={self.costs} does not describe it, {nearest(name, file.methods)}")
        return file.methods[name]

    def _machine(self, file: CostFile, recipe: Recipe) -> Machine:
        slots = self.slots or file.slots
        if recipe.phases:
            assert file.layers is not None  # or it would not have been read
            stated = file.models.get(self.model)
            if stated is not None and stated.layers != file.layers:
                raise UserError(
                    f"backend.costs={self.costs}: phases were measured on a model of layers={file.layers}, but "
                    f"backend.model={self.model} has {stated.layers} there; mend the one that is wrong"
                )
            routes = {route: route_cost(recipe, route, None, None) for route in Route}
            label = f"simulation, costs {self.costs} (measured)"
            return Machine(label, "as measured", file.layers, slots, file.budget, routes)
        for option, known in (("hardware", file.hardware), ("model", file.models)):
            if getattr(self, option) not in known:
                hint = nearest(getattr(self, option), known)
                raise UserError(f"backend.{option}={getattr(self, option)}: costs={self.costs} has no such one, {hint}")
        hardware, model = file.hardware[self.hardware], file.models[self.model]
        routes = {route: route_cost(recipe, route, hardware, model) for route in Route}
        room = (hardware.memory_bytes - model.weight_bytes) / model.kv_bytes
        label = f"simulation of {self.hardware}, costs {self.costs}"
        return Machine(label, self.model, model.layers, slots, file.budget, routes, room if slots > 1 else None)
