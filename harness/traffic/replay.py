"""One pass over a plan on a service: warm-up one after another, then every call when it is due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.service import Answer, Call, Failed, Service
from harness.traffic.plan import Plan, Planned, Trajectory
from harness.traffic.text import Text


@dataclass(frozen=True, eq=False)
class Done:
    """A call and what became of it."""

    call: Call
    result: Answer | Failed


@dataclass(frozen=True, eq=False)
class Outcome:
    """A trajectory of which nothing is in flight any more.

    Attributes:
        arrival_s: on the clock of the measured part.
        done: calls that ran, in execution order; ``skipped``: hops that did not, since one before them failed.
    """

    trajectory: Trajectory
    arrival_s: float
    done: tuple[Done, ...]
    skipped: tuple[int, ...]

    @property
    def failures(self) -> tuple[Failed, ...]:
        return tuple(d.result for d in self.done if isinstance(d.result, Failed))


@dataclass
class Replay:
    """State of one pass. Iterate over :meth:`measured` after :meth:`warm_up`."""

    plan: Plan
    text: Text
    service: Service
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)

    def warm_up(self) -> Iterator[Outcome]:
        """The first trajectories, one after another, and dense."""
        for trajectory in self.plan.trajectories[: self.plan.warmup]:
            yield from self._run((trajectory,), 0.0, warmup=True)

    def measured(self) -> Iterator[Outcome]:
        """The others, as they end; the first arrives when the clock reads 0."""
        self.service.begin()
        self.ends_s = dict.fromkeys(self.ends_s, -math.inf)  # warm-up is over before anything is due
        trajectories = self.plan.measured
        yield from self._run(trajectories, -min(t.arrival_s for t in trajectories), warmup=False)

    def _run(self, trajectories: tuple[Trajectory, ...], shift_s: float, warmup: bool) -> Iterator[Outcome]:
        load = _Load(self, trajectories, shift_s, warmup)
        while load.open:
            load.submit()
            yield from load.take(self.service.advance(load.next_due_s))


class _Load:
    """The calls of some trajectories: waiting for others, due at a time, in flight, or ended."""

    def __init__(self, replay: Replay, trajectories: tuple[Trajectory, ...], shift_s: float, warmup: bool) -> None:
        self.replay, self.service, self.shift_s, self.warmup = replay, replay.service, shift_s, warmup
        self.trajectories = {t.id: t for t in trajectories}
        self.home = {c.request.id: t for t in trajectories for c in t.calls}
        self.planned = {c.request.id: c for t in trajectories for c in t.calls}
        self.order = {name: n for n, name in enumerate(self.planned)}
        self.open = {t.id: {c.request.id for c in t.calls} for t in trajectories}
        self.done: dict[int, list[Done]] = {t.id: [] for t in trajectories}
        self.skipped: dict[int, list[int]] = {t.id: [] for t in trajectories}
        self.flying: dict[str, Call] = {}
        self.readers: dict[str, list[str]] = {}
        self.missing: dict[str, int] = {}
        self.due: list[tuple[float, int, Planned]] = []
        for name, planned in self.planned.items():
            for source in planned.request.after:
                self.readers.setdefault(source, []).append(name)
            awaited = [source for source in planned.request.after if source not in replay.ends_s]
            self.missing[name] = len(awaited)
            if not awaited:
                self._becomes_due(planned)
        for source in self.readers.keys() - self.planned.keys() - replay.ends_s.keys():
            self._skip(self.readers[source])

    @property
    def next_due_s(self) -> float:
        return self.due[0][0] if self.due else math.inf

    def submit(self) -> None:
        """Everything that is due by now."""
        while self.due and self.due[0][0] <= self.service.now():
            due_s, _, planned = heapq.heappop(self.due)
            call = planned.call(self.replay.text, self.replay.outputs, due_s, self.warmup)
            self.flying[call.id] = call
            self.service.submit(call)

    def take(self, results: Sequence[Answer | Failed]) -> Iterator[Outcome]:
        """Note what has ended; yields trajectories of which nothing is left."""
        for result in results:
            call = self.flying.pop(result.id)
            trajectory = self.home[result.id]
            self.done[trajectory.id].append(Done(call, result))
            self._close(result.id)
            if isinstance(result, Failed):
                self._skip(self.readers.get(result.id, ()))
            else:
                self.replay.outputs[result.id] = tuple(result.output_ids)
                self.replay.ends_s[result.id] = result.ended_s
                for name in self.readers.get(result.id, ()):
                    self.missing[name] -= 1
                    if not self.missing[name]:
                        self._becomes_due(self.planned[name])
        ended = [self.trajectories[name] for name, calls in self.open.items() if not calls]
        if not (results or ended or self.due):
            raise RuntimeError(f"the service works on none of the {len(self.flying)} calls that it holds")
        for trajectory in ended:
            yield self._ended(trajectory)

    def _becomes_due(self, planned: Planned) -> None:
        request = planned.request
        arrival_s = self.service.now() if self.warmup else request.arrival_s + self.shift_s
        times = [arrival_s, *(self.replay.ends_s[source] for source in request.after)]
        heapq.heappush(self.due, (max(times), self.order[request.id], planned))

    def _close(self, name: str) -> None:
        self.open[self.home[name].id].discard(name)

    def _skip(self, names: Sequence[str]) -> None:
        """Nothing that waits for a failed call will run."""
        for name in names:
            trajectory = self.home[name].id
            if name in self.open.get(trajectory, ()):
                self._close(name)
                self.skipped[trajectory].append(self.planned[name].request.hop)
                self._skip(self.readers.get(name, ()))

    def _ended(self, trajectory: Trajectory) -> Outcome:
        del self.open[trajectory.id]
        self.service.end(str(trajectory.id))
        done = tuple(sorted(self.done.pop(trajectory.id), key=lambda d: d.call.index))
        skipped = tuple(sorted(self.skipped.pop(trajectory.id)))
        return Outcome(trajectory, trajectory.arrival_s + self.shift_s, done, skipped)
