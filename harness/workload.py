"""What a run works on, loaded and checked before any weights: items, workflow, data facts, prompt lengths."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness import decode
from harness.chat import ChatScript
from harness.errors import UserError
from harness.media import Media
from harness.provenance import DataFacts
from harness.script import Case, Script
from harness.tasks.base import Item, Task
from harness.tasks.single_stream import SingleStream, StreamScript
from harness.workflow import QUESTION, Step, Workflow
from methods.segment import Span

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader


@dataclass(frozen=True)
class Workload:
    """A task whose data is loaded.

    Attributes:
        data: the data's facts; None for text made on the spot.
        shadow: the task measures against dense whatever the option says.
        write: makes the script for a tokenizer, the ids that end a turn and the reader of media.
        media: all pictures and clips of the items.
    """

    data: DataFacts | None
    shadow: bool
    write: Callable[[Any, frozenset[int], MediaReader | None], Script]
    media: tuple[Media, ...] = ()

    def see(self, model: Any, called: str, task: str) -> MediaReader | None:
        """Check the media, and how the model source ``model`` reads them; None if it reads text only and has none.

        Raises:
            UserError: there are media and the model reads text only, or one that is there cannot be decoded.
        """
        reader: MediaReader | None = model.reader()
        if not self.media:
            return reader
        if reader is None:
            raise UserError(
                f"task={task} shows pictures or clips, model={called} reads text only; choose model=llava_ov_7b, or "
                "model=tiny_vlm, which needs no GPU and no network"
            )
        missing = [medium for medium in self.media if medium.missing]
        for medium in {(m.path, m.name): m for m in self.media if not m.missing}.values():
            decode.check(medium)
        if missing:
            first = missing[0]
            print(
                f"warning: {len(missing)} of {len(self.media)} pictures and clips are not there, the first is "
                f"{first.path or first.name} ({first.where}); their samples become rows with status missing",
                file=sys.stderr,
            )
        return reader


def load_benchmark(task: Task, workflow: Workflow, limit: int | None) -> Workload:
    """Load a benchmark's items, the first ``limit`` of them."""
    dataset = task.load()
    items, manifest = dataset.items[:limit], dataset.manifest
    facts = DataFacts(
        source=manifest.source,
        split=manifest.split or None,
        revision=manifest.revision or None,
        rows=manifest.rows,
        sha256=manifest.sha256,
        subset=manifest.subset,
        extractor=task.extractor,
    )
    return chat(facts, task, items, workflow)


def chat(facts: DataFacts, task: Task, items: Sequence[Item], workflow: Workflow) -> Workload:
    """The workload of a task's items over a workflow."""
    media = tuple(medium for item in items for medium in item.media)
    return Workload(facts, False, lambda *model: ChatScript(task, items, workflow, *model), media)


def load_stream(task: SingleStream, workflow: Workflow, limit: int | None, seed: int) -> Workload:
    """The single-stream experiment. Raises UserError if a workflow was chosen that it would ignore."""
    if workflow != Workflow("full"):
        raise UserError(
            f"workflow={workflow.name}: task={task.name} brings its own workflow; leave workflow alone and set "
            "task.graph, task.layout and task.output_tokens"
        )
    return Workload(None, True, lambda tokenizer, *_: StreamScript(task, tokenizer, seed, limit))


def warmed(cases: Sequence[Case], count: int) -> list[Case]:
    """``cases``, of which the first ``count`` that are no warm-up yet are now.

    Raises:
        UserError: if nothing would be left to measure.
    """
    measured = [case for case in cases if not case.warmup]
    if count and count >= len(measured):
        raise UserError(f"warmup={count}: there are {len(measured)} samples, so none is left to measure; lower warmup")
    first = {case.sample_id for case in measured[:count]}
    return [replace(case, warmup=True) if case.sample_id in first else case for case in cases]


def check_context(script: Script, cases: Sequence[Case], context: int, task: str) -> None:
    """Refuse a workload whose longest prompt may outgrow the model.

    Args:
        context: the model's positions.

    Raises:
        UserError: naming the sample, the agent, both lengths and the remedy.
    """
    if not cases:
        raise UserError(f"task={task}: there is nothing to run; check limit and the data")
    longest = max(cases, key=lambda case: len(case.question))
    spans = {QUESTION: longest.question}
    for step in script.steps:
        prompt, room = script.prompt(step, spans), script.max_new_tokens(step)
        if len(prompt) + room > context:
            raise UserError(
                f"task={task}: the prompt of agent {script.names[step.agent]} for sample {longest.sample_id} may "
                f"reach {len(prompt)} tokens and {room} more are generated, but the model's context is {context}; "
                "lower workflow.max_new_tokens, choose shorter data or a model with a longer context"
            )
        # One id more than an output span keeps, since the last generated token has no cache row.
        span = script.output(step, (0,) * (room + 1))
        spans[span.id] = Span(span.id, span.ids, span.producer, span.placeholder)
        if (result := script.tool_bound(step)) is not None:
            spans[result.id] = result


def prompts_sha256(script: Script, cases: Sequence[Case]) -> str:
    """Hash of all ids that do not depend on the model's answers: private text of every agent, every question."""
    digest = hashlib.sha256()
    empty = {span.id: span for step in script.steps for span in _stand_ins(script, step)}
    for step in script.steps:
        prompt = script.prompt(step, {**empty, QUESTION: Span(QUESTION, (0,), "user")})
        digest.update(repr(prompt.ids).encode())
    for case in cases:
        digest.update(repr((case.sample_id, case.question.ids)).encode())
    return digest.hexdigest()


def _stand_ins(script: Script, step: Step) -> list[Span]:
    result = script.tool_bound(step)
    return [script.output(step, (0,)), *([] if result is None else [result])]
