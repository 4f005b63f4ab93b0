"""Short real requests: the task's own roles and questions, every piece cut to a few dozen tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.chat import ChatScript
from harness.errors import UserError
from harness.script import Case
from harness.tasks.base import Item, Task
from harness.workflow import Step, Workflow
from methods.segment import Span

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader

ROLE, ROLE_STEP, QUESTION, TAIL, OUTPUT = 24, 5, 32, 12, 5
"""Tokens of the first agent's role prompt, of what each later agent's is longer, of the rest."""

REQUESTS = 2


class ShortScript(ChatScript):
    """Three agents, each of which reads all earlier ones, and outputs of a fixed length."""

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        stop_ids: frozenset[int],
        reader: MediaReader | None = None,
        requests: int = REQUESTS,
    ) -> None:
        items = task.load().items[:requests]
        super().__init__(task, items, Workflow("verify", "full", max_new_tokens=OUTPUT), tokenizer, stop_ids, reader)
        self.steps = self.workflow.steps(2)
        self._halves = [
            (head[-(ROLE + ROLE_STEP * nth) :], tail[-TAIL:]) for nth, (head, tail) in enumerate(self._halves)
        ]
        if len(items) < requests:
            raise UserError(f"task={task.name}: verification needs {requests} samples, the data has {len(items)}")

    def _question(self, item: Item) -> Span:
        whole = super()._question(item)
        return Span(whole.id, whole.ids[:QUESTION], whole.producer, whole.placeholder)

    def fixed_length(self) -> bool:
        return True


class PrefixScript(ShortScript):
    """Two agents without role prompts that read the question alone: it has the same prefix in both, none at all."""

    def __init__(self, task: Task, tokenizer: Any, stop_ids: frozenset[int], reader: MediaReader | None = None) -> None:
        super().__init__(task, tokenizer, stop_ids, reader)
        self.steps: tuple[Step, ...] = Workflow("verify", "custom", max_new_tokens=OUTPUT).steps(2, final=False)
        self._halves = [((), tail) for _, tail in self._halves]


def again(case: Case) -> Case:
    """The same request under another name."""
    return replace(case, sample_id=f"{case.sample_id}-again", repeat_of=case.sample_id)
