"""The constructor and the loading that all question-answer benchmarks have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from harness.errors import UserError
from harness.tasks.agent import Agent, agent_of, agents_of
from harness.tasks.base import Dataset, Item, Manifest, items_sha256
from harness.tasks.source import Hub, read
from harness.tasks.subset import SUBSETS, PaperSubset
from harness.tasks.table import Record
from harness.tasks.tool import ToolUse, tools_of

TASK_AGENTS = 3


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    """Fields of a task's YAML.

    Attributes:
        name: name of the task in records.
        source: ``sample`` (embedded), ``hub``, or a path to a .jsonl, .json, .csv or .parquet file, relative to
            the working directory.
        split: split of the hub data set.
        revision: revision of the hub data set; None is its main branch.
        subset: ``all`` rows, or those that the ``paper`` counts, refused if the source does not hold them.
        tau: threshold of the entropy gate, nats.
        tau_distance: threshold of the relative gate; None leaves it to the method.
        lead_in: text that opens the question span.
        agents: the three task agents; mappings are turned into :class:`Agent`.
        final: the agent whose answer is scored; a mapping is turned into :class:`Agent`.
        tools: what is made of agents' outputs for their readers; mappings are turned into :class:`ToolUse`.

    Raises:
        UserError: if a field cannot be used.
    """

    name: str
    source: str
    split: str
    revision: str | None
    tau: float
    tau_distance: float | None
    lead_in: str
    agents: tuple[Agent, ...]
    final: Agent
    tools: tuple[ToolUse, ...] = ()
    subset: str = "all"

    paper: ClassVar[PaperSubset] = PaperSubset(0, unknown="which questions it counts is not known; set task.subset=all")
    hub: ClassVar[Hub]
    sample: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        agents = agents_of(self.agents, "task.agents")
        final = agent_of(self.final, "task.final")
        object.__setattr__(self, "agents", agents)
        object.__setattr__(self, "final", final)
        if len(agents) != TASK_AGENTS:
            raise UserError(f"task.agents must list exactly {TASK_AGENTS} agents, got {len(agents)}")
        names = [agent.name for agent in (*agents, final)]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"task.agents and task.final need distinct names, but {', '.join(repeated)} is repeated")
        object.__setattr__(self, "tools", tools_of(self.tools, names))
        _check_threshold("task.tau", self.tau)
        if self.tau_distance is not None:
            _check_threshold("task.tau_distance", self.tau_distance)
        if self.subset not in SUBSETS:
            raise UserError(f"task.subset must be one of {', '.join(SUBSETS)}, got {self.subset!r}")
        if not self.source.strip():
            raise UserError("task.source is empty; give sample, hub or a path to a data file")

    def load(self) -> Dataset:
        """The items of the subset in running order; for a hub split of known size, exactly as many.

        Raises:
            UserError: if the data is missing, broken, incomplete or of another size than the official split.
        """
        table = read(self.source, self.sample, self.hub, self.split, self.revision, self.columns)
        items = [self.item(index, record) for index, record in enumerate(table.records)]
        if self.subset == "paper":
            items = self.of_paper(items)
        if self.source == "hub" or self.subset == "paper":
            items = self.order(items)
        manifest = Manifest(table.source, table.revision, table.split, len(items), items_sha256(items), self.subset)
        return Dataset(tuple(items), manifest)

    def of_paper(self, items: list[Item]) -> list[Item]:
        """The paper's questions among all items. Raises UserError if they are not known or not all there."""
        return self.paper.select(items, self.source, self.split)

    def order(self, items: list[Item]) -> list[Item]:
        """Running order of a hub split, or of the paper's subset, given in file order."""
        return items

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """The result of a tool on an agent's output. Raises UserError if the task has no tools."""
        raise UserError(f"task.tools: task={self.name} has no tool for the output of {tool.of}; remove it")

    @abstractmethod
    def item(self, index: int, record: Record) -> Item:
        """The item of a row. Raises UserError if the row cannot be used."""


def _check_threshold(option: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UserError(f"{option} must be a finite number of at least 0, got {value!r}")
