"""The files of a run folder and how to read them; reading takes no lock and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.errors import UserError
from harness.provenance import Provenance
from harness.records import SCHEMA, Row
from harness.summary import Summary

CONFIG, PROVENANCE, ROWS, SUMMARY, STATE = "config.yaml", "provenance.json", "rows.jsonl", "summary.json", "state"

S = TypeVar("S", Summary, Provenance)


def run_folders(place: Path) -> Iterator[Path]:
    """Run folders at or below ``place``, damaged ones included; what lies inside one belongs to it."""
    for folder, below, files in os.walk(place):
        if {CONFIG, ROWS, SUMMARY} & {*files, *below}:
            below.clear()
            yield Path(folder)


@dataclass(frozen=True)
class Rows:
    """Rows of a run in their order; ``torn`` bytes of an unfinished last line are not among them."""

    rows: tuple[Row, ...]
    torn: int


def read_rows(folder: Path) -> Rows:
    """Read ``rows.jsonl``. A line is finished by its newline; what follows the last one is torn, as is a last line
    that is not JSON at all (a power cut may persist a line's end before its middle).

    Raises:
        UserError: for any other line that is no row, or a second row of the same key, naming file and line.
    """
    path, (lines, rest) = folder / ROWS, read_lines(folder)
    torn = len(rest)
    rows: list[Row] = []
    seen: dict[tuple[str, int], int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.ValidationError as error:
            raise _damaged(path, number, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number < len(lines) or torn:
                raise _damaged(path, number, str(error)) from error
            torn = len(line) + 1
            break
        if row.key in seen:
            raise _damaged(path, number, f"line {seen[row.key]} has {row.sample_id} repeat {row.repeat} already")
        seen[row.key] = number
        rows.append(row)
    return Rows(tuple(rows), torn)


def read_lines(folder: Path) -> tuple[list[bytes], bytes]:
    """Finished lines of ``rows.jsonl``, without their ends, and what follows the last one."""
    path = folder / ROWS
    *lines, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    return lines, rest


def read_summary(folder: Path) -> Summary | None:
    """Read ``summary.json``; None if the run is not complete.

    Raises:
        UserError: if it is damaged or of another schema version.
    """
    return _read(folder / SUMMARY, Summary)


def read_provenance(folder: Path) -> Provenance | None:
    """Read ``provenance.json``; None if there is none. Raises UserError as :func:`read_summary`."""
    return _read(folder / PROVENANCE, Provenance)


class _Version(msgspec.Struct):
    schema: int


def _read(path: Path, kind: type[S]) -> S | None:
    if not path.exists():
        return None
    data = path.read_bytes()
    try:
        found = msgspec.json.decode(data, type=_Version).schema
        if found == SCHEMA:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); move its folder away and run again") from error
    raise UserError(
        f"{path} has schema version {found}, this version reads {SCHEMA}; move its folder away to run again"
    )


def _damaged(path: Path, number: int, why: str) -> UserError:
    return UserError(f"{path}:{number} is no row of this run ({why}); delete that line to run its sample again")
