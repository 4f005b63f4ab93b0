"""What the harness knows of a task: its items, its agents, and how a raw answer becomes right, wrong or invalid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from harness.media import Media
from harness.sandbox.base import Execution
from harness.tasks.agent import Agent
from harness.tasks.tool import ToolUse

EXTRACTED = "\n\nExtracted: "
"""Stands in a raw answer before what a further call of the model extracted from it."""


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        id: stable and unique within its data set.
        question: the text of the question alone, as the data has it.
        target: the expected prediction in canonical form: what ``Task.extract`` would return for a right answer.
        choices: the options of a multiple-choice question, in order; empty elsewhere.
        fields: further text of the row that scoring or reports need (subject, worked solution, unit, tests).
        media: pictures and clips that the question shows, in order.
    """

    id: str
    question: str
    target: str
    choices: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    media: tuple[Media, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Which data a run used.

    Attributes:
        source: ``sample``, ``hub:<data set>`` or ``file:<name>``; never a folder of one machine.
        revision: revision of a hub data set as asked for; empty elsewhere.
        split: the split; empty for a local file, which says nothing about it.
        rows: number of items.
        sha256: over the ordered ids and contents of all items.
        subset: ``all``, or ``paper``: those that the paper counts.
    """

    source: str
    revision: str
    split: str
    rows: int
    sha256: str
    subset: str = "all"


@dataclass(frozen=True)
class Dataset:
    """All items in the order in which they run, with their manifest."""

    items: tuple[Item, ...]
    manifest: Manifest


class Task(Protocol):
    """A benchmark: data, roles, extraction and scoring. Knows no model, no method and no limit.

    ``extract`` and ``score`` are pure, so that stored raw answers can be scored again without a model.
    """

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def tau(self) -> float:
        """Threshold of the entropy gate for this task, in nats."""

    @property
    def tau_distance(self) -> float | None:
        """Threshold of the relative gate for this task; None leaves it to the method."""

    @property
    def lead_in(self) -> str: ...
    @property
    def agents(self) -> tuple[Agent, ...]:
        """The three task agents, in execution order."""

    @property
    def final(self) -> Agent:
        """The agent that reads the others and whose answer is scored."""

    @property
    def extractor(self) -> str:
        """Name of the extraction rule, for the record."""

    def load(self) -> Dataset:
        """Read and check all items. Raises UserError, before any model is loaded, if the data cannot be used."""

    def question(self, item: Item) -> str:
        """The full text of the shared question span, lead-in included, with ``harness.media.MARK`` where a medium goes:
        as often as the item has media."""

    def extract(self, raw: str, item: Item) -> str | None:
        """The prediction in ``raw``; None if it holds none (status ``invalid``)."""

    def score(self, prediction: str, item: Item) -> bool:
        """Whether an extracted prediction is right."""


@runtime_checkable
class Tooled(Protocol):
    """A task with tools."""

    @property
    def tools(self) -> tuple[ToolUse, ...]: ...

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """The result of ``tool`` on the output of an agent, as its readers will see it."""


@runtime_checkable
class Asking(Protocol):
    """A task whose answers may be extracted by one more call of the model."""

    def asked(self, raw: str) -> str | None:
        """What the call is asked about a raw answer; None if rules extract it."""


@runtime_checkable
class Executed(Protocol):
    """A task whose answers are programs."""

    def execution(self, prediction: str, item: Item) -> Execution:
        """What became of a program; it is right if it passed."""


def content_hash(*texts: str) -> str:
    """First 8 hex digits of the sha256 of the texts; part of an item's id."""
    return hashlib.sha256(json.dumps(texts, ensure_ascii=True).encode()).hexdigest()[:8]


def items_sha256(items: Iterable[Item]) -> str:
    """sha256 (hex) over the ordered ids and contents of ``items``."""
    digest = hashlib.sha256()
    for item in items:
        row: list[object] = [item.id, item.question, item.target, list(item.choices), sorted(item.fields.items())]
        if item.media:  # by name: what the files hold is part of the prompts' hash
            row.append([[m.kind, m.name, m.frames] for m in item.media])
        digest.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()
