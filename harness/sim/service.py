"""The simulator as a service, on a clock of its own that jumps from event to event.

With one slot a call runs alone, decoding and learning included. With several, calls are batched as serving engines do:
a step decodes a token of every running call and spends what is left of its token budget on prefills in order; what a
method adds (matching, assembly, encodes, learning) holds up the step it falls into. A call is admitted while a slot and
room for its cache are free, and keeps both to its end. There is no preemption.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from harness.provenance import RanModel
from harness.records import Phases, Route
from harness.service import Answer, Call, Failed
from harness.serving import EngineFigures
from harness.sim.costs import Recipe, RouteCost, Work
from harness.sim.recipe import Accounts
from harness.traffic.occupancy import Interval, Occupancy, covered
from methods.base import StateBytes

VOCAB = 30_000


@dataclass(frozen=True)
class Machine:
    """What is simulated.

    Attributes:
        label, model_id: for tables and provenance.
        routes: cost by route.
        tokens: cache rows that fit; None: no limit.
    """

    label: str
    model_id: str
    layers: int
    slots: int
    budget: int
    routes: Mapping[Route, RouteCost]
    tokens: float | None = None


@dataclass(eq=False)
class Running:
    """A call at work: ``left`` tokens to prefill, ``made`` generated."""

    call: Call
    work: Work
    phases: Phases
    started_s: float
    left: int
    made: int = 0
    first_token_s: float = math.nan
    ended_s: float = math.nan
    learned_s: float = math.nan


@dataclass
class Log(Occupancy):
    """Since :meth:`SimService.begin`; ``steps`` are those of the engine."""

    steps: list[Interval] = field(default_factory=list)


class SimService:
    """See :class:`harness.service.Service`."""

    simulated = True

    def __init__(self, machine: Machine, recipe: Recipe, encode_tokens: int | None) -> None:
        self.machine, self.recipe, self.encode_tokens = machine, recipe, encode_tokens
        self.reset(0)

    @property
    def label(self) -> str:
        return self.machine.label

    @property
    def layers(self) -> int:
        return self.machine.layers

    @property
    def model(self) -> RanModel:
        return RanModel(
            id=self.machine.model_id, dtype="none", device=self.machine.label, attention="none", kernels="none"
        )

    def reset(self, repeat: int) -> None:
        self.accounts = Accounts(self.recipe, self.encode_tokens)
        self.queue: list[tuple[float, int, Call]] = []
        self.batch: list[Running] = []
        self.over: deque[Answer] = deque()
        self.count = 0
        self.begin()

    def begin(self) -> None:
        self.clock_s, self.log = 0.0, Log()

    def now(self) -> float:
        return self.clock_s

    def submit(self, call: Call) -> None:
        heapq.heappush(self.queue, (call.due_s, self.count, call))
        self.count += 1

    def advance(self, until_s: float) -> Sequence[Answer | Failed]:
        while not self.over:
            if not self.queue and not self.batch:
                if until_s == math.inf:
                    return ()
                self.clock_s = max(self.clock_s, until_s)
            elif self.clock_s < until_s:
                if self.machine.slots == 1:
                    self._alone()
                else:
                    self._step()
                continue
            break
        # What ended first is told first; others that ended in the same step follow at once.
        return (self.over.popleft(),) if self.over else ()

    def end(self, trajectory: str) -> None:
        self.accounts.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return StateBytes()

    def figures(self) -> EngineFigures:
        found = self.log.figures(self.clock_s, covered(self.log.steps))
        return msgspec.structs.replace(found, slots=self.machine.slots, step_tokens=self.machine.budget)

    def _alone(self) -> None:
        """The call that was due first, from beginning to end."""
        _, _, call = heapq.heappop(self.queue)
        run = self._start(call)
        p = run.phases
        run.first_token_s = run.started_s + p.match_s + p.encode_s + p.assemble_s + p.prefill_s
        run.ended_s = run.first_token_s + p.decode_s
        self.clock_s = run.learned_s = run.ended_s + p.learn_s
        self.log.steps.append((run.started_s, self.clock_s))
        self._finish(run)

    def _start(self, call: Call) -> Running:
        work = self.accounts.work(call)
        phases = self.machine.routes[work.route].phases(work)
        self.log.waiting.append((call.due_s, self.clock_s))
        return Running(call, work, phases, self.clock_s, work.computed)

    def _finish(self, run: Running) -> None:
        call = run.call
        self.accounts.ended(call)
        self.log.running.append((run.started_s, run.learned_s))
        seed = crc32(f"{call.trajectory}/{call.id}".encode())
        self.over.append(
            Answer(
                id=call.id,
                route=run.work.route,
                dispatched_s=call.due_s,
                started_s=run.started_s,
                first_token_s=run.first_token_s,
                ended_s=run.ended_s,
                learned_s=run.learned_s,
                output_ids=tuple((seed + 7919 * i) % VOCAB for i in range(call.output_tokens)),
                fresh_token_layers=run.work.computed * self.machine.layers,
                phases=run.phases,
                notes={"encode_tokens": float(run.work.encoded)} if run.work.encoded else {},
            )
        )

    def _admit(self) -> list[Running]:
        new = []
        while self.queue and len(self.batch) < self.machine.slots:
            call = self.queue[0][2]
            if self.batch and self.machine.tokens is not None and self._rows() + _size(call) > self.machine.tokens:
                break
            heapq.heappop(self.queue)
            new.append(self._start(call))
            self.batch.append(new[-1])
        return new

    def _rows(self) -> int:
        return sum(_size(run.call) for run in self.batch)

    def _step(self) -> None:
        """One forward of the whole batch."""
        begin, seconds = self.clock_s, 0.0
        for run in self._admit():
            seconds += run.phases.match_s + run.phases.assemble_s + run.phases.encode_s
        decoding = [run for run in self.batch if not run.left]
        if decoding:  # weights are read once for all of them, caches for each
            cost = [self.machine.routes[run.work.route].decode for run in decoding]
            seconds += max(c.decoded_s for c in cost)
            seconds += sum(c.context_s * (run.work.prompt + run.made) for c, run in zip(cost, decoding, strict=True))
        budget = max(0, self.machine.budget - len(decoding))
        for run in self.batch:
            if run.left and budget:
                part = min(run.left, budget)
                seconds += run.phases.prefill_s * part / run.work.computed
                run.left, budget = run.left - part, budget - part
        self.clock_s = begin + seconds
        learned = self.clock_s
        for run in self.batch:
            if run.left:
                continue
            run.made += 1
            if run.made == 1:
                run.first_token_s = self.clock_s
            if run.made == run.call.output_tokens:
                run.ended_s = self.clock_s
                learned += run.phases.learn_s
                run.learned_s = learned
        self.clock_s = learned
        self.log.steps.append((begin, learned))
        for run in [run for run in self.batch if run.made == run.call.output_tokens]:
            self.batch.remove(run)
            self._finish(run)


def _size(call: Call) -> int:
    return len(call.prompt) + call.output_tokens
