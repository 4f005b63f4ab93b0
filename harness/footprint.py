"""What a method would hold on any model and at any length, without a model and without the memory.

The method itself runs, on tensors that have sizes and no storage (torch's meta device): whole requests pass through it
as warm-up requests, so that every hop is dense and is learned from. What it then says it holds is exact, for its own
bookkeeping counted it, and no formula can drift from the code. What depends on values is not seen: a gate that would
have refused an anchor, a novelty rule that would have kept a pool as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_cache import RowCache
from harness.backends.hf_run import Decoding, Run
from harness.clock import Clock, Stopwatch
from harness.errors import UserError
from harness.hop import SpanCaches
from harness.media import Media
from harness.records import HopRecord, StateSize
from harness.script import Case
from harness.tasks.single_stream import SingleStream, StreamScript
from harness.trajectory import Runner
from harness.workflow import Step
from methods.base import KV, Dense, Method, Plan, Rope, Shape
from methods.segment import Prompt, Span

META = torch.device("meta")


@dataclass(frozen=True)
class Footprint:
    """Bytes after ``requests`` requests.

    Attributes:
        state: what the method keeps between requests.
        request_bytes: the most that one request holds at once: the running hop's cache and those handed on to it.
        longest_prompt_tokens: of any hop.
    """

    requests: int
    state: StateSize
    request_bytes: int
    longest_prompt_tokens: int


def sizes_only(layers: int, kv_heads: int, head_dim: int, hidden: int, dtype: torch.dtype) -> Shape:
    """The shape of a model whose caches have no storage."""
    rope = Rope(torch.empty(head_dim // 2, device=META))
    return Shape(layers, kv_heads, head_dim, hidden, dtype, META, rope)


def footprint(method: Method, shape: Shape, task: SingleStream, requests: int, sightings: int = 1) -> Footprint:
    """Let ``requests`` distinct requests of ``task``'s lengths teach a fresh ``method``, each ``sightings`` times.

    Raises:
        UserError: for a method that looks at values while it learns.
    """
    method.bind(shape, 0)
    script = StreamScript(task, Numbered(), seed=0)
    runner = _Sizing(method, cast(HF, _Unmade(shape)), script, frozenset())
    cases = [case for case in _cases(script, task, requests) for _ in range(sightings)]
    try:
        for number, case in enumerate(cases):
            runner.run(Case(f"{case.sample_id}.{number}", case.question, None, warmup=True))
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        name = type(method).__name__
        raise UserError(f"method={name}: it looks at values while it learns, so that its size is not known without "
                        f"a run ({str(error).splitlines()[0]})") from error  # fmt: skip
    held = method.state_bytes()
    return Footprint(requests, StateSize.of(held.base, held.correction), runner.peak_bytes, runner.longest)


def _cases(script: StreamScript, task: SingleStream, requests: int) -> list[Case]:
    """Distinct contents of one length; real ones would be cut from text, whose first tokens say which it is."""
    first = script.cases()[0]
    ids = first.question.ids
    return [
        Case(f"request-{n}", Span(first.question.id, (n, *ids[1:]), first.question.producer, ids[:1]), None)
        for n in range(requests)
    ]


class Numbered:
    """A tokenizer for prompts of which only the lengths matter: one id for every word."""

    def __call__(self, lines: Sequence[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[len(word) for word in line.split()] for line in lines]}

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True, eq=False)
class _Sized(Run):
    """A hop that was not computed: caches, hidden states and attention have sizes only."""

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        return self.hiddens[layer][start:stop]

    def attention(self, start: int, stop: int, layers: Collection[int]) -> Tensor:
        return torch.empty(stop, dtype=torch.float32, device=META)


@dataclass
class _Unmade:
    """The engine without a model, as far as :class:`harness.trajectory.Runner` asks for one."""

    shape: Shape
    clock: Clock = field(default_factory=Clock)
    eye: None = None

    @contextmanager
    def showing(self, media: Sequence[Media]) -> Iterator[list[Any]]:
        yield []

    def encode(self, ids: Sequence[int]) -> KV:
        return RowCache(self.shape, len(ids)).kv(0, len(ids))

    def run(self, prompt: Prompt, plan: Plan, decoding: Decoding, captures: frozenset[int] = frozenset()) -> Run:
        count, new = len(prompt), decoding.max_new_tokens
        cache = RowCache(self.shape, count + new)
        rows = torch.empty(count + new, self.shape.hidden, dtype=self.shape.dtype, device=META)
        content = next((p.segment.ids[0] for p in prompt.shared() if len(p)), 0)
        ids, dense = (content, *range(1, new)), isinstance(plan, Dense) or plan.exact
        logits = torch.empty(1, device=META)
        hiddens, fresh = dict.fromkeys(captures, rows), (count,) * self.shape.layers
        watch = Stopwatch(self.clock)
        return _Sized(count, ids, ids, fresh, dense, logits, cache, hiddens, watch, self.clock.now(), lambda *_: logits)


@dataclass
class _Sizing(Runner):
    """Counts what a request holds: the cache of the running hop, and those that later hops still read."""

    peak_bytes: int = 0
    longest: int = 0

    def _hop(self, case: Case, step: Step, spans: dict[str, Span], caches: SpanCaches) -> tuple[HopRecord, Run, float]:
        before = sum(source.kv.nbytes for source, _ in caches.kept.values())
        record, run, spent = super()._hop(case, step, spans, caches)
        self.peak_bytes = max(self.peak_bytes, before + run.cache.keys.nbytes + run.cache.values.nbytes)
        self.longest = max(self.longest, run.prompt_tokens)
        return record, run, spent
