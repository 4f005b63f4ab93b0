"""What a workload tells the trajectory runner: who runs when, on which prompt, and how an answer is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.media import Media
from harness.sandbox.base import Execution
from harness.tasks.base import Executed, Item, Task
from harness.workflow import Step
from methods.segment import Prompt, Span


@dataclass(frozen=True)
class Case:
    """One request: a shared question and what is known about its answer.

    Attributes:
        warmup: all hops run dense, to fill pools; left out of every metric.
        repeat_of: the sample that this one repeats, if it does.
        media: pictures and clips whose rows the question holds.
        missing: what of its input could not be obtained, in one sentence; such a request is not run.
    """

    sample_id: str
    question: Span
    target: str | None
    subject: str | None = None
    warmup: bool = False
    repeat_of: str | None = None
    media: tuple[Media, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Verdict:
    """Judgement of a final answer: ``prediction`` is None when nothing could be extracted; ``execution`` says what
    became of it if it is a program."""

    prediction: str | None
    correct: bool
    execution: Execution | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool made of an output: the text, and the span that readers see (a title, then the text, cut to its
    limit). No hop holds a cache of it, so it runs fresh wherever it is read."""

    text: str
    span: Span


def judge(task: Task, raw: str, item: Item) -> Verdict:
    """The verdict on a raw answer to ``item``; the same for a fresh answer and for one stored in a row."""
    prediction = task.extract(raw, item)
    if prediction is not None and isinstance(task, Executed):
        execution = task.execution(prediction, item)
        return Verdict(prediction, execution.passed, execution)
    return Verdict(prediction, prediction is not None and task.score(prediction, item))


class Script(Protocol):
    """A workload over a workflow."""

    @property
    def steps(self) -> Sequence[Step]: ...

    @property
    def names(self) -> Sequence[str]:
        """Agent names by index; the final agent, if there is one, comes last."""

    def cases(self) -> Sequence[Case]:
        """All requests in order; raises UserError if the data is not usable."""

    def prompt(self, step: Step, spans: Mapping[str, Span]) -> Prompt: ...

    def output(self, step: Step, ids: Sequence[int]) -> Span:
        """The shared span that generated ``ids`` become. Its last token is dropped: it has no cache row."""

    def lead(self, step: Step) -> int:
        """Rows at the prompt's end that belong to the output span (a label that the prompt already holds)."""

    def tool(self, case: Case, step: Step, ids: Sequence[int]) -> ToolResult | None:
        """What a tool makes of the output of ``step``; None if no tool works on it."""

    def tool_bound(self, step: Step) -> Span | None:
        """A span as long as the longest result of :meth:`tool`."""

    def max_new_tokens(self, step: Step) -> int: ...

    def fixed_length(self) -> bool:
        """Whether decoding ignores stop tokens."""

    def extraction(self, ids: Sequence[int]) -> Prompt | None:
        """The prompt of one more call, which extracts the answer from a final output; None if rules do."""

    def extracted(self, ids: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
        """A final output followed by what that call said of it."""

    def predict(self, case: Case, ids: Sequence[int]) -> str | None:
        """The answer in an output, not scored."""

    def judge(self, case: Case, ids: Sequence[int]) -> Verdict: ...

    def text(self, ids: Sequence[int]) -> str: ...
