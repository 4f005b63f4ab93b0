"""Who reads whom among agents that run one after the other: edges within a round, and feedback between rounds."""

from __future__ import annotations

from typing import Literal, get_args

Graph = Literal["full", "chain", "fan_in", "fan_out", "loop"]
GRAPHS: tuple[str, ...] = get_args(Graph)

Pairs = set[tuple[int, int]]


def links(graph: str, agents: int) -> tuple[Pairs, Pairs]:
    """Pairs ``(source, reader)`` within a round and from a round to the next, for ``agents`` task agents.

    ``full``: every agent reads all earlier ones; ``chain``: the one before it; ``fan_in``: the last reads the others;
    ``fan_out``: the others read the first; ``loop``: full, and the last goes back to the first in the next round.

    Raises:
        ValueError: for another graph.
    """
    upper = {(i, j) for j in range(agents) for i in range(j)}
    match graph:
        case "full":
            return upper, set()
        case "chain":
            return {(i, i + 1) for i in range(agents - 1)}, set()
        case "fan_in":
            return {(i, agents - 1) for i in range(agents - 1)}, set()
        case "fan_out":
            return {(0, j) for j in range(1, agents)}, set()
        case "loop":
            return upper, {(agents - 1, 0)}
    raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, got {graph!r}")
