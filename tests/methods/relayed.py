"""Two hops by hand on a real engine: a producer, and a reader of what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding, Run
from methods.base import KV, Dense, Hop, Plan, Reuse, Source
from methods.full_reuse import FullReuse
from methods.segment import Private, Prompt, Shared, Span

GREEDY = Decoding(12)


def draw(seed: int, count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (count,), generator=generator).tolist())


QUESTION = Span("question", draw(1, 31), "user")
PRODUCER = Prompt((Private(draw(2, 17)), Shared(QUESTION), Private(draw(3, 6))))


@dataclass(frozen=True)
class Relay:
    """A finished producer hop and a reader's hop on its question and its output."""

    method: Any
    engine: HF
    produced: Run
    hop: Hop

    def plan(self) -> Plan:
        plan: Plan = self.method.plan(self.hop, self.engine)
        return plan

    def run(self, plan: Plan | None = None, captures: frozenset[int] | None = None) -> Run:
        wanted = self.method.captures if captures is None else captures
        return self.engine.run(self.hop.prompt, self.plan() if plan is None else plan, GREEDY, wanted)

    def dense(self, captures: frozenset[int] = frozenset()) -> Run:
        return self.engine.run(self.hop.prompt, Dense(), GREEDY, captures)

    def full_reuse(self) -> Run:
        method = FullReuse("rotated", role_cache=False)
        method.bind(self.engine.shape, 0)
        return self.engine.run(self.hop.prompt, method.plan(self.hop, self.engine), GREEDY)

    @property
    def spans(self) -> int:
        return sum(len(p) for p in self.hop.prompt.shared())

    def rows(self) -> Tensor:
        """All rows of shared spans."""
        return torch.cat([torch.arange(p.start, p.stop) for p in self.hop.prompt.shared()])

    def with_sources(self, change: Any) -> Relay:
        """The same reader, whose sources went through ``change``."""
        found = {name: change(name, source) for name, source in self.hop.sources.items()}
        return replace(self, hop=replace(self.hop, sources=found, first=found))

    def from_dense(self, layer: int) -> Relay:
        """The same reader, whose sources are what its own dense run holds (an oracle)."""
        run = self.dense(frozenset({layer}))
        places = {p.span.id: p for p in self.hop.prompt.shared() if p.span is not None}

        def exact(name: str, source: Source) -> Source:
            at = places[name]
            kv = KV(run.kv(at.start, at.stop).k, run.kv(at.start, at.stop).v, at.start)
            return replace(source, kv=kv, hidden={layer: run.hidden(layer, at.start, at.stop)})

        return self.with_sources(exact)


def relay(method: Any, engine: HF, *, same_prefix: bool = False) -> Relay:
    """Run the producer dense under ``method``; the reader has another role prompt, or the very same prefix."""
    method.bind(engine.shape, 0)
    first = Hop("t", 0, "producer", PRODUCER)
    run = engine.run(PRODUCER, method.plan(first, engine), GREEDY, method.captures)
    method.observe(first, run)
    output = Span("output", run.output_ids[:-1], "producer")
    segments = PRODUCER.segments if same_prefix else (Private(draw(4, 26)), Shared(QUESTION), Private(draw(5, 4)))
    prompt = Prompt((*segments, Shared(output), Private(draw(6, 9))))
    sources = {
        "question": source(run, 17, 17 + len(QUESTION)),
        "output": source(run, len(PRODUCER), len(PRODUCER) + len(output)),
    }
    return Relay(method, engine, run, Hop("t", 1, "reader", prompt, sources, sources))


def source(run: Run, start: int, stop: int) -> Source:
    hidden: Mapping[int, Tensor] = {layer: run.hidden(layer, start, stop) for layer in run.hiddens}
    return Source("producer", 0, run.kv(start, stop), hidden)


def reused(plan: Plan) -> Reuse:
    assert isinstance(plan, Reuse)
    return plan
