"""A method under test on a loaded model: it is driven by the ordinary runner and asked for its limits, nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding
from harness.invariants.script import PrefixScript, ShortScript, again
from harness.invariants.witness import Keeper, Passer, Seen, Witness
from harness.script import Case, Script
from harness.trajectory import Runner
from methods.base import KV, Dense, Method, Reuse
from methods.limits import Limits, Options
from methods.segment import Prompt

KEPT = 24  # dense references held at a time
ONE = Decoding(1)

W = TypeVar("W", bound=Witness)


class Inapplicable(Exception):
    """The invariant says nothing about this method; the message says why."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A dense run of a prompt: fp32 logits ``[V]`` of the first token, and the prompt's rows."""

    logits: Tensor
    kv: KV


@dataclass(eq=False)
class Bench:
    """The engine (unset rows are NaN), the requests, and dense references."""

    engine: HF
    short: ShortScript
    prefix: PrefixScript
    known: dict[tuple[int, ...], Reference] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        return self.engine.shape.layers

    def dense(self, prompt: Prompt) -> Reference:
        found = self.known.pop(prompt.ids, None) or self.run(prompt, Dense())
        self.known[prompt.ids] = found
        while len(self.known) > KEPT:
            del self.known[next(iter(self.known))]
        return found

    def run(self, prompt: Prompt, plan: Dense | Reuse) -> Reference:
        run = self.engine.run(prompt, plan, ONE)
        return Reference(run.logits, run.kv(0, len(prompt)))


@dataclass(eq=False)
class Subject:
    """One configured method, not bound; every check takes fresh copies of it."""

    bench: Bench
    method: Any

    @cached_property
    def limits(self) -> Limits:
        ask = getattr(self.method, "limits", None)
        if ask is None:
            return Limits()
        found: Limits = ask(self.bench.layers)
        return found

    def fresh(self, options: Options) -> Method:
        """A bound copy with some fields set to other values."""
        made: Any = copy.deepcopy(self.method)
        if options:
            if not is_dataclass(made):
                raise TypeError("a method that has limits must be a dataclass, whose fields they set")
            made = replace(made, **options)  # type: ignore[type-var]
        made.bind(self.bench.engine.shape, 0)
        method: Method = made
        return method

    def play(self, witness: W, requests: Sequence[Case], script: Script | None = None) -> W:
        """Drive a bound method through requests."""
        runner = Runner(witness, self.bench.engine, script or self.bench.short, frozenset())
        for case in requests:
            runner.run(case)
        return witness

    def hops(self, options: Options, requests: Sequence[Case], script: Script | None = None) -> list[Seen]:
        """The hops of a fresh copy."""
        return self.play(Keeper(self.fresh(options)), requests, script).seen

    @cached_property
    def request(self) -> Case:
        return self.bench.short.cases()[0]

    @cached_property
    def main(self) -> Keeper:
        """A request, and the same request again, under options with which the method reuses."""
        return self.play(Keeper(self.fresh(self.limits.reusing)), [self.request, again(self.request)])

    @cached_property
    def resumed(self) -> tuple[Passer, Passer]:
        """The same from a fresh copy, which hands over to another one between the two requests."""
        first = self.play(Passer(self.fresh(self.limits.reusing)), [self.request])
        snapshot = first.snapshot()
        second = Passer(self.fresh(self.limits.reusing)) if snapshot is not None else Passer(first.inner)
        if snapshot is not None:
            second.restore(snapshot)
        return first, self.play(second, [again(self.request)])

    def reusing(self) -> list[Seen]:
        """Hops of :attr:`main` that reuse. Raises Inapplicable if there are none."""
        found = [seen for seen in self.main.seen if seen.reuse is not None]
        if not found:
            raise Inapplicable("it planned no reuse")
        return found
