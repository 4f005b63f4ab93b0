"""Mooncake's trace format (arXiv 2407.00079): ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

Every hash id stands for a block of 512 prompt tokens; equal ids are equal text in equal context. A block that another
request of the trace has too is ``shared``, the others are ``private``. There are no agents: each line is a trajectory.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from traces.schema import Piece, Request, Trace, TraceError, lines_of, parsed

BLOCK = 512
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def read(path: Path, limit: int | None = None) -> Trace:
    """The first ``limit`` lines of a file, in order of arrival. Raises TraceError naming the line that does not fit."""
    rows = [
        _row(path, number, parsed(path, number, line)) for number, line in enumerate(lines_of(path)[:limit], start=1)
    ]
    if not rows:
        raise TraceError(f"{path}: empty, expected lines with {', '.join(FIELDS)}")
    uses = Counter(block for row in rows for block in set(row["hash_ids"]))
    requests = [_request(index, row, uses) for index, row in enumerate(sorted(rows, key=lambda row: row["timestamp"]))]
    return Trace(tuple(requests), 0, {"generator": "mooncake", "file": path.name})


def _row(path: Path, number: int, row: dict[str, Any]) -> dict[str, Any]:
    where = f"{path}:{number}"
    if absent := [name for name in FIELDS if name not in row]:
        raise TraceError(f"{where}: no {', '.join(absent)}; a line of Mooncake's format has {', '.join(FIELDS)}")
    length, blocks = row["input_length"], row["hash_ids"]
    if not isinstance(blocks, list) or not isinstance(length, int) or length < 1:
        raise TraceError(f"{where}: input_length must be a positive integer and hash_ids a list")
    if len(blocks) != -(-length // BLOCK):
        raise TraceError(f"{where}: {length} tokens are {-(-length // BLOCK)} blocks of {BLOCK}, got {len(blocks)} ids")
    return row


def _request(index: int, row: dict[str, Any], uses: Counter[Any]) -> Request:
    pieces, left = [], int(row["input_length"])
    for block in row["hash_ids"]:
        kind = "shared" if uses[block] > 1 else "private"
        pieces.append(Piece(kind, f"block:{block}", 0, min(left, BLOCK)))  # type: ignore[arg-type]
        left -= BLOCK
    return Request(str(index), index, 0, "user", row["timestamp"] / 1000, tuple(pieces), max(1, row["output_length"]))
