"""Rows as the report reads them: leniently, since only what it needs of them must be there, and quickly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.folder import read_lines
from harness.records import Route, Sampled, Status


class HopLine(msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a hop; see :class:`harness.records.HopRecord`."""

    route: Route
    ttft_s: float
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    warmup: bool = False
    source_hop: bool = False
    kv_error_k: list[float] | None = None
    kv_error_v: list[float] | None = None
    first_token_kl: float | None = None
    prefix_match: int | None = None
    answer_agrees: bool | None = None
    shadow_ttft_s: float | None = None


class RowLine(Sampled, msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a row; see :class:`harness.records.Row`."""

    sample_id: str
    status: Status
    repeat: int = 0
    target: str | None = None
    correct: bool = False
    e2e_s: float = 0.0
    hops: list[HopLine] = []


@dataclass(frozen=True)
class Lines:
    """Rows of a file; ``bad``: number of a line that is none, and why; ``torn``: it ends in the middle of one."""

    rows: tuple[RowLine, ...]
    bad: tuple[tuple[int, str], ...]
    torn: bool


def read(folder: Path) -> Lines:
    """The rows of a run folder. Raises OSError if they cannot be read."""
    lines, rest = read_lines(folder)
    decoder, rows, bad = msgspec.json.Decoder(RowLine), list[RowLine](), list[tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            bad.append((number, str(error)))
    return Lines(tuple(rows), tuple(bad), bool(rest))
