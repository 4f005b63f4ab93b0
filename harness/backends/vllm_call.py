"""What a request tells the engine about itself, as JSON in its ``kv_transfer_params``, under the key ``kvcmas``.

    {"kind": "hop", "trajectory": "t1", "hop": 1, "agent": "critic",
     "pieces": [{"tokens": 235}, {"tokens": 1511, "span": "question", "producer": "user", "source": 0, "first": 0},
                {"tokens": 28}],
     "keeps": [{"span": "output:critic:0", "start": 1774}]}

The ids themselves are the request's own prompt; ``pieces`` says which of them are shared spans, and which hop of the
trajectory holds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from methods.segment import Private, Prompt, Segment, Shared, Span

KEY = "kvcmas"


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A segment of the prompt.

    Attributes:
        tokens: its length.
        span: id of the shared span it shows; "" for private text.
        producer: agent whose tokens these are (``user`` for the question).
        source: the hop whose cache of the span is upstream; None if no hop holds it.
        first: the first hop of the trajectory that held it.
        placeholder: ids of the literal that stands for the span in a template pass.
    """

    tokens: int
    span: str = ""
    producer: str = ""
    source: int | None = None
    first: int | None = None
    placeholder: tuple[int, ...] = ()


class Keep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rows ``[start, stop)`` that later hops read as ``span``, as many of them as the request holds at its end (the
    last generated token has none); without ``stop``, all from ``start`` on. They go when all hops up to ``until``
    have ended, or with the trajectory."""

    span: str
    start: int
    stop: int | None = None
    until: int | None = None


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="hop"):
    """One agent call of a trajectory.

    Attributes:
        trajectory, hop, agent: who calls; a hop is called once.
        pieces: of the prompt, in order.
        keeps: rows that later hops read.
        warmup: runs dense whatever the method decides.
        last: the trajectory ends with this hop.
    """

    trajectory: str
    hop: int
    agent: str
    pieces: tuple[Piece, ...]
    keeps: tuple[Keep, ...] = ()
    warmup: bool = False
    last: bool = False

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """The prompt as segments.

        Raises:
            ValueError: the pieces do not add up to ``ids``, rows to keep begin outside them, or a source is no
                earlier hop.
        """
        if any(piece.tokens < 0 for piece in self.pieces) or sum(p.tokens for p in self.pieces) != len(ids):
            total = sum(p.tokens for p in self.pieces)
            raise ValueError(f"the pieces hold {total} tokens, the prompt has {len(ids)}; give the length of every one")
        segments, at = list[Segment](), 0
        for piece in self.pieces:
            part = tuple(ids[at : at + piece.tokens])
            span = Span(piece.span, part, piece.producer, piece.placeholder)
            segments.append(Shared(span) if piece.span else Private(part))
            at += piece.tokens
        if any(hop >= self.hop for hop in self.sources):
            raise ValueError(f"hop {self.hop} reads hop {max(self.sources)}; a source is an earlier hop")
        for keep in self.keeps:
            if not 0 <= keep.start <= len(ids) or (keep.stop is not None and keep.stop < keep.start):
                raise ValueError(
                    f"rows [{keep.start}, {keep.stop}) to keep as {keep.span!r} do not begin in the prompt"
                )
        return Prompt(tuple(segments))

    @property
    def sources(self) -> frozenset[int]:
        """Hops whose rows it reads."""
        hops = (hop for piece in self.pieces if piece.span for hop in (piece.source, piece.first))
        return frozenset(hop for hop in hops if hop is not None)


class Encode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="encode"):
    """The prompt alone, for plans of ``trajectory`` that ask for a context-free encode of these very ids."""

    trajectory: str


Request = Call | Encode


def params(request: Request) -> dict[str, Any]:
    """``kv_transfer_params`` of a request."""
    return {KEY: msgspec.to_builtins(request)}


def parse(found: Any) -> Request | None:
    """The request in ``kv_transfer_params``; None if there is none.

    Raises:
        ValueError: there is one, and it is not well formed.
    """
    if not isinstance(found, dict) or found.get(KEY) is None:
        return None
    request: Request = msgspec.convert(found[KEY], Request, strict=True)
    return request
