"""Rows as the report reads them: leniently, since only what it needs of them must be there, and quickly. A number that
nothing can have measured makes a line no row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from harness.folder import read_lines
from harness.records import Route, Sampled, Status

MOST = 10**15
"""Nothing that is measured here, in seconds, tokens, bytes or nats, comes near it; sums of such numbers stay finite."""

Size = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]


class HopLine(msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a hop; see :class:`harness.records.HopRecord`."""

    route: Route
    ttft_s: Size
    e2e_s: Size
    prompt_tokens: Count
    output_tokens: Count
    warmup: bool = False
    source_hop: bool = False
    kv_error_k: list[Size] | None = None
    kv_error_v: list[Size] | None = None
    first_token_kl: Number | None = None
    prefix_match: Count | None = None
    answer_agrees: bool | None = None
    shadow_ttft_s: Size | None = None


class RowLine(Sampled, msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a row; see :class:`harness.records.Row`."""

    sample_id: str
    status: Status
    repeat: int = 0
    target: str | None = None
    correct: bool = False
    e2e_s: Size = 0.0
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
