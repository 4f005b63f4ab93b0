"""Who runs when and who reads what: a workflow as a list of steps in execution order.

Graphs follow KVCMAS (arXiv 2609.34060): task agents exchange outputs along edges, a final reflection agent
reads them and answers. Within a round, edges go from earlier to later agents; over rounds, feedback edges hand
an agent's output of the previous round back (history spans).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from traces.graph import GRAPHS, Pairs, links

QUESTION = "question"

Graph = Literal["full", "chain", "fan_in", "fan_out", "loop", "custom"]
Layout = Literal["interleaved", "contiguous"]


@dataclass(frozen=True)
class Output:
    """The text that an agent produced in a round; ``span`` names the shared span it becomes."""

    agent: int
    round: int

    def span(self, names: Sequence[str]) -> str:
        return f"output:{names[self.agent]}:{self.round}"


@dataclass(frozen=True)
class Step:
    """One hop: which agent (index; the final agent comes after all task agents) reads which outputs.

    Attributes:
        upstream: hop index that the question's cache comes from, None on the first hop.
        consumed: whether a later step reads this step's output.
    """

    index: int
    agent: int
    round: int
    reads: tuple[Output, ...]
    upstream: int | None
    consumed: bool


@dataclass(frozen=True)
class Workflow:
    """Options of a workflow (its YAML) and the steps that follow from them.

    Attributes:
        graph: ``full`` (every agent reads all earlier ones: the paper's), ``chain``, ``fan_in`` (the last task
            agent reads the others), ``fan_out`` (all others read the first), ``loop`` (full, and the last agent's
            output goes back to the first one in the next round), ``custom`` (``edges`` and ``feedback``).
        rounds: how often the task agents run before the final agent does.
        final_reads: ``all`` outputs of the last round, or only those of ``sinks`` (agents nobody reads).
        layout: ``interleaved`` (private glue between shared spans: the paper's) or ``contiguous`` (shared spans
            right after the role prompt, labels inside the spans, instructions last).
        max_new_tokens: most tokens an agent generates.
        edges, feedback: pairs of task-agent indices, for ``graph=custom`` only.
    """

    name: str
    graph: Graph = "full"
    rounds: int = 1
    final_reads: Literal["all", "sinks"] = "all"
    layout: Layout = "interleaved"
    max_new_tokens: int = 256
    edges: Sequence[Sequence[int]] = ()
    feedback: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        if self.graph not in (*GRAPHS, "custom"):
            raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, custom, got {self.graph!r}")
        if self.layout not in ("interleaved", "contiguous"):
            raise ValueError(f"layout must be interleaved or contiguous, got {self.layout!r}")
        if self.final_reads not in ("all", "sinks"):
            raise ValueError(f"final_reads must be all or sinks, got {self.final_reads!r}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.graph != "custom" and (self.edges or self.feedback):
            raise ValueError("edges and feedback belong to graph=custom; remove them or set graph=custom")
        if self.rounds > 1 and self.graph not in ("loop", "custom"):
            raise ValueError(f"rounds={self.rounds} needs graph=loop or graph=custom with feedback edges")

    def links(self, agents: int) -> tuple[Pairs, Pairs]:
        """Edges within a round and feedback edges between rounds, for ``agents`` task agents."""
        if self.graph != "custom":
            return links(self.graph, agents)
        edges, feedback = {_pair(e, agents) for e in self.edges}, {_pair(e, agents) for e in self.feedback}
        for i, j in edges:
            if i >= j:
                raise ValueError(f"edges must go from an earlier to a later agent, [{i}, {j}] does not; use feedback")
        if self.rounds > 1 and not feedback:
            raise ValueError("several rounds need feedback edges: without them a round repeats the one before")
        return edges, feedback

    def steps(self, agents: int, final: bool = True) -> tuple[Step, ...]:
        """Steps in execution order for ``agents`` task agents, then the final agent unless ``final`` is false.

        Raises:
            ValueError: if an edge names an agent that is not there.
        """
        edges, feedback = self.links(agents)
        plan: list[tuple[int, int, tuple[Output, ...]]] = []
        for turn in range(self.rounds):
            for agent in range(agents):
                history = [Output(i, turn - 1) for i, j in sorted(feedback) if j == agent and turn > 0]
                current = [Output(i, turn) for i, j in sorted(edges) if j == agent]
                plan.append((agent, turn, (*history, *current)))
        if final:
            last = self.rounds - 1
            sinks = [a for a in range(agents) if not any(i == a for i, _ in edges)]
            readers = range(agents) if self.final_reads == "all" else sinks
            plan.append((agents, last, tuple(Output(a, last) for a in readers)))
        read = {output for _, _, reads in plan for output in reads}
        done: dict[Output, int] = {}
        steps: list[Step] = []
        for index, (agent, turn, reads) in enumerate(plan):
            # The question comes from the latest agent on an edge into this one; a root that is not the first
            # hop still finds the copy of whoever ran last.
            before = [done[o] for o in reads if o in done]
            upstream = max(before) if before else (index - 1 if index else None)
            steps.append(Step(index, agent, turn, reads, upstream, Output(agent, turn) in read))
            done[Output(agent, turn)] = index
        return tuple(steps)


def _pair(edge: Sequence[int], agents: int) -> tuple[int, int]:
    if len(edge) != 2 or not all(0 <= int(a) < agents for a in edge):
        raise ValueError(f"an edge is a pair of agent indices below {agents}, got {list(edge)}")
    return int(edge[0]), int(edge[1])
