"""Chat prompts of a benchmark task, as segments.

The chat template is rendered once per agent around a marker; the two halves and every piece between them are
tokenised on their own and joined as ids, so each shared span has the same ids in every prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness import media
from harness.errors import UserError
from harness.script import Case, ToolResult, Verdict, judge
from harness.tasks.agent import Agent
from harness.tasks.base import EXTRACTED, Asking, Item, Task, Tooled
from harness.tasks.tool import ToolUse
from harness.workflow import QUESTION, Step, Workflow
from methods.segment import Private, Prompt, Segment, Shared, Span

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader

MARK = "\ue000"  # private use area: stands where the shared spans go while the template is rendered


class ChatScript:
    """Runs a task's items through a workflow of chat agents.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        stop_ids: ids that end a turn; they are cut off before an answer is read.
        reader: how the model reads pictures and clips; None if no item has any.
    """

    def __init__(
        self,
        task: Task,
        items: Sequence[Item],
        workflow: Workflow,
        tokenizer: Any,
        stop_ids: frozenset[int],
        reader: MediaReader | None = None,
    ) -> None:
        self.reader = reader
        self.task, self.items, self.workflow, self.tokenizer, self.stop_ids = task, items, workflow, tokenizer, stop_ids
        self.agents: tuple[Agent, ...] = (*task.agents, task.final)
        self.names = [a.name for a in self.agents]
        self.steps = workflow.steps(len(task.agents))
        self.tools = {tool.of: tool for tool in task.tools} if isinstance(task, Tooled) else {}
        self._by_id = {item.id: item for item in items}
        self._halves = [self._render(agent) for agent in self.agents]

    def _encode(self, text: str, literal: bool = True) -> tuple[int, ...]:
        """Ids of a piece. ``literal``: special tokens written in the text stay text (data must not open turns)."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=literal, verbose=False))

    def _render(self, agent: Agent) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and after the shared spans of an agent's prompt."""
        if not self.tokenizer.chat_template:
            raise UserError("model: its tokenizer has no chat template, which agents need; choose an instruct model")
        messages = [
            {"role": "system", "content": agent.system},
            {"role": "user", "content": f"{agent.before}{MARK}\n\n{agent.instruction}"},
        ]
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        head, _, tail = text.partition(MARK)
        return self._encode(head, literal=False), self._encode(tail + agent.prefill, literal=False)

    def _label(self, agent: int, turn: int) -> tuple[int, ...]:
        when = f" (round {turn + 1})" if self.workflow.rounds > 1 else ""
        return self._encode(f"\n\n{self.agents[agent].title}{when} wrote:\n")

    @property
    def _contiguous(self) -> bool:
        return self.workflow.layout == "contiguous"

    def cases(self) -> list[Case]:
        return [
            Case(
                item.id,
                self._question(item),
                item.target,
                item.fields.get("subject"),
                media=item.media,
                missing=next((f"the {m.kind} {m.name} is not there" for m in item.media if m.missing), ""),
            )
            for item in self.items
        ]

    def _question(self, item: Item) -> Span:
        text = self.task.question(item)
        pieces = text.split(media.MARK) if item.media else [text]
        ids = self._encode(pieces[0])
        for medium, piece in zip(item.media, pieces[1:], strict=True):
            ids += (self.reader.ids(medium) if self.reader and not medium.missing else ()) + self._encode(piece)
        return Span(QUESTION, ids, "user", self._encode("{question}"))

    def prompt(self, step: Step, spans: Mapping[str, Span]) -> Prompt:
        head, tail = self._halves[step.agent]
        segments: list[Segment] = [Private(head), Shared(spans[QUESTION])]
        for read in step.reads:
            tool = self.tools.get(self.names[read.agent])
            result = spans.get(_tool_span(self.names[read.agent], read.round))
            shown = [Shared(result)] if tool and result and self.names[step.agent] in tool.readers else []
            if tool and tool.before:
                segments += shown
            if not self._contiguous:
                segments.append(Private(self._label(read.agent, read.round)))
            segments.append(Shared(spans[read.span(self.names)]))
            if tool and not tool.before:
                segments += shown
        label = self._label(step.agent, step.round) if self.lead(step) else ()
        return Prompt((*segments, Private(tail + label)))

    def lead(self, step: Step) -> int:
        return len(self._label(step.agent, step.round)) if self._contiguous and step.consumed else 0

    def output(self, step: Step, ids: Sequence[int]) -> Span:
        label = self._label(step.agent, step.round) if self.lead(step) else ()
        name = self.names[step.agent]
        return Span(f"output:{name}:{step.round}", label + tuple(ids[:-1]), name, self._encode(f"{{{name}}}"))

    def tool(self, case: Case, step: Step, ids: Sequence[int]) -> ToolResult | None:
        tool = self._tool_on(step)
        if tool is None or not isinstance(self.task, Tooled):
            return None
        text = self.task.use(tool, self.text(ids), self._item(case))
        return ToolResult(text, self._tool_result(tool, step, self._encode(text)[: tool.tokens]))

    def tool_bound(self, step: Step) -> Span | None:
        tool = self._tool_on(step)
        return None if tool is None else self._tool_result(tool, step, (0,) * tool.tokens)

    def _tool_on(self, step: Step) -> ToolUse | None:
        return self.tools.get(self.names[step.agent]) if step.consumed else None

    def _tool_result(self, tool: ToolUse, step: Step, ids: tuple[int, ...]) -> Span:
        title = self._encode(f"\n\n{tool.title}:\n")
        return Span(_tool_span(tool.of, step.round), title + ids, "tool", self._encode(f"{{{tool.of} tool}}"))

    def max_new_tokens(self, step: Step) -> int:
        return self.workflow.max_new_tokens

    def fixed_length(self) -> bool:
        return False

    def text(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self.stop_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def _item(self, case: Case) -> Item:
        return self._by_id[case.repeat_of or case.sample_id]

    def extraction(self, ids: Sequence[int]) -> Prompt | None:
        asked = self.task.asked(self.text(ids)) if isinstance(self.task, Asking) else None
        if asked is None:
            return None
        text: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": MARK}], tokenize=False, add_generation_prompt=True
        )
        head, _, tail = text.partition(MARK)
        whole = self._encode(head, literal=False) + self._encode(asked) + self._encode(tail, literal=False)
        return Prompt((Private(whole),))

    def extracted(self, ids: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
        return (*ids, *self._encode(EXTRACTED), *more)

    def predict(self, case: Case, ids: Sequence[int]) -> str | None:
        return self.task.extract(self.text(ids), self._item(case))

    def judge(self, case: Case, ids: Sequence[int]) -> Verdict:
        return judge(self.task, self.text(ids), self._item(case))


def _tool_span(agent: str, turn: int) -> str:
    return f"tool:{agent}:{turn}"
