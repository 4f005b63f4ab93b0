"""Which spans of a hop a delta method may reuse, and the cache that each correction starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from methods.base import KV, Engine, Hop, Source
from methods.glue import followers
from methods.grid import Edge, Grid, Request
from methods.prefix import digest
from methods.segment import Placed, Span

Stored = Callable[[str, str], KV | None]


@dataclass(frozen=True)
class Candidate:
    """A shared span that has a reference: ``source`` is the cache it comes from, None for an encode."""

    place: Placed
    span: Span
    source: Source | None
    key: str
    pool: str
    exact: str


def candidates(hop: Hop, grid: Grid) -> Iterator[Candidate]:
    """The shared spans that may be reused; others run fresh. Costs nothing."""
    for place in hop.prompt.shared():
        span = place.span
        if span is None:
            continue
        encodes = context_free(grid, span)
        source = _source(hop, span, grid)
        if source is None and not (encodes and grid.first_agent):
            continue
        origin = None if encodes else source
        key, exact = relation(hop, place.index, span, grid, origin.agent if origin else "")
        pool = span.id if grid.anchor_base == "last_writer" else key
        yield Candidate(place, span, origin, key, pool, exact)


def edges(hop: Hop, engine: Engine, request: Request, grid: Grid, stored: Stored) -> Iterator[Edge]:
    """The candidates of a hop with their references.

    Args:
        stored: by pool and exact name, the reference that an anchor keeps: it spares an encode.

    Raises:
        ValueError: if a source holds another number of rows than its span.
    """
    for found in candidates(hop, grid):
        place, span = found.place, found.span
        if found.source is None:
            origin = f"encode-{content(span.ids)}"
            kv = stored(found.pool, found.exact) or request.encoded.get(origin)
            if kv is None:
                kv = request.encoded[origin] = engine.encode(span.ids)
        else:
            origin, kv = f"{found.source.agent}@{found.source.hop}", found.source.kv
        if len(kv) != len(span):
            raise ValueError(f"the source of span {span.id!r} holds {len(kv)} rows for {len(span)} tokens")
        question = span.producer == "user"
        yield Edge(found.key, found.pool, place, kv, origin, followers(hop.prompt, place), question, found.exact)


def context_free(grid: Grid, span: Span) -> bool:
    """Whether the reference of a span is an encode of the span alone."""
    return grid.reference == "context_free" or (grid.reference == "producer" and span.producer == "user")


def relation(hop: Hop, index: int, span: Span, grid: Grid, agent: str) -> tuple[str, str]:
    """Key under which a correction is learned, and the exact name that its anchor must have ("" for any)."""
    if grid.exact == "set":
        before = sorted(content(p.segment.ids) for p in hop.prompt.placed[:index] if len(p))
        return f"{span.id}|set", content(span.ids) + digest("|".join(before))
    if grid.exact == "edge" and span.id in hop.sources:
        agent = hop.sources[span.id].agent
    return f"{span.id}:{agent}>{hop.agent}", content(span.ids) if grid.exact else ""


def content(ids: tuple[int, ...]) -> str:
    """A name for token ids."""
    return digest(",".join(map(str, ids)))


def _source(hop: Hop, span: Span, grid: Grid) -> Source | None:
    """The cache of an earlier hop, if one holds the span."""
    first = hop.first.get(span.id) if grid.reference in ("first_hop", "producer") else None
    return first or hop.sources.get(span.id)
