"""The contracts between methods, engines and the harness.

Three roles never mix. A *method* decides: it sees a hop and returns a plan. An *engine* executes: it turns
the plan into keys, values, logits and tokens, and knows no method by name. The *harness* measures: clocks,
files and progress live there.

A method needs no other import than this module and :mod:`methods.segment`: caches and row schedules, defined in
:mod:`methods.cache` and :mod:`methods.schedule`, are part of the contract.

Shapes: L layers, H key/value heads, T tokens, D head dimension, N prompt tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from methods.cache import KV, Rope, Rows, Shape
from methods.schedule import FreshRows, Probe, RowSchedule, RowView, Selection, Shift
from methods.segment import Prompt

__all__ = [
    "KV", "Dense", "Engine", "Executed", "FreshRows", "Hop", "Method", "Plan", "Probe", "Reuse", "Rope", "RowSchedule",
    "RowView", "Rows", "Selection", "Shape", "Shift", "Snapshot", "Source", "StateBytes",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Source:
    """A cache of a span that an earlier hop of the trajectory holds.

    Attributes:
        agent, hop: who holds it.
        kv: its rows; ``kv.start`` is the row of that hop's cache where they begin.
        hidden: by layer in ``Method.captures``, the layer's input for the rows, ``[T, hidden]``; NaN in rows that
            did not run the layer in that hop.
    """

    agent: str
    hop: int
    kv: KV
    hidden: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Hop:
    """One agent call of a trajectory.

    Attributes:
        trajectory: id of the request; anchors are named after it.
        index: position in the execution order of the trajectory.
        agent: the agent that reads the prompt.
        prompt: its segments.
        sources: by span id, the upstream cache each shared span comes from (the edge source -> agent). A span
            that no earlier hop holds is absent: it must be prefilled.
        first: by span id, the first cache of the span in this trajectory (the star reference).
        warmup: the harness runs this hop dense whatever the method would decide, to fill pools; methods admit
            everything they see on it.
    """

    trajectory: str
    index: int
    agent: str
    prompt: Prompt
    sources: Mapping[str, Source] = field(default_factory=dict)
    first: Mapping[str, Source] = field(default_factory=dict)
    warmup: bool = False


@dataclass(frozen=True)
class Dense:
    """Prefill everything. ``refused`` marks a dense hop that a gate chose where reuse was possible."""

    refused: bool = False


@dataclass(frozen=True, eq=False)
class Reuse:
    """Place ``rows`` (by segment index) in the cache and run the rest fresh.

    Attributes:
        rows: reused keys and values by segment index.
        schedule: which rows run fresh at which layer.
        exact: whether the rows are bit-true prefixes (an exact prefix cache), so that the hop counts as dense.
    """

    rows: Mapping[int, Rows]
    schedule: RowSchedule = field(default_factory=FreshRows)
    exact: bool = False


Plan = Dense | Reuse


class Executed(Protocol):
    """What an engine did for one hop. Row ranges are absolute: prompt rows first, then generated rows (the last
    generated token has none, it was never fed back)."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def output_ids(self) -> Sequence[int]: ...

    @property
    def fresh_rows(self) -> Sequence[int]:
        """Per layer, rows that ran attention and MLP during prefill."""

    @property
    def dense(self) -> bool:
        """Whether every prompt row ran at every layer, or came from an exact prefix."""

    @property
    def logits(self) -> Tensor:
        """fp32 ``[V]``, of the first generated token."""

    def kv(self, start: int, stop: int) -> KV:
        """A copy of the rows ``[start, stop)`` as held in the cache (``KV.start`` set)."""

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        """A copy of a layer's input for prompt and generated rows, ``[stop - start, hidden]``; NaN in rows that did
        not run the layer. Only for layers in ``Method.captures``."""

    def attention(self, start: int, stop: int, layers: Collection[int]) -> Tensor:
        """Attention that rows ``[start, stop)`` give to rows ``[0, stop)``: fp32 ``[stop]``, softmax probabilities
        summed over these rows, all query heads and ``layers``.

        The rows run again from their embeddings over the cache as it is held, which stays as it was: call it in
        :meth:`Method.observe`, where its time counts as learning."""


class Engine(Protocol):
    """What a method may ask of the engine while it plans. The cost is charged to the hop."""

    def encode(self, ids: Sequence[int]) -> KV:
        """Context-free keys and values of ``ids`` alone at positions 0, 1, ... (``KV.start`` is 0)."""

    def oracle(self, prompt: Prompt) -> KV:
        """True keys and values of this very prompt (``KV.start`` is 0), from a dense prefill.

        Only controls that ask what a perfect choice would give may use it: it costs what it is meant to save. The
        harness notes its tokens on the hop.
        """


@dataclass(frozen=True)
class StateBytes:
    """Bytes a method keeps between requests: reference caches (base) and corrections."""

    base: int = 0
    correction: int = 0

    @property
    def total(self) -> int:
        return self.base + self.correction


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State of a method between two trajectories.

    Attributes:
        meta: JSON-able facts.
        blobs: named groups of tensors. A name never changes its contents, so a store writes each once.
    """

    meta: dict[str, Any]
    blobs: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


@runtime_checkable
class Method(Protocol):
    """A way of sharing caches. One dataclass a file; its fields are its hyperparameters and come from its YAML."""

    def bind(self, shape: Shape, seed: int) -> None:
        """Meet the model; called once, before the first hop. Raises ValueError if they do not fit."""

    def plan(self, hop: Hop, engine: Engine) -> Plan: ...

    def observe(self, hop: Hop, executed: Executed) -> None:
        """Learn from an executed hop. Outside the time to first token, inside the end-to-end time."""

    def end(self, trajectory: str) -> None:
        """The request is over: commit what was learned, drop everything that belongs to the request."""

    def state_bytes(self) -> StateBytes: ...

    @property
    def captures(self) -> frozenset[int]:
        """Layers whose input hidden states :meth:`observe` or later plans (``Source.hidden``) need."""

    def snapshot(self) -> Snapshot | None:
        """State to resume from; None for a method that learns nothing."""

    def restore(self, snapshot: Snapshot) -> None: ...

    def notes(self) -> Mapping[str, float]:
        """Facts about the last plan for the hop's record (usable anchors, effective number of anchors, ...)."""
