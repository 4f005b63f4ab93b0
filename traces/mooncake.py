"""Mooncake's trace format (arXiv 2407.00079): ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

Every hash id stands for a block of 512 prompt tokens; equal ids are equal text in equal context. A block that another
request of the trace has too is ``shared``, the others are ``private``. There are no agents: each line is a trajectory.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec

from traces.schema import Natural, Piece, Positive, Request, Trace, TraceError, lines_of, parsed, typed

BLOCK = 512
FORMAT = "a line of Mooncake's format has timestamp (ms), input_length, output_length and hash_ids"


class Line(msgspec.Struct, frozen=True):
    """A line of the file; fields that are not read may stand there too."""

    timestamp: float
    input_length: Positive
    output_length: Natural
    hash_ids: list[int]


def read(path: Path, limit: int | None = None) -> Trace:
    """The first ``limit`` lines of a file, in order of arrival.

    Raises:
        TraceError: naming line and field that do not fit, or for a ``limit`` below 1.
    """
    if limit is not None and limit < 1:
        raise TraceError(f"limit must be at least 1, got {limit}; leave it out to take every line")
    rows = [_row(*each) for each in lines_of(path)[:limit]]
    if not rows:
        raise TraceError(f"{path}: empty; {FORMAT}")
    uses = Counter(block for row in rows for block in set(row.hash_ids))
    requests = [_request(index, row, uses) for index, row in enumerate(sorted(rows, key=lambda row: row.timestamp))]
    return Trace(tuple(requests), 0, {"generator": "mooncake", "file": path.name})


def _row(where: str, line: str) -> Line:
    row = typed(where, parsed(where, line), Line, "request", FORMAT)
    if not (math.isfinite(row.timestamp) and row.timestamp >= 0):
        what = f"field timestamp: expected a finite number >= 0, got {row.timestamp}"
        raise TraceError(f"{where}: no request ({what}); {FORMAT}")
    blocks = -(-row.input_length // BLOCK)
    if len(row.hash_ids) != blocks:
        raise TraceError(
            f"{where}: no request (field hash_ids: an input_length of {row.input_length} tokens is {blocks} blocks of "
            f"{BLOCK}, got {len(row.hash_ids)} ids); mend one of the two"
        )
    return row


def _request(index: int, row: Line, uses: Counter[int]) -> Request:
    pieces, left = [], row.input_length
    for block in row.hash_ids:
        kind = "shared" if uses[block] > 1 else "private"
        pieces.append(Piece(kind, f"block:{block}", 0, min(left, BLOCK)))  # type: ignore[arg-type]
        left -= BLOCK
    return Request(str(index), index, 0, "user", row.timestamp / 1000, tuple(pieces), max(1, row.output_length))
