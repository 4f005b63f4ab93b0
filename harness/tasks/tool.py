"""Tools of a workflow: what is made of an agent's output and shown to its readers beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import UserError

OFF = "not run, since execution is off"


@dataclass(frozen=True)
class ToolUse:
    """One tool at its place in the workflow (KVCMAS arXiv 2609.34060: the condition of an agent's output).

    Attributes:
        of: the agent whose output it works on.
        readers: the agents whose prompts show the result, wherever they read that output.
        title: text in front of the result.
        before: the result stands before the output, not behind it.
        tokens: the result is cut to so many.
    """

    of: str
    readers: tuple[str, ...]
    title: str
    before: bool = False
    tokens: int = 256


def tools_of(values: object, agents: Sequence[str]) -> tuple[ToolUse, ...]:
    """Tools from a list of mappings (a YAML node).

    Raises:
        UserError: if an entry is no mapping of the fields of :class:`ToolUse`, or names an agent that is not there.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"task.tools must be a list, got {values!r}")
    made = []
    for index, value in enumerate(values):
        where = f"task.tools[{index}]"
        if isinstance(value, Mapping):
            value = _tool(value, where)
        if not isinstance(value, ToolUse):
            raise UserError(f"{where} must be a mapping with of, readers and title, got {value!r}")
        if strangers := [name for name in (value.of, *value.readers) if name not in agents]:
            raise UserError(f"{where} names {', '.join(strangers)}, but the agents are {', '.join(agents)}")
        made.append(value)
    return tuple(made)


def _tool(value: Mapping[object, object], where: str) -> ToolUse:
    match {"before": False, "tokens": 256, **{str(key): part for key, part in value.items()}}:
        case {
            "of": str(of),
            "readers": [*readers],
            "title": str(title),
            "before": bool(before),
            "tokens": int(tokens),
            **others,
        } if tokens > 0 and not others:
            return ToolUse(of, tuple(str(name) for name in readers), title, before, tokens)
    raise UserError(
        f"{where} takes of (an agent), readers (a list of agents), title, before (true or false) and tokens (at least "
        f"1), got {dict(value)!r}"
    )
