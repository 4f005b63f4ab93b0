"""Dense hops, run once and remembered, shown to any method as if it had run them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.backends.hf import HF
from methods.base import KV, Dense, Engine, Executed, Hop, Method, Plan, Reuse, Shape, Snapshot, StateBytes
from methods.prefix import RolePrefixes, role
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Recorded:
    """A dense hop with sources, as :class:`methods.base.Executed` of everything a learner may ask.

    Attributes:
        rows: by segment index, exact rows of every segment that is not empty.
    """

    hop: Hop
    rows: Mapping[int, KV]
    logits: Tensor
    output_ids: tuple[int, ...]
    fresh_rows: tuple[int, ...]
    dense: bool = True

    @property
    def prompt_tokens(self) -> int:
        return len(self.hop.prompt)

    def kv(self, start: int, stop: int) -> KV:
        """Raises ValueError for rows that are no whole remembered segment."""
        for index, kv in self.rows.items():
            placed = self.hop.prompt.placed[index]
            if (placed.start, placed.stop) == (start, stop):
                return KV(kv.k.clone(), kv.v.clone(), kv.start)
        raise ValueError(f"rows [{start}, {stop}) of the hop were not remembered")

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        raise ValueError("hidden states were not remembered")

    def attention(self, start: int, stop: int, layers: Collection[int]) -> Tensor:
        raise ValueError("attention was not remembered")


@dataclass(eq=False)
class Recorder:
    """A method that runs dense (role prompts from an exact cache) and remembers every hop that has sources."""

    hops: list[Recorded] = field(default_factory=list)
    prefixes: RolePrefixes = field(default_factory=RolePrefixes)

    def bind(self, shape: Shape, seed: int) -> None:
        self.hops, self.prefixes = [], RolePrefixes(shape.device)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        prefix = self.prefixes.rows(hop)
        return Dense() if prefix is None else Reuse({0: prefix}, exact=True)

    def observe(self, hop: Hop, executed: Executed) -> None:
        self.prefixes.learn(hop, executed)
        if not hop.sources:
            return
        prefix, first = self.prefixes.rows(hop), role(hop)
        shared = {} if prefix is None or first is None else {first.index: prefix}  # one copy for all hops of the agent
        places = [p for p in hop.prompt.placed if len(p) and p.index not in shared]
        rows = {p.index: executed.kv(p.start, p.stop) for p in places} | shared
        fresh = tuple(executed.fresh_rows)
        self.hops.append(Recorded(hop, rows, executed.logits, tuple(executed.output_ids), fresh))

    def end(self, trajectory: str) -> None:
        self.prefixes.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return StateBytes()

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    def snapshot(self) -> Snapshot | None:
        return None

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing is kept between runs."""

    def notes(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class Replayed:
    """The engine that a method sees while it plans a remembered hop: encodes are real, the oracle is the memory."""

    backend: HF
    recorded: Recorded

    def encode(self, ids: Sequence[int]) -> KV:
        return self.backend.encode(ids)

    def oracle(self, prompt: Prompt) -> KV:
        """Rows that were remembered; others are NaN."""
        some = next(iter(self.recorded.rows.values()))
        layers, heads, _, dim = some.k.shape
        k = torch.full((layers, heads, len(prompt), dim), torch.nan, dtype=some.k.dtype, device=some.k.device)
        whole = KV(k, k.clone(), 0)
        for index, kv in self.recorded.rows.items():
            at = prompt.placed[index]
            whole.k[:, :, at.start : at.stop], whole.v[:, :, at.start : at.stop] = kv.k, kv.v
        return whole


def teach(method: Method, recorded: Recorded, backend: HF) -> None:
    """Show a method a hop as a warm-up hop, on which all methods run dense and admit what they see."""
    hop = replace(recorded.hop, warmup=True)
    method.plan(hop, Replayed(backend, recorded))
    method.observe(hop, recorded)
    method.end(hop.trajectory)


def ask(method: Method, recorded: Recorded, backend: HF) -> tuple[Plan, Mapping[str, float]]:
    """A method's plan for a remembered hop, and its notes; the method learns nothing from it."""
    hop = recorded.hop
    plan = method.plan(hop, Replayed(backend, recorded))
    notes = dict(method.notes())
    method.end(hop.trajectory)
    return plan, notes
