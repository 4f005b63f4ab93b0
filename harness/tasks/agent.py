"""One agent of a task: its role, in words, as the task's YAML states it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields

from harness.errors import UserError

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Agent:
    """The private text of an agent. The question and the outputs of other agents are shared and stand elsewhere.

    Attributes:
        name: short id, unique within the task (``solver``); names edges, hops and pools.
        title: the role as other agents are told about it (``Math Solver``).
        system: the role prompt. It precedes every shared span and is what shifts their caches.
        before: user text in front of the question, such as worked examples; may be empty.
        instruction: user text that closes the prompt; may be empty.
        prefill: text that the assistant's turn starts with; usually empty.

    Raises:
        UserError: if the name is not a short lower-case identifier, or title or system is blank.
    """

    name: str
    title: str
    system: str
    before: str = ""
    instruction: str = ""
    prefill: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str):
                raise UserError(f"task agent: {field.name} must be text, got {value!r}")
        if not _NAME.fullmatch(self.name):
            raise UserError(f"task agent: name must be a lower-case identifier such as solver, got {self.name!r}")
        for required in ("title", "system"):
            if not getattr(self, required).strip():
                raise UserError(f"task agent {self.name!r}: {required} must not be empty")


def agent_of(value: object, where: str) -> Agent:
    """An agent from a mapping of its fields (a YAML node); an :class:`Agent` is returned as it is.

    Raises:
        UserError: if ``value`` is no mapping, or a field is unknown, missing or no text; ``where`` names the option.
    """
    if isinstance(value, Agent):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping with name, title and system, got {value!r}")
    known = {field.name for field in fields(Agent)}
    needed = {field.name for field in fields(Agent) if field.default is MISSING}
    found = {str(key) for key in value}
    if unknown := sorted(found - known):
        raise UserError(f"{where} has unknown fields {', '.join(unknown)}; an agent takes {', '.join(sorted(known))}")
    if missing := sorted(needed - found):
        raise UserError(f"{where} lacks {', '.join(missing)}; an agent needs {', '.join(sorted(needed))}")
    return Agent(**{str(key): text for key, text in value.items()})


def agents_of(values: object, where: str) -> tuple[Agent, ...]:
    """Agents from a list of mappings, in order.

    Raises:
        UserError: if ``values`` is no list, or one of its entries is refused by :func:`agent_of`.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"{where} must be a list of agents, got {values!r}")
    return tuple(agent_of(value, f"{where}[{index}]") for index, value in enumerate(values))
