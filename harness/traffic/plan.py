"""A trace made ready for replay: which rows of which call's cache every call starts from, and which ids it reads.

Output text is what the producing call really generates, less its last token, which has no row in any cache and is not
handed on (as in KVComm and KVCMAS): a prompt is a token shorter than the trace says for every output in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.errors import UserError
from harness.service import Call, Kept
from harness.traffic.reads import OUTPUT, Read, Spans, reads_of, row_of, rows_held
from harness.traffic.text import Text
from methods.segment import Private, Prompt, Segment, Shared, Span
from traces.schema import Piece, Request, Trace


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
    spans = Spans(requests)
    held = {r.hop: tuple(rows_held(r, spans)) for r in requests}
    reads = {r.hop: dict(reads_of(r, requests, held, spans)) for r in requests}
    calls = []
    for r in requests:
        keeps: dict[str, Kept] = {}
        for reader in requests:
            for index, read in reads[reader.hop].items():
                if r.hop in (read.upstream, read.first):
                    start = row_of(held[r.hop], reader.pieces[index], read.cached)
                    assert start is not None
                    keeps[read.span] = Kept(read.span, start, start + read.cached, reader.hop)
        calls.append(Planned(r, reads[r.hop], tuple(keeps.values())))
    return Trajectory(name, min(r.arrival_s for r in requests), tuple(calls))


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
