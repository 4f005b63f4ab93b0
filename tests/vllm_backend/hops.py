"""A small workflow by hand: agents that read a shared question, each under its own role prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.backends.vllm_call import Call, Keep, Piece

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine, Flight

ROLES = {"solver": 37, "critic": 61, "judge": 20}  # tokens


def words(name: str, count: int) -> list[int]:
    """Ids below 256, the same for the same name."""
    return np.random.default_rng(list(name.encode())).integers(0, 256, count).tolist()


def hop(
    engine: Engine,
    trajectory: str,
    index: int,
    agent: str,
    question: Sequence[int],
    output: Sequence[int] = (),
    tokens: int = 8,
    salt: str | None = "",
    **more: Any,
) -> Flight:
    """Send hop ``index``: role, question, and (from the second hop on) glue and the output of the hop before."""
    role, tail = words(agent, ROLES[agent]), words("tail", 9)
    source, first = (index - 1, 0) if index else (None, None)
    pieces = [Piece(len(role)), Piece(len(question), "question", "user", source, first)]
    ids = [*role, *question]
    if output:
        glue = words("glue", 11)
        pieces += [Piece(len(glue)), Piece(len(output), f"output:{index - 1}", "agent", index - 1, index - 1)]
        ids += [*glue, *output]
    pieces.append(Piece(len(tail)))
    ids += tail
    keeps = (Keep("question", len(role), len(role) + len(question)), Keep(f"output:{index}", len(ids)))
    call = Call(trajectory, index, agent, tuple(pieces), keeps, **more)
    salt = f"{trajectory}/{index}" if salt == "" else salt
    return engine.send(ids, tokens, request=call, salt=salt, logprobs=20)


def play(engine: Engine, trajectory: str, question: Sequence[int], agents: Sequence[str]) -> list[Flight]:
    """A chain of agents; the trajectory ends with the last."""
    flights, output = list[Any](), tuple[int, ...]()
    for index, agent in enumerate(agents):
        flight = hop(engine, trajectory, index, agent, question, output, last=index == len(agents) - 1)
        engine.run(flight)
        flights.append(flight)
        output = flight.output_ids[:-1]
    return flights


def dense(engine: Engine, ids: Sequence[int], tokens: int = 8) -> Flight:
    """The same prompt without the method, from a cold cache."""
    flight = engine.send(ids, tokens, salt=f"dense/{engine.now()}", logprobs=20)
    engine.run(flight)
    return flight
