"""What a run writes down: a row per sample, a record per hop, one summary.

Everything is decoded strictly (unknown fields and wrong types are refused), every duration is in seconds and
every size in bytes. Numbers are finite: JSON has no NaN, and a number that is not one has no place in a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

import msgspec

SCHEMA = 1
"""Version of the rows, the summary and the provenance. A folder of another version is refused."""


class Status(StrEnum):
    """How a sample ended. ``missing``: its input could not be obtained; ``invalid``: no answer could be extracted."""

    ok = "ok"
    invalid = "invalid"
    missing = "missing"
    timeout = "timeout"
    oom = "oom"
    error = "error"


class Route(StrEnum):
    """How a hop was executed. ``fallback``: dense because the method's gate refused a reuse that was possible."""

    dense = "dense"
    reuse = "reuse"
    fallback = "fallback"


def _finite(name: str, values: Iterable[float | None], minimum: float = -math.inf) -> None:
    for value in values:
        if value is not None and not (math.isfinite(value) and value >= minimum):
            bound = "" if minimum == -math.inf else f" and at least {minimum:g}"
            raise ValueError(f"{name} must be finite{bound}, got {value}")


class Phases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a hop by phase; ``learn_s`` is outside the time to first token, inside the end-to-end time.

    ``match``: lookup, weights, gate; ``assemble``: reconstruction, rotation, copies; ``prefill``: up to the first
    token; ``decode``: the other tokens; ``learn``: harvest, factorisation, pool update; ``encode``: context-free
    encodes.
    """

    match_s: float = 0.0
    assemble_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    learn_s: float = 0.0
    encode_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _finite(name, (getattr(self, name),), 0.0)

    def __add__(self, other: Phases) -> Phases:
        return Phases(*(getattr(self, n) + getattr(other, n) for n in self.__struct_fields__))


class StateSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes a method keeps between requests: reference caches, corrections, both."""

    base: int
    correction: int
    total: int

    def __post_init__(self) -> None:
        if min(self.base, self.correction) < 0 or self.total != self.base + self.correction:
            raise ValueError(f"state bytes must be >= 0 and add up, got {self.base} + {self.correction} = {self.total}")

    @classmethod
    def of(cls, base: int, correction: int) -> StateSize:
        return cls(base, correction, base + correction)


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a hop of a trace did what, seconds on the repeat's clock, which reads 0 when the first trajectory arrives.

    Attributes:
        due_s: its arrival, or the end of the last call it waits for.
        dispatched_s: it stood in the engine's queue; what it is later than ``due_s`` is the load's lateness.
        started_s: the engine began to work on it.
        first_token_s, ended_s: first and last token known.
        simulated: the times follow from a cost model; nothing ran.
    """

    due_s: float
    dispatched_s: float
    started_s: float
    first_token_s: float
    ended_s: float
    simulated: bool = False

    def __post_init__(self) -> None:
        times = (self.due_s, self.dispatched_s, self.started_s, self.first_token_s, self.ended_s)
        _finite("timing", times)
        if any(later < earlier - 1e-6 for earlier, later in pairwise(times)):
            raise ValueError(f"times must follow each other, got {times}")


class HopRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One agent call.

    Attributes:
        agent, index: who, and the position in the trajectory's execution order.
        warmup: the harness ran it dense to fill pools; outside every latency and ratio.
        forced: its output is what dense wrote on the same prompt, not its own choice (teacher forcing).
        source_hop: no upstream cache of any shared span existed, nor did the method have references of its own (an
            encode of the question), so that nothing could be reused.
        prompt_tokens, shared_tokens, output_tokens: counts; shared ones lie in shared spans of the prompt.
        fresh_token_layers: (token, layer) pairs that ran attention and MLP during prefill; L x prompt_tokens
            if everything ran.
        output_ids, output: what it generated, as ids and as text.
        ttft_s: from the moment the hop is due to its first token.
        e2e_s: from the same moment until the method has learned from the hop.
        timing: of a trace: when it happened.
        state_bytes: what the method holds at the hop's end.
        tool: what a tool made of the output, as later agents read it (whole, where their prompts cut it).
        notes: facts of the method about its plan.
        kv_error_k, kv_error_v: shadow only; per layer, ||used - dense|| / ||dense|| (Frobenius) over the rows
            of reused shared spans; empty if nothing was reused.
        first_token_kl: shadow only; KL(dense || used) of the first token's distribution, nats.
        prefix_match: shadow only; tokens of the common prefix of the two greedy outputs (of a forced hop: steps at
            which it would have chosen the forced id, up to the first at which it would not).
        answer_agrees: shadow only; the same answer is extracted from both outputs; None for a forced hop.
        shadow_ttft_s: shadow only; TTFT of the dense prefill of the very same prompt in the same run.
    """

    agent: str
    index: int
    route: Route
    warmup: bool = False
    forced: bool = False
    source_hop: bool = False
    prompt_tokens: int
    shared_tokens: int
    fresh_token_layers: int
    output_tokens: int
    output_ids: list[int] = []
    output: str = ""
    ttft_s: float
    e2e_s: float
    phases: Phases = Phases()
    timing: Timing | None = None
    state_bytes: StateSize | None = None
    tool: str = ""
    notes: dict[str, float] = {}
    kv_error_k: list[float] | None = None
    kv_error_v: list[float] | None = None
    first_token_kl: float | None = None
    prefix_match: int | None = None
    answer_agrees: bool | None = None
    shadow_ttft_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("index", "shared_tokens", "fresh_token_layers", "output_tokens", "ttft_s", "e2e_s"):
            _finite(name, (getattr(self, name),), 0)
        _finite("prompt_tokens", (self.prompt_tokens,), 1)
        if self.shared_tokens > self.prompt_tokens:
            raise ValueError(f"shared_tokens {self.shared_tokens} exceed prompt_tokens {self.prompt_tokens}")
        if self.output_ids and len(self.output_ids) != self.output_tokens:
            raise ValueError(f"output_tokens is {self.output_tokens}, but there are {len(self.output_ids)} output_ids")
        if self.e2e_s < self.ttft_s - 1e-6:  # one of them may be a sum of phases
            raise ValueError(f"e2e_s {self.e2e_s} is shorter than ttft_s {self.ttft_s}")
        if self.source_hop and self.route is not Route.dense:
            raise ValueError(f"a source hop has nothing to reuse, so its route is dense, not {self.route}")
        for name, value in self.notes.items():
            _finite(f"note {name}", (value,))
        shadow = (self.kv_error_k, self.kv_error_v, self.first_token_kl, self.prefix_match, self.shadow_ttft_s)
        if len({value is None for value in shadow}) > 1 or (self.answer_agrees is not None and not self.shadowed):
            raise ValueError("the fields of the shadow run are given all together or not at all")
        _finite("kv_error_k", self.kv_error_k or (), 0.0)
        _finite("kv_error_v", self.kv_error_v or (), 0.0)
        _finite("first_token_kl", (self.first_token_kl,))  # rounding may leave it a hair below 0
        _finite("prefix_match", (self.prefix_match,), 0)
        _finite("shadow_ttft_s", (self.shadow_ttft_s,), 0.0)

    @property
    def shadowed(self) -> bool:
        return self.shadow_ttft_s is not None


class ProgramRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of an answer that is a program: the outcome and the sandbox's level as
    :mod:`harness.sandbox.base` names them, and why it did not pass."""

    outcome: str
    message: str
    level: str


class MediaRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A picture or clip that the question showed.

    Attributes:
        kind: ``image`` or ``video``; name: what the data calls it; sha256: of its content.
        rows: rows of the prompt that it takes.
        frames: of a clip, the indices of the frames shown, in order.
    """

    kind: str
    name: str
    sha256: str
    rows: int
    frames: list[int] = []


class Warmed(Protocol):
    @property
    def warmup(self) -> bool: ...


class Sampled:
    """What follows from a row, however much of it was read."""

    __slots__ = ()

    sample_id: str
    repeat: int
    status: Status
    target: str | None
    hops: Sequence[Warmed]

    @property
    def key(self) -> tuple[str, int]:
        return self.sample_id, self.repeat

    @property
    def warmup(self) -> bool:
        """It only filled pools, and is in no metric."""
        return any(hop.warmup for hop in self.hops)

    @property
    def completed(self) -> bool:
        """All hops ran to their end, so that their times mean something."""
        return self.status in (Status.ok, Status.invalid)

    @property
    def scored(self) -> bool:
        """In the denominator of the accuracy: with an expected answer, but for warm-up and ``missing`` ones."""
        return self.status is not Status.missing and self.target is not None and not self.warmup


class Row(Sampled, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One sample.

    Attributes:
        sample_id, repeat: its key; unique in a run.
        subject: the benchmark's category of the sample, if it has any.
        prediction: what was extracted from ``raw``; None if nothing could be.
        target: the expected answer; None if the task has none.
        correct: whether ``prediction`` is right; only an ``ok`` row can be.
        program: how the prediction ran, if it is a program.
        raw: the final answer as generated, so that rescoring needs no model.
        message: why the status is not ``ok``, in one sentence.
        e2e_s: from the start of the first hop to the end of the last; in a trace from its arrival to its last token.
        peak_bytes: largest memory in use while the sample ran.
        state_bytes: what the method keeps after the sample.
        media: what the question showed.
    """

    sample_id: str
    repeat: int = 0
    subject: str | None = None
    status: Status
    prediction: str | None = None
    target: str | None = None
    correct: bool = False
    program: ProgramRun | None = None
    raw: str = ""
    message: str = ""
    e2e_s: float = 0.0
    peak_bytes: int | None = None
    state_bytes: StateSize | None = None
    media: list[MediaRecord] = []
    hops: list[HopRecord] = []

    def __post_init__(self) -> None:
        if self.status is Status.ok and self.prediction is None:
            raise ValueError(f"sample {self.sample_id} is ok without a prediction; its status should be invalid")
        if self.correct and self.status is not Status.ok:
            raise ValueError(f"sample {self.sample_id} is {self.status}, so it cannot be correct")
        _finite("repeat", (self.repeat,), 0)
        _finite("e2e_s", (self.e2e_s,), 0.0)
        _finite("peak_bytes", (self.peak_bytes,), 0)
