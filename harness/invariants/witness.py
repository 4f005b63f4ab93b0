"""Looks over a method's shoulder while the ordinary runner drives it; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.backends.hf_run import Run
from methods.base import (
    KV,
    Dense,
    Engine,
    Executed,
    FreshRows,
    Hop,
    Method,
    Plan,
    Probe,
    Reuse,
    RowSchedule,
    RowView,
    Selection,
    Shape,
    Snapshot,
    StateBytes,
)
from methods.recompute import union
from methods.segment import Prompt


@dataclass(eq=False)
class Recorded:
    """A schedule, and what it selected at each layer."""

    inner: RowSchedule
    first: Tensor | None = None
    selections: list[Selection] = field(default_factory=list)

    def first_rows(self, view: RowView) -> Tensor:
        self.first, self.selections = self.inner.first_rows(view), []
        return self.first

    def probes(self, layer: int) -> bool:
        return self.inner.probes(layer)

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        chosen = self.inner.select(layer, view, current, probe)
        self.selections.append(chosen)
        return chosen


@dataclass(frozen=True, eq=False)
class Replayed:
    """The same selections once more, whatever the caches hold now."""

    recorded: Recorded

    def first_rows(self, view: RowView) -> Tensor:
        return view.fresh if self.recorded.first is None else self.recorded.first

    def probes(self, layer: int) -> bool:
        return self.recorded.inner.probes(layer)

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return self.recorded.selections[layer]


@dataclass(frozen=True, eq=False)
class Seen:
    """One hop: what the method planned and what the engine did.

    Attributes:
        recorded: what its schedule selected; None where only fresh rows ran.
    """

    hop: Hop
    plan: Plan
    recorded: Recorded | None
    run: Run

    @property
    def reuse(self) -> Reuse | None:
        """The plan, if it reuses rows of shared spans."""
        spans = {place.index for place in self.hop.prompt.shared()}
        plan = self.plan
        return plan if isinstance(plan, Reuse) and not plan.exact and spans & set(plan.rows) else None

    @property
    def fresh(self) -> Tensor:
        return fresh_rows(self.hop.prompt, self.plan)

    def passed(self, layers: int) -> list[Tensor]:
        """Rows that ran each layer."""
        if self.recorded is None:
            return [self.fresh] * layers
        return [union(s.keep.cpu(), self.fresh) for s in self.recorded.selections]

    def again(self) -> Reuse:
        """The plan with its selections replayed. Raises ValueError for a dense plan."""
        if not isinstance(self.plan, Reuse):
            raise ValueError("a dense plan reuses nothing")
        return self.plan if self.recorded is None else replace(self.plan, schedule=Replayed(self.recorded))


def fresh_rows(prompt: Prompt, plan: Plan) -> Tensor:
    """Rows that no reused segment covers, and the last one; sorted int64."""
    left = torch.ones(len(prompt), dtype=torch.bool)
    for index in plan.rows if isinstance(plan, Reuse) else ():
        place = prompt.placed[index]
        left[place.start : place.stop] = False
    left[-1] = True
    return left.nonzero()[:, 0]


@dataclass(eq=False)
class Witness:
    """A method that does what ``inner`` does; :meth:`note` is told what happened."""

    inner: Method
    _plan: Plan = field(default_factory=Dense, init=False)

    def bind(self, shape: Shape, seed: int) -> None:
        self.inner.bind(shape, seed)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        plan = self.inner.plan(hop, engine)
        if isinstance(plan, Reuse) and not isinstance(plan.schedule, FreshRows):
            plan = replace(plan, schedule=Recorded(plan.schedule))
        self._plan = plan
        return plan

    def observe(self, hop: Hop, executed: Executed) -> None:
        self.inner.observe(hop, executed)
        plan, self._plan = self._plan, Dense()
        if not isinstance(executed, Run):
            raise TypeError(f"the invariants know the transformers engine only, this hop ran on {type(executed)}")
        self.note(hop, plan, executed)

    def note(self, hop: Hop, plan: Plan, run: Run) -> None:
        """Called after each hop."""

    def end(self, trajectory: str) -> None:
        self.inner.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return self.inner.state_bytes()

    @property
    def captures(self) -> frozenset[int]:
        return self.inner.captures

    def snapshot(self) -> Snapshot | None:
        return self.inner.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        self.inner.restore(snapshot)

    def notes(self) -> Mapping[str, float]:
        return self.inner.notes()


@dataclass(eq=False)
class Keeper(Witness):
    """Keeps every hop alive, caches included."""

    seen: list[Seen] = field(default_factory=list)

    def note(self, hop: Hop, plan: Plan, run: Run) -> None:
        schedule = plan.schedule if isinstance(plan, Reuse) else None
        self.seen.append(Seen(hop, plan, schedule if isinstance(schedule, Recorded) else None, run))


@dataclass(frozen=True, eq=False)
class Print:
    """What must not differ between two runs of the same requests."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    fresh: tuple[int, ...]
    logits: Tensor

    @classmethod
    def of(cls, hop: Hop, run: Run) -> Print:
        return cls(hop.prompt.ids, run.output_ids, run.fresh_rows, run.logits.clone())

    def same(self, other: Print) -> bool:
        mine, theirs = ((p.prompt, p.output, p.fresh) for p in (self, other))
        return mine == theirs and torch.equal(self.logits, other.logits)


class Weak:
    """The storage of a tensor, whoever else holds it or a view of it, without keeping it alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._ref: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        return not self._ref.expired()

    @property
    def storage(self) -> int:
        return int(self._ref.cdata)


@dataclass(eq=False)
class Passer(Witness):
    """Keeps nothing alive: it remembers prints, and weakly every storage that belongs to a request."""

    prints: list[Print] = field(default_factory=list)
    storages: list[Weak] = field(default_factory=list)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        return super().plan(hop, Weighed(engine, self))

    def note(self, hop: Hop, plan: Plan, run: Run) -> None:
        self.prints.append(Print.of(hop, run))
        self.weigh(run.cache.keys, run.cache.values, *run.hiddens.values())
        for source in (*hop.sources.values(), *hop.first.values()):
            self.weigh(source.kv.k, source.kv.v, *source.hidden.values())

    def weigh(self, *tensors: Tensor) -> None:
        self.storages += [Weak(t) for t in tensors]


@dataclass(frozen=True, eq=False)
class Weighed:
    """An engine whose answers are remembered weakly."""

    engine: Engine
    passer: Passer

    def encode(self, ids: Sequence[int]) -> KV:
        return self._weighed(self.engine.encode(ids))

    def oracle(self, prompt: Prompt) -> KV:
        return self._weighed(self.engine.oracle(prompt))

    def _weighed(self, kv: KV) -> KV:
        self.passer.weigh(kv.k, kv.v)
        return kv
