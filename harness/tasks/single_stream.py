"""One request at a time over a controlled trajectory: the cost of a hop, not its answer.

Follows the single-stream experiment of KVCMAS (arXiv 2609.34060, efficiency section): every length is an
option, warm-up requests run dense and fill the pools, then steady requests are measured. It differs where that
experiment flatters a method: the text is real, every agent has its own role prompt (a shared one would let an
ordinary prefix cache serve the context exactly), and every measured hop is also run dense on the very same
prompt, so the speed-up is paired.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

from harness.errors import UserError
from harness.script import Case, ToolResult, Verdict
from harness.workflow import QUESTION, Graph, Layout, Step, Workflow
from methods.segment import Private, Prompt, Segment, Shared, Span


@dataclass(frozen=True)
class SingleStream:
    """Options of the experiment; all lengths in tokens.

    Attributes:
        agents: task agents; there is no final agent.
        system_tokens: role prompt of an agent, distinct per agent.
        shared_tokens: the context every agent reads.
        private_tokens: instructions after the shared spans.
        glue_tokens: private text before each upstream output (``layout=interleaved``), or the label inside it.
        output_tokens: generated per hop, exactly.
        warmup: dense requests before measuring (10 fill a pool of 10).
        samples: measured requests; ``limit`` counts these.
    """

    name: str = "single_stream"
    agents: int = 3
    system_tokens: int = 256
    shared_tokens: int = 2048
    private_tokens: int = 48
    glue_tokens: int = 8
    output_tokens: int = 32
    warmup: int = 10
    samples: int = 4
    graph: Graph = "full"
    layout: Layout = "contiguous"
    tau: float = 2.0
    tau_distance: float | None = None
    always_shadow: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in ("agents", "system_tokens", "shared_tokens", "private_tokens", "output_tokens", "samples"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        for field in ("glue_tokens", "warmup"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must not be negative, got {getattr(self, field)}")

    @property
    def workflow(self) -> Workflow:
        """The workflow this task brings itself."""
        return Workflow(self.name, self.graph, layout=self.layout, max_new_tokens=self.output_tokens)


class StreamScript:
    """Prompts of exact lengths, cut from real text."""

    def __init__(self, task: SingleStream, tokenizer: Any, seed: int, limit: int | None = None) -> None:
        self.task, self.workflow = task, task.workflow
        self.names = [f"agent{i}" for i in range(task.agents)]
        self.steps = self.workflow.steps(task.agents, final=False)
        self.tokenizer = tokenizer
        self._samples = task.samples if limit is None else min(task.samples, limit)
        self._text = real_text(tokenizer)
        self._seed = seed
        cut = self._cut
        self._system = [cut(f"system {i}", task.system_tokens) for i in range(task.agents)]
        self._tail = [cut(f"tail {i}", task.private_tokens) for i in range(task.agents)]
        self._label = [cut(f"label {i}", task.glue_tokens) for i in range(task.agents)]

    def _cut(self, name: str, count: int) -> tuple[int, ...]:
        """``count`` tokens of real text, fragments joined in an order that depends on the name and the seed."""
        draw = random.Random(f"{self._seed} {name}")
        out: list[int] = []
        while len(out) < count:
            out.extend(draw.choice(self._text))
        return tuple(out[:count])

    def cases(self) -> list[Case]:
        def case(name: str, warmup: bool) -> Case:
            ids = self._cut(name, self.task.shared_tokens)
            return Case(name, Span(QUESTION, ids, "user", ids[:1]), None, warmup=warmup)

        warm = [case(f"warmup-{i}", True) for i in range(self.task.warmup)]
        return warm + [case(f"sample-{i}", False) for i in range(self._samples)]

    def prompt(self, step: Step, spans: Mapping[str, Span]) -> Prompt:
        segments: list[Segment] = [Private(self._system[step.agent]), Shared(spans[QUESTION])]
        for read in step.reads:
            if self.workflow.layout == "interleaved":
                segments.append(Private(self._label[read.agent]))
            segments.append(Shared(spans[read.span(self.names)]))
        label = self._label[step.agent] if self.lead(step) else ()
        return Prompt((*segments, Private(self._tail[step.agent] + label)))

    def lead(self, step: Step) -> int:
        return self.task.glue_tokens if self.workflow.layout == "contiguous" and step.consumed else 0

    def output(self, step: Step, ids: Sequence[int]) -> Span:
        label, name = self._label[step.agent] if self.lead(step) else (), self.names[step.agent]
        return Span(f"output:{name}:{step.round}", label + tuple(ids[:-1]), name, self._label[step.agent][:1])

    def tool(self, case: Case, step: Step, ids: Sequence[int]) -> ToolResult | None:
        return None

    def tool_bound(self, step: Step) -> Span | None:
        return None

    def max_new_tokens(self, step: Step) -> int:
        return self.task.output_tokens

    def fixed_length(self) -> bool:
        return True

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def extraction(self, ids: Sequence[int]) -> Prompt | None:
        return None

    def extracted(self, ids: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
        return (*ids, *more)

    def predict(self, case: Case, ids: Sequence[int]) -> str | None:
        return self.text(ids)

    def judge(self, case: Case, ids: Sequence[int]) -> Verdict:
        return Verdict(self.text(ids), True)


def real_text(tokenizer: Any) -> list[list[int]]:
    """Sentences of the embedded GSM8K sample as ids, the stuff that prompts of any length are cut from."""
    source = resources.files("harness") / "data" / "gsm8k_sample.jsonl"
    lines = source.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise UserError("task=single_stream: the embedded sample is empty; reinstall kvcmas")
    encoded: list[list[int]] = tokenizer(lines, add_special_tokens=False, verbose=False)["input_ids"]
    return encoded
