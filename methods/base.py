"""The contracts between methods, engines and the harness.

Three roles never mix. A *method* decides: it sees a hop and returns a plan. An *engine* executes: it turns
the plan into keys, values, logits and tokens, and knows no method by name. The *harness* measures: clocks,
files and progress live there.

Shapes: L layers, H key/value heads, T tokens, D head dimension, N prompt tokens, C = H * D.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kernels.rope import rotate
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary facts read off a model, never recomputed from a base frequency.

    Attributes:
        inv_freq: fp32 ``[R / 2]``, R <= D rotated dimensions, half-split pairing (i with i + R/2).
        scaling: factor on cos and sin (YaRN's attention scaling; 1 elsewhere). A cached key carries it
            once, whatever its position.
    """

    inv_freq: Tensor
    scaling: float = 1.0

    def apply(self, keys: Tensor, positions: Tensor) -> Tensor:
        """De-rotated keys ``[..., T, D]`` -> keys as a model caches them at ``positions`` ``[T]``."""
        return rotate(keys, positions, self.inv_freq, self.scaling)

    def remove(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Keys ``[..., T, D]`` cached at ``positions`` ``[T]`` -> de-rotated keys, every row as if at 0."""
        return rotate(keys, -positions, self.inv_freq, 1.0 / self.scaling)

    def move(self, keys: Tensor, offset: int) -> Tensor:
        """Cached keys ``[..., T, D]`` moved by ``offset`` positions; offset 0 returns them bit for bit."""
        if offset == 0:
            return keys
        at = torch.full((keys.shape[-2],), offset, dtype=torch.long, device=keys.device)
        return rotate(keys, at, self.inv_freq, 1.0)


@dataclass(frozen=True, eq=False)
class Shape:
    """What a method must know about the model: sizes, dtype and device of its cache, rotary facts."""

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    rope: Rope

    @property
    def width(self) -> int:
        """C, the flattened key (or value) width of one layer and token."""
        return self.kv_heads * self.head_dim

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the full keys and values of ``tokens`` tokens over all layers: 2 L C T e."""
        return 2 * self.layers * self.width * tokens * self.dtype.itemsize


class Rows(Protocol):
    """Keys and values of T consecutive tokens that an engine can place in a cache."""

    def __len__(self) -> int: ...

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        """Fill ``keys`` and ``values`` ``[L, H, T, D]`` (views of a live cache) for rows start, start+1, ..."""


@dataclass(frozen=True, eq=False)
class KV:
    """Keys and values of T consecutive tokens, ``k`` and ``v`` of shape ``[L, H, T, D]``.

    Attributes:
        start: None if the keys are de-rotated (every row as if at position 0), which is the form that pools
            store and methods compute in. Otherwise the keys are as a model caches them with the first row at
            position ``start``: a relayed span keeps this form, so that moving it takes one rotation by the
            net offset, and none at all (bit for bit) when the offset is 0.
    """

    k: Tensor
    v: Tensor
    start: int | None = None

    def __post_init__(self) -> None:
        if self.k.shape != self.v.shape or self.k.dim() != 4:
            raise ValueError(
                f"k and v must share one [L, H, T, D] shape, got {tuple(self.k.shape)} and {tuple(self.v.shape)}"
            )

    def __len__(self) -> int:
        return int(self.k.shape[2])

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def derotated(self, rope: Rope) -> KV:
        """The same rows with de-rotated keys in fp32 arithmetic and the stored dtype."""
        if self.start is None:
            return self
        at = torch.arange(self.start, self.start + len(self), device=self.k.device)
        return KV(rope.remove(self.k, at), self.v)

    def rows(self, begin: int, end: int) -> KV:
        """Rows ``[begin, end)`` as views."""
        start = None if self.start is None else self.start + begin
        return KV(self.k[:, :, begin:end], self.v[:, :, begin:end], start)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        if self.start is None:
            at = torch.arange(start, start + len(self), device=self.k.device)
            keys.copy_(rope.apply(self.k, at))
        else:
            keys.copy_(rope.move(self.k, start - self.start))
        values.copy_(self.v)


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


@dataclass(frozen=True, eq=False)
class RowView:
    """What a row schedule may look at; all index tensors are int64 ``[*]`` on the engine's device.

    Attributes:
        fresh: rows no reused segment covers (and always the last row).
        reused: by segment index, the rows of each reused segment.
        total: N.
    """

    fresh: Tensor
    reused: Mapping[int, Tensor]
    total: int


def _blind(rows: Tensor) -> Tensor:
    raise ValueError("this engine does not show attention")


@dataclass(frozen=True, eq=False)
class Probe:
    """Keys (rotated, at their positions) and values of one layer, ``[H, R, D]`` each, for the R current rows:
    as just computed (fresh) and as the cache held them before (reused; NaN where nothing was reused).

    Attributes:
        received: for some of the current rows (sorted, as queries), the attention that every row of the prompt
            gets from them at this layer: probabilities under the causal mask, summed over query heads and query
            rows, fp32 ``[N]``. Keys are the fresh ones of the current rows and the held ones elsewhere. Queries
            are projected when it is called, so that a schedule that does not ask pays nothing.
    """

    layer: int
    rows: Tensor
    fresh_k: Tensor
    fresh_v: Tensor
    reused_k: Tensor
    reused_v: Tensor
    received: Callable[[Tensor], Tensor] = _blind


@dataclass(frozen=True, eq=False)
class Shift:
    """What is added to reused rows at one layer: ``rows`` int64 ``[P]``, ``keys`` (rotated, at the rows' positions)
    and ``values`` ``[H, P, D]``."""

    rows: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Selection:
    """Which rows run a layer.

    Attributes:
        keep: sorted absolute rows that run attention and MLP of this layer; a subset of the current rows
            united with ``enter``. Fresh rows and the last row are added by the engine.
        write: rows, probed but not kept, whose fresh keys and values still replace the reused ones.
        enter: rows that join here with their hidden states ``[R, hidden]`` (the input of this layer).
        shift: added, before the layer runs, to the keys and values that reused rows hold at this layer; rows
            that are kept or written take their fresh ones instead.
    """

    keep: Tensor
    write: Tensor | None = None
    enter: tuple[Tensor, Tensor] | None = None
    shift: Shift | None = None


class RowSchedule(Protocol):
    """Which rows run fresh at which layer; a pure function of what the engine has shown it in this hop.

    The engine goes through the layers once, in order, so a schedule may remember what an earlier layer showed.
    """

    def first_rows(self, view: RowView) -> Tensor:
        """Rows that enter layer 0 from their embeddings."""

    def probes(self, layer: int) -> bool:
        """Whether :meth:`select` wants the current rows' fresh keys and values at this layer."""

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection: ...


@dataclass(frozen=True)
class FreshRows:
    """The trivial schedule: rows outside reused segments run all layers, nothing else runs at all."""

    def first_rows(self, view: RowView) -> Tensor:
        return view.fresh

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)


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
    schedule: RowSchedule = FreshRows()
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
