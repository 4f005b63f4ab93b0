"""Requests that another evaluation harness makes, as a task: it asks and scores, the workflow answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.chat import ChatScript
from harness.errors import UserError
from harness.script import Case
from harness.tasks.agent import Agent, agent_of, agents_of
from harness.tasks.base import Dataset, Item, Manifest, content_hash, items_sha256
from harness.workflow import QUESTION, Step, Workflow
from methods.segment import Prompt, Shared, Span


@dataclass(frozen=True)
class Request:
    """A text to be continued, and the strings at which the continuation ends."""

    text: str
    until: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Fields of the task's YAML; the requests themselves come from :mod:`harness.lm_eval`.

    Attributes:
        prompt: ``workflow``: the text is the question that all agents share; ``plain``: one call, whose prompt is the
            text and nothing else, as a model without agents gets it.
        asked_by: names of the tasks that ask, for the record.
        requests_sha256: hash of all requests; like every field it is part of a run's identity.
        max_new_tokens: of the last agent, as the requests say; the others keep to the workflow's.
        items: the requests.
    """

    name: str
    prompt: Literal["workflow", "plain"]
    tau: float
    tau_distance: float | None
    lead_in: str
    agents: tuple[Agent, ...]
    final: Agent
    asked_by: str = ""
    requests_sha256: str = ""
    max_new_tokens: int = 256
    items: tuple[Item, ...] = ()
    source: str = "lm_eval"
    split: str = ""
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.prompt not in ("workflow", "plain"):
            raise UserError(f"task.prompt must be workflow or plain, got {self.prompt!r}")
        agents = () if self.prompt == "plain" else agents_of(self.agents, "task.agents")
        object.__setattr__(self, "agents", agents)
        object.__setattr__(self, "final", agent_of(self.final, "task.final"))

    @property
    def extractor(self) -> str:
        return "until"

    def load(self) -> Dataset:
        """The requests. Raises UserError if there are none: another harness has to make them."""
        if not self.items:
            raise UserError("task=lm_eval asks nothing by itself: python -m harness.lm_eval tasks=<name> method=...")
        manifest = Manifest(f"lm_eval:{self.asked_by}", "", "", len(self.items), items_sha256(self.items))
        return Dataset(self.items, manifest)

    def question(self, item: Item) -> str:
        return item.question if self.prompt == "plain" else f"{self.lead_in}{item.question}"

    def extract(self, raw: str, item: Item) -> str | None:
        """``raw`` up to the first of the request's stop strings; never None, since an empty answer is one."""
        for stop in json.loads(item.fields["until"]):
            raw = raw.split(stop)[0] if stop else raw
        return raw

    def score(self, prediction: str, item: Item) -> bool:
        """False: who asks also scores."""
        return False

    def script(self, workflow: Workflow, *model: Any) -> ChatScript:
        """``model``: tokenizer, stop ids and reader of media, as :class:`harness.chat.ChatScript` takes them."""
        kind = PlainScript if self.prompt == "plain" else RequestScript
        return kind(self, self.items, workflow, *model)


class RequestScript(ChatScript):
    """A workflow whose last agent may write as much as the requests allow."""

    task: Requests

    def cases(self) -> list[Case]:
        # Who asks also scores: without a target no accuracy of ours is claimed.
        return [replace(case, target=None) for case in super().cases()]

    def max_new_tokens(self, step: Step) -> int:
        last = step.index == len(self.steps) - 1
        return self.task.max_new_tokens if last else super().max_new_tokens(step)


class PlainScript(RequestScript):
    """One call per request, its text the whole prompt, tokenised as lm-eval's own model does."""

    def _render(self, agent: Agent) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (), ()

    def _question(self, item: Item) -> Span:
        text = self.task.question(item)
        begin = self.tokenizer.bos_token
        special = not (begin and text.startswith(begin))  # a rendered chat template has its own
        ids = self.tokenizer.encode(text, add_special_tokens=special, verbose=False)
        return Span(QUESTION, tuple(ids), "user", self._encode("{question}"))

    def prompt(self, step: Step, spans: Mapping[str, Span]) -> Prompt:
        return Prompt((Shared(spans[QUESTION]),))


def of(requests: Sequence[Request]) -> tuple[Item, ...]:
    """An item per request, in order."""
    return tuple(
        Item(
            f"request-{index:05d}-{content_hash(request.text, *request.until)}",
            request.text,
            "",
            fields={"until": json.dumps(request.until)},
        )
        for index, request in enumerate(requests)
    )
