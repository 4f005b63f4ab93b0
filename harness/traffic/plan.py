"""A trace made ready for replay: which rows of which call's cache every call starts from, and which ids it reads.

Output text is what the producing call really generates, less its last token, which has no row in any cache and is not
handed on (as in KVComm and KVCMAS): a prompt is a token shorter than the trace says for every output in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from harness.errors import UserError
from harness.service import Call, Kept
from harness.traffic.text import Text
from methods.segment import Private, Prompt, Segment, Shared, Span
from traces.schema import Piece, Request, Trace

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


@dataclass(frozen=True, eq=False)
class Planned:
    """A request and what follows from its trajectory; ``reads`` by index of its pieces."""

    request: Request
    reads: Mapping[int, Read]
    keeps: tuple[Kept, ...]

    def call(self, text: Text, outputs: Mapping[str, Sequence[int]], due_s: float, warmup: bool) -> Call:
        """The call, due at ``due_s``; ``outputs`` by request id are those generated so far."""
        r, segments, private = self.request, list[Segment](), list[int]()
        for index, piece in enumerate(r.pieces):
            ids, read = ids_of(piece, text, outputs), self.reads.get(index)
            if read is None:
                private += ids
            elif read.cached:
                segments += [Private(tuple(private))] * bool(private)
                segments.append(Shared(Span(read.span, ids[: read.cached], _producer(read.span), ids[:1])))
                private = []
        segments += [Private(tuple(private))] * bool(private)
        spans = {read.span: read for read in self.reads.values()}
        return Call(
            id=r.id,
            trajectory=str(r.trajectory),
            index=r.hop,
            agent=r.agent,
            prompt=Prompt(tuple(segments)),
            output_tokens=r.output_tokens,
            due_s=due_s,
            upstream={name: read.upstream for name, read in spans.items() if read.upstream is not None},
            first={name: read.first for name, read in spans.items() if read.first is not None},
            keeps=self.keeps,
            warmup=warmup,
        )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The calls of one request of a user, in execution order."""

    id: int
    arrival_s: float
    calls: tuple[Planned, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """All trajectories in order of arrival: ``warmup`` of them first, then those that are measured."""

    trajectories: tuple[Trajectory, ...]
    warmup: int
    trace: Trace

    @property
    def measured(self) -> tuple[Trajectory, ...]:
        return self.trajectories[self.warmup :]

    @cached_property
    def waits(self) -> Mapping[str, tuple[str, ...]]:
        """By request id, those that it waits for."""
        return {c.request.id: c.request.after for t in self.trajectories for c in t.calls}


def plan(trace: Trace, warmup: int, limit: int | None) -> Plan:
    """Replay of ``trace``: of the trajectories after the first ``warmup`` at most ``limit``.

    Raises:
        UserError: if nothing is left to measure, or if the trace reads what is not there.
    """
    groups: dict[int, list[Request]] = {}
    for request in trace.requests:
        groups.setdefault(request.trajectory, []).append(request)
    if len(groups) <= warmup:
        raise UserError(
            f"task.warmup={warmup}: the trace has {len(groups)} trajectories, so that none is left to measure; lower "
            "task.warmup or lengthen the trace"
        )
    kept = None if limit is None else warmup + limit
    made = [_trajectory(name, sorted(group, key=lambda r: r.hop)) for name, group in list(groups.items())[:kept]]
    _check(made)
    return Plan(tuple(made), warmup, trace)


def ids_of(piece: Piece, text: Text, outputs: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The ids of a piece: text, or what a call has generated."""
    producer = piece.name.removeprefix(OUTPUT)
    if piece.name.startswith(OUTPUT) and producer in outputs:
        return tuple(outputs[producer][piece.offset : piece.offset + piece.tokens])
    return text(piece)


def _trajectory(name: int, requests: list[Request]) -> Trajectory:
    hops = [r.hop for r in requests]
    if len(set(hops)) < len(hops):
        raise UserError(f"trace: trajectory {name} has two requests of one hop; number them in execution order")
    spans = _Spans(requests)
    held = {r.hop: tuple(_held(r, spans)) for r in requests}
    reads = {r.hop: dict(_reads(r, requests, held, spans)) for r in requests}
    calls = []
    for r in requests:
        keeps: dict[str, Kept] = {}
        for reader in requests:
            for index, read in reads[reader.hop].items():
                if r.hop in (read.upstream, read.first):
                    start = _at(held[r.hop], reader.pieces[index], read.cached)
                    assert start is not None
                    keeps[read.span] = Kept(read.span, start, start + read.cached, reader.hop)
        calls.append(Planned(r, reads[r.hop], tuple(keeps.values())))
    return Trajectory(name, min(r.arrival_s for r in requests), tuple(calls))


@dataclass(frozen=True)
class _Run:
    """Rows ``[row, row + tokens)`` of a call's cache hold tokens from ``offset`` of the text ``name``."""

    name: str
    offset: int
    tokens: int
    row: int


def _held(request: Request, spans: _Spans) -> Iterator[_Run]:
    """What a call's cache holds when it has ended: its prompt, and all of its output but the last token."""
    row, run = 0, None
    for piece in map(spans.trimmed, request.pieces):
        if piece is None:
            continue
        if run is not None and piece.name == run.name and piece.offset == run.offset + run.tokens:
            run = _Run(run.name, run.offset, run.tokens + piece.tokens, run.row)
        else:
            if run is not None:
                yield run
            run = _Run(piece.name, piece.offset, piece.tokens, row)
        row += piece.tokens
    if run is not None:
        yield run
    if request.output_tokens > 1:
        yield _Run(f"{OUTPUT}{request.id}", 0, request.output_tokens - 1, row)


def _at(held: Sequence[_Run], piece: Piece, tokens: int) -> int | None:
    """Row at which a cache holds the first ``tokens`` tokens of a piece; None if it does not hold them all."""
    for run in held:
        ahead = piece.offset - run.offset
        if run.name == piece.name and 0 <= ahead <= run.tokens - tokens:
            return run.row + ahead
    return None


def _reads(
    request: Request, requests: Sequence[Request], held: Mapping[int, Sequence[_Run]], spans: _Spans
) -> Iterator[tuple[int, Read]]:
    before = [r for r in requests if r.hop < request.hop]
    for index, piece in enumerate(request.pieces):
        if piece.kind != "shared":
            continue
        span, cached = spans.name(piece), spans.cached(piece)
        holders = [r.hop for r in before if cached and _at(held[r.hop], piece, cached) is not None]
        producer = spans.producer(piece)
        if producer is not None:  # an output starts from its producer's cache, whoever reads it (KVCMAS 3.6)
            upstream = producer.hop if producer.hop in holders else None
            yield index, Read(span, cached, upstream, upstream)
            continue
        # Other text comes from the latest call on an edge into this one, else from whoever ran last.
        awaited = [r.hop for r in before if r.id in request.after and r.hop in holders]
        yield index, Read(span, cached, max(awaited or holders, default=None), min(holders, default=None))


class _Spans:
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


def _producer(span: str) -> str:
    return span.removeprefix(OUTPUT).partition(":")[0] if span.startswith(OUTPUT) else "user"


def _check(trajectories: Sequence[Trajectory]) -> None:
    """Outputs are read by those who wait for them, and no further than they go.

    Raises:
        UserError: naming request and piece.
    """
    known = {c.request.id: c.request for t in trajectories for c in t.calls}
    awaited: dict[str, set[str]] = {}
    for t in trajectories:
        for planned in t.calls:
            request = planned.request
            if missing := [name for name in request.after if name not in awaited]:
                raise UserError(
                    f"trace: request {request.id} waits for {missing[0]}, which belongs to a trajectory that arrives "
                    "later or is left out by limit; let trajectories stand by themselves"
                )
            awaited[request.id] = set(request.after).union(*(awaited[name] for name in request.after))
            for piece in request.pieces:
                producer = piece.name.removeprefix(OUTPUT)
                if not piece.name.startswith(OUTPUT) or producer not in known:
                    continue
                if producer not in awaited[request.id]:
                    raise UserError(
                        f"trace: request {request.id} reads the output of {producer} without waiting for it; name "
                        f"{producer} in its field after"
                    )
                if piece.offset + piece.tokens > known[producer].output_tokens:
                    raise UserError(
                        f"trace: request {request.id} reads {piece.offset + piece.tokens} tokens of the output of "
                        f"{producer}, which has {known[producer].output_tokens}"
                    )
