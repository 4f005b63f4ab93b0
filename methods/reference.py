"""Which spans of a hop a delta method may reuse, and the cache that each correction starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from methods.base import KV, Engine, Hop, Source
from methods.glue import followers
from methods.grid import Edge, Grid, Request
from methods.prefix import digest
from methods.segment import Span

Stored = Callable[[str, str], KV | None]


def edges(hop: Hop, engine: Engine, request: Request, grid: Grid, stored: Stored) -> Iterator[Edge]:
    """The shared spans with a reference; others run fresh.

    Args:
        stored: by pool and exact name, the reference that an anchor keeps: it spares an encode.

    Raises:
        ValueError: if a source holds another number of rows than its span.
    """
    for place in hop.prompt.shared():
        span = place.span
        if span is None:
            continue
        encodes = context_free(grid, span)
        source = _source(hop, span, grid)
        if source is None and not (encodes and grid.first_agent):
            continue
        key, exact = relation(hop, place.index, span, grid, "" if encodes or source is None else source.agent)
        pool = span.id if grid.anchor_base == "last_writer" else key
        if encodes or source is None:
            origin = f"encode-{content(span.ids)}"
            known = stored(pool, exact) if exact else None
            kv = known or request.encoded.get(origin)
            if kv is None:
                kv = request.encoded[origin] = engine.encode(span.ids)
        else:
            origin, kv = f"{source.agent}@{source.hop}", source.kv
        if len(kv) != len(span):
            raise ValueError(f"the source of span {span.id!r} holds {len(kv)} rows for {len(span)} tokens")
        yield Edge(key, pool, place, kv, origin, followers(hop.prompt, place), span.producer == "user", exact)


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
