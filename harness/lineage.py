"""Where the cache of a shared span comes from, and until when it is needed: known before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.workflow import QUESTION, Output, Step


@dataclass(frozen=True, eq=False)
class Lineage:
    """What follows from the steps of a workflow.

    Attributes:
        names: of the agents, by index.
        last_reader: by (hop, span), the last hop that starts from that hop's cache of the span; absent if none does.
    """

    steps: Sequence[Step]
    names: Sequence[str]
    last_reader: dict[tuple[int, str], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for step in self.steps:  # in execution order, so that the last one to write is the last to read
            for span, hop in (*self.upstream(step).items(), *self.first(step).items()):
                self.last_reader[hop, span] = step.index

    def upstream(self, step: Step) -> dict[str, int]:
        """By span, the hop its cache comes from: the hop upstream for the question, the producer for an output, whoever
        reads it (KVCMAS 3.6)."""
        question = {} if step.upstream is None else {QUESTION: step.upstream}
        return question | {read.span(self.names): self._producer(read) for read in step.reads}

    def first(self, step: Step) -> dict[str, int]:
        """By span, the first hop that held it (the star reference)."""
        return self.upstream(step) | {QUESTION: 0} if step.index else {}

    def read_after(self, step: Step, span: str) -> int | None:
        """The last hop after ``step`` that starts from its cache of ``span``; None if none does."""
        last = self.last_reader.get((step.index, span), -1)
        return last if last > step.index else None

    def _producer(self, output: Output) -> int:
        for step in self.steps:
            if (step.agent, step.round) == (output.agent, output.round):
                return step.index
        raise ValueError(f"no step produces {output}")
