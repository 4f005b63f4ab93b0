"""Requests that run dense on the transformers engine, with every hop that has sources remembered. Text only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track

from harness.analysis.replay import Recorded, Recorder
from harness.backends.hf import HF
from harness.backends.hf_facts import LoadedModel
from harness.backends.hf_rope import shape_of
from harness.chat import ChatScript
from harness.command import composed
from harness.config import Choices
from harness.errors import UserError
from harness.explain import CommandLine
from harness.script import Case
from harness.tasks.single_stream import SingleStream, StreamScript
from harness.trajectory import Runner
from harness.validate import Parts, build
from harness.workload import check_context

T = TypeVar("T")
Scripted = ChatScript | StreamScript


@dataclass(frozen=True, eq=False)
class Asked:
    """What is to run, before weights are loaded."""

    cfg: DictConfig
    names: Choices
    parts: Parts

    @classmethod
    def of(cls, words: Sequence[str]) -> Asked:
        """Raises UserError for anything the user can mend, another backend among it."""
        cfg, names = composed(CommandLine((*words, "method=dense")))
        parts = build(cfg)
        if not isinstance(parts.backend, HF):
            raise UserError("backend: an analysis runs in the transformers engine; backend=hf")
        return cls(cfg, names, parts)

    @property
    def seed(self) -> int:
        return int(self.cfg.seed)

    def script(self, tokenizer: object, stops: frozenset[int] = frozenset()) -> Scripted:
        parts = self.parts
        if isinstance(parts.task, SingleStream):
            return StreamScript(parts.task, tokenizer, self.seed)
        return ChatScript(parts.task, parts.task.load().items, parts.workflow, tokenizer, stops)

    def cases(self) -> list[Case]:
        """All requests of the task that can run. Raises UserError if they show pictures or clips."""
        found = [case for case in self.script(self.parts.model.tokenizer()).cases() if not case.missing]
        if any(case.media for case in found):
            raise UserError(f"task={self.names.task}: an analysis reads text only; choose a task without media")
        return found

    def load(self, cases: Sequence[Case], hops: int | None) -> Dense:
        """Load the weights, for the first ``hops`` hops of a trajectory (None: all).

        Raises:
            UserError: for a request that does not fit the model's context, before that.
        """
        parts = self.parts
        facts, draft = parts.model.facts(), self.script(parts.model.tokenizer())
        check_context(draft, cases, facts.context, self.names.task)
        loaded = parts.model.load()
        parts.backend.attach(loaded.model, shape_of(loaded.model))
        script = self.script(loaded.tokenizer, frozenset(loaded.stop_ids))
        script.steps = script.steps[:hops]
        return Dense(parts.backend, loaded, script)


@dataclass(frozen=True, eq=False)
class Dense:
    """An engine with its model, and the requests' prompts."""

    engine: HF
    loaded: LoadedModel
    script: Scripted

    @property
    def dtype(self) -> str:
        return str(self.loaded.dtype).removeprefix("torch.")

    def record(self, recorder: Recorder, case: Case) -> list[Recorded]:
        """Run a request; its hops that have sources. ``recorder`` is bound already, and may know role prompts."""
        before = len(recorder.hops)
        Runner(recorder, self.engine, self.script, frozenset(self.loaded.stop_ids)).run(case)
        return recorder.hops[before:]

    def recorder(self) -> Recorder:
        made = Recorder()
        made.bind(self.engine.shape, 0)
        return made


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """``items`` with a progress bar on a terminal."""
    console = Console(stderr=True)
    return track(items, what, console=console, disable=not console.is_terminal)
