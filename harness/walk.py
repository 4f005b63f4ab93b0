"""One sample on its way through the workflow of agents, a call at a time, on an engine that serves many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from harness.answered import hop_record
from harness.lineage import Lineage
from harness.records import HopRecord, StateSize
from harness.script import Case, Script
from harness.service import Answer, Call, Kept
from harness.trajectory import EXTRACTION_TOKENS
from harness.workflow import QUESTION, Step
from methods.base import StateBytes
from methods.segment import Prompt, Span


@dataclass(eq=False)
class Walk:
    """Ask for the next :meth:`call`, then :meth:`take` its answer, until ``over``. Times are the service's.

    Attributes:
        plain: the next call is none of the method's: it extracts the answer.
        final: ids of the last output, and of what the extraction said.
        aside_s: seconds that tools took, which no latency counts.
    """

    case: Case
    script: Script
    stop_ids: frozenset[int]
    over: bool = False
    plain: bool = False
    final: tuple[int, ...] = ()
    hops: list[HopRecord] = field(default_factory=list)
    begin_s: float | None = None
    end_s: float = 0.0
    aside_s: float = 0.0

    def __post_init__(self) -> None:
        self._index = 0
        self._spans: dict[str, Span] = {QUESTION: self.case.question}
        self._lineage = Lineage(self.script.steps, self.script.names)
        self._kept: set[tuple[int, str]] = set()
        self._call: Call | None = None

    @property
    def seconds(self) -> float:
        """From the first call to the end of the last hop, without tools."""
        return max(0.0, self.end_s - (self.begin_s or 0.0) - self.aside_s)

    def call(self, now_s: float) -> tuple[Call, frozenset[int]]:
        """What to submit next, due now, and the ids that end it."""
        name = f"{self.case.sample_id}#{self._index}"
        self.begin_s = now_s if self.begin_s is None else self.begin_s
        if self.plain:
            asked = self.script.extraction(self.final)
            assert asked is not None
            made = Call(name, self.case.sample_id, self._index, "", asked, EXTRACTION_TOKENS, now_s)
        else:
            made = self._hop(name, now_s)
        self._call = made
        return made, frozenset() if not self.plain and self.script.fixed_length() else self.stop_ids

    def take(self, answer: Answer, size: StateBytes) -> None:
        """What came of the call; ``size`` is what the method holds."""
        ids, call = tuple(answer.output_ids), self._call
        assert call is not None
        if self.plain:
            self.final, self.over = self.script.extracted(self.final, ids), True
            return
        step = self.script.steps[self._index]
        record = msgspec.structs.replace(
            hop_record(call, answer, self.script.text(ids)), state_bytes=StateSize.of(size.base, size.correction)
        )
        if step.consumed:
            span = self.script.output(step, ids)
            self._spans[span.id] = span
        held = call.keeps if len(ids) > 1 else [k for k in call.keeps if k.start < len(call.prompt)]
        self._kept |= {(step.index, keep.span) for keep in held}
        self.hops.append(record)
        self.final, self.end_s = ids, answer.learned_s
        self._index += 1

    def use_tool(self) -> None:
        """After :meth:`take`: let a tool work on the output, and see whether the sample is over."""
        if self.over:
            return
        step = self.script.steps[self._index - 1]
        result = self.script.tool(self.case, step, self.final)
        if result is not None:
            self._spans[result.span.id] = result.span
            self.hops[-1] = msgspec.structs.replace(self.hops[-1], tool=result.text)
        if self._index == len(self.script.steps):
            self.plain = self.script.extraction(self.final) is not None
            self.over = not self.plain

    def _hop(self, name: str, now_s: float) -> Call:
        step = self.script.steps[self._index]
        prompt = self.script.prompt(step, self._spans)
        return Call(
            id=name,
            trajectory=self.case.sample_id,
            index=step.index,
            agent=self.script.names[step.agent],
            prompt=prompt,
            output_tokens=self.script.max_new_tokens(step),
            due_s=now_s,
            upstream=self._there(self._lineage.upstream(step)),
            first=self._there(self._lineage.first(step)),
            keeps=tuple(self._keeps(step, prompt)),
            warmup=self.case.warmup,
        )

    def _there(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """The spans that their hop has left."""
        return {span: hop for span, hop in wanted.items() if (hop, span) in self._kept}

    def _keeps(self, step: Step, prompt: Prompt) -> Iterator[Kept]:
        """The question's rows as this hop holds them, and its output, if later hops read them."""
        held = [(QUESTION, p.start, p.stop) for p in prompt.shared() if p.span is not None and p.span.id == QUESTION]
        if step.consumed:
            most = len(prompt) + self.script.max_new_tokens(step) - 1
            held.append((self.script.output(step, ()).id, len(prompt) - self.script.lead(step), most))
        for span, start, stop in held:
            if (until := self._lineage.read_after(step, span)) is not None:
                yield Kept(span, start, stop, until)
