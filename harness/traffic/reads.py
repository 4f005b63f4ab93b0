"""Which rows of which call's cache a call of a trajectory starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from traces.schema import Piece, Request

OUTPUT = "output:"


@dataclass(frozen=True)
class Read:
    """A shared piece of a prompt that a cache may hold.

    Attributes:
        span: its id, the same in every trajectory.
        cached: how many of its tokens are read: all but a last generated one.
        upstream, first: hop whose cache it comes from, and the first hop that holds it; None if nobody does.
    """

    span: str
    cached: int
    upstream: int | None
    first: int | None


@dataclass(frozen=True)
class HeldRows:
    """Rows ``[row, row + tokens)`` of a call's cache hold tokens from ``offset`` of the text ``name``."""

    name: str
    offset: int
    tokens: int
    row: int


def rows_held(request: Request, spans: Spans) -> Iterator[HeldRows]:
    """What a call's cache holds when it has ended: its prompt, and all of its output but the last token."""
    row, run = 0, None
    for piece in map(spans.trimmed, request.pieces):
        if piece is None:
            continue
        if run is not None and piece.name == run.name and piece.offset == run.offset + run.tokens:
            run = HeldRows(run.name, run.offset, run.tokens + piece.tokens, run.row)
        else:
            if run is not None:
                yield run
            run = HeldRows(piece.name, piece.offset, piece.tokens, row)
        row += piece.tokens
    if run is not None:
        yield run
    if request.output_tokens > 1:
        yield HeldRows(f"{OUTPUT}{request.id}", 0, request.output_tokens - 1, row)


def row_of(held: Sequence[HeldRows], piece: Piece, tokens: int) -> int | None:
    """Row at which a cache holds the first ``tokens`` tokens of a piece; None if it does not hold them all."""
    for run in held:
        ahead = piece.offset - run.offset
        if run.name == piece.name and 0 <= ahead <= run.tokens - tokens:
            return run.row + ahead
    return None


def reads_of(
    request: Request, requests: Sequence[Request], held: Mapping[int, Sequence[HeldRows]], spans: Spans
) -> Iterator[tuple[int, Read]]:
    before = [r for r in requests if r.hop < request.hop]
    for index, piece in enumerate(request.pieces):
        if piece.kind != "shared":
            continue
        span, cached = spans.name(piece), spans.cached(piece)
        holders = [r.hop for r in before if cached and row_of(held[r.hop], piece, cached) is not None]
        producer = spans.producer(piece)
        if producer is not None:  # an output starts from its producer's cache, whoever reads it (KVCMAS 3.6)
            upstream = producer.hop if producer.hop in holders else None
            yield index, Read(span, cached, upstream, upstream)
            continue
        # Other text comes from the latest call on an edge into this one, else from whoever ran last.
        awaited = [r.hop for r in before if r.id in request.after and r.hop in holders]
        yield index, Read(span, cached, max(awaited or holders, default=None), min(holders, default=None))


class Spans:
    """Ids of a trajectory's spans: the part they play, never the text, so that they are equal in every trajectory."""

    def __init__(self, requests: Sequence[Request]) -> None:
        turns, self._producers = Counter[str](), dict[str, tuple[Request, str]]()
        for r in requests:
            self._producers[f"{OUTPUT}{r.id}"] = (r, f"{OUTPUT}{r.agent}:{turns[r.agent]}")
            turns[r.agent] += 1
        self._names: dict[tuple[str, int, int], str] = {}
        used = Counter[str]()
        for r in requests:
            for piece in r.pieces:
                key = (piece.name, piece.offset, piece.tokens)
                if piece.kind == "shared" and key not in self._names:
                    part = self._producers[piece.name][1] if piece.name in self._producers else _part(piece.name)
                    self._names[key] = f"{part}#{used[part]}" if used[part] else part
                    used[part] += 1

    def name(self, piece: Piece) -> str:
        return self._names[piece.name, piece.offset, piece.tokens]

    def producer(self, piece: Piece) -> Request | None:
        found = self._producers.get(piece.name)
        return None if found is None else found[0]

    def trimmed(self, piece: Piece) -> Piece | None:
        """The piece as prompts have it."""
        tokens = self.cached(piece) if piece.kind == "shared" else piece.tokens
        return replace(piece, tokens=tokens) if tokens else None

    def cached(self, piece: Piece) -> int:
        """Tokens of the piece that its producer's cache can hold."""
        producer = self.producer(piece)
        if producer is None:
            return piece.tokens
        return max(0, min(piece.tokens, producer.output_tokens - 1 - piece.offset))


def _part(name: str) -> str:
    return name.partition(":")[0]
