"""One hop of one method on the transformers engine: decide, execute, learn. Whoever times it owns the clock's ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding, Run
from harness.clock import Stopwatch
from harness.records import Phases, Route
from methods.base import KV, Dense, Hop, Method, Plan, Source
from methods.segment import Prompt


@dataclass
class Encoder:
    """What a method sees of the engine while it plans; its time is the hop's ``encode`` phase."""

    backend: HF
    watch: Stopwatch
    tokens: int = 0
    oracle_tokens: int = 0

    def encode(self, ids: Sequence[int]) -> KV:
        self.tokens += len(ids)
        with self.watch.phase("encode"):
            return self.backend.encode(ids)

    def oracle(self, prompt: Prompt) -> KV:
        self.oracle_tokens += len(prompt)
        with self.watch.phase("encode"):
            return self.backend.encode(prompt.ids)  # alone at position 0, a prompt is its own dense run

    def notes(self) -> dict[str, float]:
        found = {"encode_tokens": float(self.tokens), "oracle_tokens": float(self.oracle_tokens)}
        return {name: tokens for name, tokens in found.items() if tokens}


@dataclass(eq=False)
class HopRun:
    """A hop under way: :meth:`decide`, then :meth:`execute`, then :meth:`learn`.

    Attributes:
        plan: what was decided; dense until then, and dense on a warm-up hop whatever the method said.
    """

    method: Method
    backend: HF
    hop: Hop
    plan: Plan = field(default_factory=Dense)

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.backend.clock)
        self.encoder = Encoder(self.backend, self.watch)

    def decide(self) -> Plan:
        with self.watch.phase("match"):
            plan = self.method.plan(self.hop, self.encoder)
        if not self.hop.warmup:
            self.plan = plan
        return self.plan

    def execute(self, decoding: Decoding) -> Run:
        return self.backend.run(self.hop.prompt, self.plan, decoding, self.method.captures)

    def learn(self, run: Run, hand_on: Callable[[], None]) -> None:
        """Let the method see what was done, then ``hand_on`` the caches that later hops read."""
        with self.watch.phase("learn"):
            self.method.observe(self.hop, run)
            hand_on()

    @property
    def route(self) -> Route:
        if isinstance(self.plan, Dense):
            return Route.fallback if self.plan.refused else Route.dense
        return Route.dense if self.plan.exact else Route.reuse

    def phases(self, run: Run) -> Phases:
        watch = self.watch
        return Phases(
            match_s=watch.get("match") - watch.get("encode"),
            encode_s=watch.get("encode"),
            learn_s=watch.get("learn"),
            assemble_s=run.seconds.get("assemble"),
            prefill_s=run.seconds.get("prefill"),
            decode_s=run.seconds.get("decode"),
        )

    def notes(self) -> dict[str, float]:
        return {**self.method.notes(), **self.encoder.notes()}


@dataclass(eq=False)
class SpanCaches:
    """What hops of one trajectory left for later ones: copies of their rows by (hop, span), each until its last reader
    has run."""

    kept: dict[tuple[int, str], tuple[Source, int]] = field(default_factory=dict)

    def sources(self, wanted: Mapping[str, int]) -> dict[str, Source]:
        """By span, the cache of the hop that ``wanted`` names; a span which that hop did not leave is absent."""
        return {span: self.kept[hop, span][0] for span, hop in wanted.items() if (hop, span) in self.kept}

    def keep(self, hop: Hop, run: Run, span: str, start: int, stop: int, until: int) -> None:
        """Copy rows ``[start, stop)`` of what ``hop`` holds, for readers up to hop ``until``."""
        hidden = {layer: run.hidden(layer, start, stop) for layer in run.hiddens}
        self.kept[hop.index, span] = Source(hop.agent, hop.index, run.kv(start, stop), hidden), until

    def drop_used(self, index: int) -> None:
        """Hop ``index`` has run."""
        self.kept = {key: entry for key, entry in self.kept.items() if entry[1] > index}

    @property
    def nbytes(self) -> int:
        return sum(source.kv.nbytes + sum(h.nbytes for h in source.hidden.values()) for source, _ in self.kept.values())
