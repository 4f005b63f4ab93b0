"""Prompts as segments of token ids.

A prompt is built once, by concatenating the ids of its segments, and every method sees the same ids:
joined text is never tokenised again, so segment boundaries are exact by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Span:
    """A piece of shared context that several agents read.

    Attributes:
        id: role of the span in the workflow, stable over requests (``question``, ``output:solver``);
            together with the two agents it names an edge, under which corrections are learned.
        ids: its token ids.
        producer: agent whose tokens these are (``user`` for the question).
        placeholder: token ids of the literal that stands for the span in a template pass, used only
            by methods that keep stale text around spans (``glue=rotate``).
    """

    id: str
    ids: tuple[int, ...]
    producer: str
    placeholder: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Private:
    """Text that belongs to one agent: role prompt, glue between spans, instructions."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Shared:
    """A shared span at its place in a prompt."""

    span: Span

    @property
    def ids(self) -> tuple[int, ...]:
        return self.span.ids


Segment = Private | Shared


@dataclass(frozen=True)
class Placed:
    """A segment with its place: it covers rows ``[start, stop)`` of the prompt; ``index`` counts segments."""

    index: int
    segment: Segment
    start: int
    stop: int

    @property
    def span(self) -> Span | None:
        return self.segment.span if isinstance(self.segment, Shared) else None

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Prompt:
    """Ordered segments; offsets and ids follow from them.

    Raises:
        ValueError: if the prompt has no token.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not any(len(s.ids) for s in self.segments):
            raise ValueError("a prompt needs at least one token")

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        out, at = [], 0
        for index, segment in enumerate(self.segments):
            out.append(Placed(index, segment, at, at + len(segment.ids)))
            at += len(segment.ids)
        return tuple(out)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for s in self.segments for i in s.ids)

    def shared(self) -> Iterator[Placed]:
        """The non-empty shared spans, in prompt order."""
        return (p for p in self.placed if p.span is not None and len(p))

    def private(self) -> Iterator[Placed]:
        """The non-empty private segments, in prompt order."""
        return (p for p in self.placed if p.span is None and len(p))

    def __len__(self) -> int:
        return len(self.ids)
