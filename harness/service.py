"""The contract between open-loop load and whatever serves it: a transformers engine, vLLM, or a simulator.

The load (:mod:`harness.traffic`) decides what is due when and judges what came back. A service executes calls as an
engine would have them, on a clock of its own, which may be virtual. Times are seconds on that clock.

A service does not schedule arrivals, does not know trajectories beyond the caches that their hops hand on, and writes
no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from traceback import format_exc
from typing import Any, Protocol, runtime_checkable

from harness.errors import in_one_line
from harness.provenance import RanModel
from harness.records import Phases, Route
from harness.serving import EngineFigures
from methods.base import Method, StateBytes
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of a call's cache that later hops of its trajectory start from.

    Attributes:
        span: id of the span that they are, as the readers' prompts name it.
        start, stop: rows ``[start, stop)``, prompt rows first, then generated ones (the last generated token has none).
        until: index of the last hop that may read them; afterwards the service lets go of them.
    """

    span: str
    start: int
    stop: int
    until: int


@dataclass(frozen=True, eq=False)
class Call:
    """One agent call, due now or earlier.

    Attributes:
        id: unique since the service was reset.
        trajectory: id of the user's request; what a method learns is named after it.
        index: position in the execution order of the trajectory.
        prompt: its segments; spans that earlier hops hold are ``Shared``.
        upstream: by span id, index of the hop whose cache the span comes from. The service has that cache if the hop
            kept the span and has ended; otherwise the span counts as one that nobody holds.
        first: by span id, index of the first hop that held it (the star reference).
        keeps: what later hops read of this call's cache.
        output_tokens: exactly so many are generated; stop tokens count like others.
        due_s: when it was due; on the clock, so that it may lie in the past.
        warmup: runs dense whatever the method would decide, to fill pools.
    """

    id: str
    trajectory: str
    index: int
    agent: str
    prompt: Prompt
    output_tokens: int
    due_s: float
    upstream: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)
    keeps: Sequence[Kept] = ()
    warmup: bool = False


@dataclass(frozen=True)
class Answer:
    """A call that ran to its end.

    Attributes:
        id: of the call.
        route: how it was executed.
        dispatched_s: when it stood in the engine's queue. What it is later than the call's ``due_s`` is the load's own
            lateness; where load and engine share a thread, time for which the engine was at work is none of it.
        started_s: when the engine began to work on it; what it is later than ``dispatched_s`` is queueing.
        first_token_s, ended_s: first and last token known.
        learned_s: the method has learned from it; ``ended_s`` if that happens elsewhere or not at all.
        output_ids: what was generated.
        fresh_token_layers: (token, layer) pairs that ran attention and MLP during prefill.
        phases: seconds of work by phase; with several calls in one batch, the call's share as far as it is known.
        notes: facts for the hop's record, by name.
    """

    id: str
    route: Route
    dispatched_s: float
    started_s: float
    first_token_s: float
    ended_s: float
    learned_s: float
    output_ids: Sequence[int]
    fresh_token_layers: int
    phases: Phases = field(default_factory=Phases)
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A call that raised, in one line; ``out_of_memory`` tells that cause from others. ``traceback`` is for the log."""

    id: str
    ended_s: float
    message: str
    out_of_memory: bool = False
    traceback: str = ""

    @classmethod
    def of(cls, call: Call, ended_s: float, error: BaseException, out_of_memory: bool = False) -> Failed:
        """Of the error that is being handled."""
        return cls(call.id, ended_s, in_one_line(error), out_of_memory, format_exc())


class Service(Protocol):
    """Executes calls under one method."""

    @property
    def label(self) -> str:
        """What tables call it: the engine's name, or what is simulated."""

    @property
    def layers(self) -> int:
        """L of the model."""

    @property
    def model(self) -> RanModel:
        """What runs, for the provenance."""

    @property
    def simulated(self) -> bool:
        """Whether times come from a cost model: such numbers are called simulation wherever they appear."""

    def reset(self, repeat: int) -> None:
        """Cold: a method with empty pools (its seed is the run's plus ``repeat``), no caches, no calls, clock at 0."""

    def begin(self) -> None:
        """Warm-up is over and nothing is in flight: the clock reads 0 again and figures count from here."""

    def now(self) -> float: ...

    def submit(self, call: Call) -> None:
        """Put a call into the queue. Never raises for what the call holds: that is a :class:`Failed` later."""

    def advance(self, until_s: float) -> Sequence[Answer | Failed]:
        """Work until a call has ended or the clock reads ``until_s``, whichever comes first.

        ``until_s`` may be infinite. With nothing to do it waits until then, or returns nothing at once if that is
        forever. It may return later than asked, where a step of the engine cannot be cut short.
        """

    def end(self, trajectory: str) -> None:
        """All calls of the trajectory have ended, or the rest will not come: commit what was learned from it
        (``Method.end``) and let go of its caches."""

    def state_bytes(self) -> StateBytes:
        """What the method keeps between requests."""

    def figures(self) -> EngineFigures: ...


@dataclass(frozen=True)
class Served:
    """What a service will work with.

    Attributes:
        context: most positions of a prompt with its output; None if nothing limits them.
        vocab: ids below it exist.
        tokenizer: None where ids are never read as text.
        simulated: its clock is its own, so that a trace may last as long as it likes.
    """

    context: int | None
    vocab: int
    tokenizer: Any = None
    simulated: bool = False


@runtime_checkable
class Server(Protocol):
    """What the choice of ``backend`` offers for ``task=trace``.

    ``source`` is the choice of ``model`` (:class:`harness.backends.hf_facts.ModelSource`), ``method`` the method as
    configured and not bound, ``label`` its name in the configuration, ``seed`` the run's.
    """

    def check(self, source: Any, method: Method, label: str, seed: int) -> Served:
        """Refuse, before weights are read or anything is written, what this engine will not do.

        Raises:
            UserError: naming the option and the remedy.
        """

    def serve(self, source: Any, method: Method, label: str, seed: int) -> AbstractContextManager[Service]:
        """Load what is needed and serve until the ``with`` block ends; each reset starts from a copy of ``method``."""
