"""What a trace file holds: a header line, then a request per line, JSON each.

::

    {"schema": 1, "seed": 0, "made_by": {...}}
    {"id": "0/1", "trajectory": 0, "hop": 1, "agent": "agent1", "arrival_s": 0.0, "after": ["0/0"],
     "pieces": [["private", "system:agent1", 0, 256], ["shared", "question:0", 0, 2048]], "output_tokens": 64}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

SCHEMA = 1
KINDS = ("private", "shared")


class TraceError(ValueError):
    """A trace that cannot be made or read; the message names file and line, or the option."""


@dataclass(frozen=True)
class Piece:
    """A run of prompt tokens.

    Attributes:
        kind: ``shared`` text has the same ids in several prompts and may be reused; ``private`` text is computed.
        name: of the text; equal names are equal text. An output is named ``output:<request id>``.
        offset, tokens: the piece is tokens ``[offset, offset + tokens)`` of that text.
    """

    kind: Literal["private", "shared"]
    name: str
    offset: int
    tokens: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.name or self.offset < 0 or self.tokens < 1:
            raise TraceError(f"a piece needs a kind of {KINDS}, a name, an offset >= 0 and tokens >= 1, got {self}")


@dataclass(frozen=True)
class Request:
    """One agent call.

    Attributes:
        id: unique in the trace.
        trajectory, hop: which request of the user it belongs to, and its place in that one's execution order.
        arrival_s: earliest start, seconds after the trace's.
        after: ids of requests whose answers it needs; it is due when the last of them has ended, and not before
            ``arrival_s``. Empty: it is due at ``arrival_s``.
        output_tokens: exactly so many are generated.
    """

    id: str
    trajectory: int
    hop: int
    agent: str
    arrival_s: float
    pieces: tuple[Piece, ...]
    output_tokens: int
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.pieces or self.output_tokens < 1 or self.hop < 0 or self.trajectory < 0:
            raise TraceError(f"request {self.id}: needs pieces, output_tokens >= 1, hop and trajectory >= 0")
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0.0):
            raise TraceError(f"request {self.id}: arrival_s must be finite and at least 0, got {self.arrival_s}")

    @property
    def prompt_tokens(self) -> int:
        return sum(p.tokens for p in self.pieces)

    @property
    def shared_tokens(self) -> int:
        return sum(p.tokens for p in self.pieces if p.kind == "shared")


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, sources before readers.

    Attributes:
        seed: of the ids behind names.
        made_by: how it was made, for people.
    """

    requests: tuple[Request, ...]
    seed: int = 0
    made_by: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for r in self.requests:
            if r.id in seen:
                raise TraceError(f"request {r.id} is there twice")
            if missing := [source for source in r.after if source not in seen]:
                raise TraceError(f"request {r.id} waits for {', '.join(missing)}, which does not come before it")
            seen.add(r.id)

    def write(self, path: Path) -> None:
        """Write the file; its folder is made."""
        header = {"schema": SCHEMA, "seed": self.seed, "made_by": dict(self.made_by)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, *map(_plain, self.requests))))

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read a file written by :meth:`write`. Raises TraceError naming the line that does not fit."""
        lines = lines_of(path)
        if not lines:
            raise TraceError(f"{path}: empty, expected a header line and requests")
        header = parsed(path, 1, lines[0])
        if header.get("schema") != SCHEMA:
            raise TraceError(f"{path}:1: expected the header of schema {SCHEMA}, got {lines[0][:60]}")
        requests = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                requests.append(_request(parsed(path, number, line)))
            except (TypeError, ValueError, KeyError) as error:
                raise TraceError(f"{path}:{number}: no request ({error})") from error
        try:
            return cls(tuple(requests), int(header["seed"]), header.get("made_by", {}))
        except (TraceError, KeyError, TypeError) as error:
            raise TraceError(f"{path}: {error}") from error


def lines_of(path: Path) -> list[str]:
    """Lines with something on them. Raises TraceError if the file cannot be read."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "there is no such file" if isinstance(error, FileNotFoundError) else "this is a folder"
        raise TraceError(f"{path}: {what}; name a file that python -m traces wrote, or one of Mooncake's") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); make it readable") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is no text ({error}); name a file that python -m traces wrote") from error


def parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    """The object on a line. Raises TraceError naming it."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: no JSON ({error})") from error
    if not isinstance(found, dict):
        raise TraceError(f"{path}:{number}: expected an object, got {line[:60]}")
    return found


def _plain(request: Request) -> dict[str, Any]:
    pieces = [[p.kind, p.name, p.offset, p.tokens] for p in request.pieces]
    return {**asdict(request), "pieces": pieces, "after": list(request.after)}


def _request(found: dict[str, Any]) -> Request:
    pieces = tuple(Piece(*piece) for piece in found.pop("pieces"))
    return Request(pieces=pieces, after=tuple(found.pop("after")), **found)
