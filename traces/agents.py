"""Workflows of agents over one shared context, arriving as a stream of trajectories."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from traces.arrivals import PROCESSES, arrivals
from traces.graph import GRAPHS, links
from traces.schema import Piece, Request, Trace, TraceError


@dataclass(frozen=True)
class Agents:
    """Options of a trace; lengths in tokens.

    A hop's prompt is system | question | private | (glue | output) for every output it reads | tail. The system and
    private text of an agent are the same in all trajectories; the question and the outputs are shared within one.

    Attributes:
        agents: all of them run one after the other; with ``final`` the last one reads every output of the last round.
        graph, rounds: see :func:`traces.graph.links`; several rounds need graph ``loop``.
        qps: agent calls per second; trajectories arrive at ``qps`` / calls in one.
        arrivals, burstiness: see :func:`traces.arrivals.arrivals`.
    """

    trajectories: int = 16
    agents: int = 4
    graph: str = "full"
    rounds: int = 1
    final: bool = True
    system_tokens: int = 256
    shared_tokens: int = 4096
    private_tokens: int = 64
    glue_tokens: int = 16
    output_tokens: int = 64
    tail_tokens: int = 5
    qps: float = 1.0
    arrivals: str = "poisson"
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("trajectories", "agents", "rounds", "shared_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise TraceError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("system_tokens", "private_tokens", "glue_tokens", "tail_tokens", "seed"):
            if getattr(self, name) < 0:
                raise TraceError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("qps", "burstiness"):
            if not 0 < getattr(self, name) < math.inf:
                raise TraceError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.graph not in GRAPHS:
            raise TraceError(f"graph must be one of {', '.join(GRAPHS)}, got {self.graph!r}")
        if self.arrivals not in PROCESSES:
            raise TraceError(f"arrivals must be one of {', '.join(PROCESSES)}, got {self.arrivals!r}")
        if self.rounds > 1 and self.graph != "loop":
            raise TraceError(f"rounds={self.rounds} needs graph=loop, the others would repeat the same round")
        if self.final and self.agents < 2:
            raise TraceError("a final agent needs others before it: agents must be at least 2, or final false")

    def calls(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """Per hop of a trajectory: agent, round, and the (agent, round) whose outputs it reads."""
        task = self.agents - self.final
        edges, feedback = links(self.graph, task)
        out = []
        for turn in range(self.rounds):
            for agent in range(task):
                history = [(i, turn - 1) for i, j in sorted(feedback) if j == agent and turn]
                out.append((agent, turn, [*history, *((i, turn) for i, j in sorted(edges) if j == agent)]))
        if self.final:
            out.append((task, self.rounds - 1, [(agent, self.rounds - 1) for agent in range(task)]))
        return out

    def trace(self) -> Trace:
        """The requests, in order of arrival and hop."""
        calls = self.calls()
        random = np.random.default_rng(self.seed)
        times = arrivals(self.arrivals, self.trajectories, self.qps / len(calls), self.burstiness, random)
        if not np.isfinite(times).all():
            burst = f" (burstiness={self.burstiness})" if self.arrivals == "gamma" else ""
            raise TraceError(f"qps must be larger, got {self.qps}{burst}: calls would arrive at no finite time")
        requests = [r for t, time in enumerate(times.tolist()) for r in self._trajectory(t, time, calls)]
        return Trace(tuple(requests), self.seed, {"generator": "agents", **asdict(self)})

    def _trajectory(
        self, trajectory: int, arrival_s: float, calls: list[tuple[int, int, list[tuple[int, int]]]]
    ) -> list[Request]:
        names = {(agent, turn): f"{trajectory}/{hop}" for hop, (agent, turn, _) in enumerate(calls)}
        requests = []
        for hop, (agent, turn, reads) in enumerate(calls):
            pieces = [
                ("private", f"system:agent{agent}", self.system_tokens),
                ("shared", f"question:{trajectory}", self.shared_tokens),
                ("private", f"task:agent{agent}", self.private_tokens),
            ]
            for number, read in enumerate(reads):
                pieces.append(("private", f"glue:agent{agent}:{number}", self.glue_tokens))
                pieces.append(("shared", f"output:{names[read]}", self.output_tokens))
            pieces.append(("private", f"tail:agent{agent}", self.tail_tokens))
            # A hop that reads nobody still follows the one before it, whose cache of the question it takes.
            before = [names[read] for read in reads] or [f"{trajectory}/{hop - 1}"] * (hop > 0)
            requests.append(
                Request(
                    id=names[agent, turn],
                    trajectory=trajectory,
                    hop=hop,
                    agent=f"agent{agent}",
                    arrival_s=arrival_s,
                    pieces=tuple(Piece(k, n, 0, tokens) for k, n, tokens in pieces if tokens),  # type: ignore[arg-type]
                    output_tokens=self.output_tokens,
                    after=tuple(before),
                )
            )
        return requests
