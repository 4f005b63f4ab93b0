"""What a trace file holds: a header line, then a request per line, JSON each.

::

    {"schema": 1, "seed": 0, "made_by": {...}}
    {"id": "0/1", "trajectory": 0, "hop": 1, "agent": "agent1", "arrival_s": 0.0, "after": ["0/0"],
     "pieces": [["private", "system:agent1", 0, 256], ["shared", "question:0", 0, 2048]], "output_tokens": 64}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

SCHEMA = 1
KINDS = ("private", "shared")
AGAIN = "mend the line, or write the file again with python -m traces"

T = TypeVar("T")
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


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
    """Requests in order of arrival, sources before readers; at least one.

    Attributes:
        seed: of the ids behind names.
        made_by: how it was made, for people.
    """

    requests: tuple[Request, ...]
    seed: int = 0
    made_by: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.requests:
            raise TraceError("a trace needs at least one request, got none")
        if misplaced := _misplaced(self.requests):
            raise TraceError(misplaced[1])

    def write(self, path: Path) -> None:
        """Replace the file as a whole, through a temporary one beside it; its folder is made."""
        header = {"schema": SCHEMA, "seed": self.seed, "made_by": dict(self.made_by)}
        path = Path(os.path.realpath(path))  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
        try:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in (header, *map(_plain, self.requests))))
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read a file written by :meth:`write`. Raises TraceError naming the line and the field that do not fit."""
        lines = lines_of(path)
        if not lines:
            raise TraceError(f"{path}: empty, expected a header line and requests")
        (where, line), *rest = lines
        found = parsed(where, line)
        if found.get("schema") != SCHEMA:
            raise TraceError(f"{where}: expected the header of schema {SCHEMA}, got {line[:60]}")
        header = typed(where, found, _Header, "header", AGAIN)
        requests = [_request(*each) for each in rest]
        if misplaced := _misplaced(requests):
            raise TraceError(f"{rest[misplaced[0]][0]}: {misplaced[1]}; {AGAIN}")
        try:
            return cls(tuple(requests), header.seed, header.made_by)
        except TraceError as error:
            raise TraceError(f"{path}: {error}; write the file again with python -m traces") from error


class _Header(msgspec.Struct):
    schema: int
    seed: Natural
    made_by: dict[str, Any] = {}


class _Piece(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: Literal["private", "shared"]
    name: Annotated[str, msgspec.Meta(min_length=1)]
    offset: Natural
    tokens: Positive


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it stands in a file."""

    id: str
    trajectory: Natural
    hop: Natural
    agent: str
    arrival_s: float
    pieces: Annotated[tuple[_Piece, ...], msgspec.Meta(min_length=1)]
    output_tokens: Positive
    after: tuple[str, ...]


def lines_of(path: Path) -> list[tuple[str, str]]:
    """Lines with something on them, each after its place (``t.jsonl:3``). Raises TraceError if the file is no text."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "there is no such file" if isinstance(error, FileNotFoundError) else "this is a folder"
        raise TraceError(f"{path}: {what}; name a file that python -m traces wrote, or one of Mooncake's") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); make it readable") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is no text ({error}); name a file that python -m traces wrote") from error
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]


def parsed(where: str, line: str) -> dict[str, Any]:
    """The object on a line. Raises TraceError naming its place."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TraceError(f"{where}: no JSON that can be read ({what}); expected one object on this line") from error
    if not isinstance(found, dict):
        raise TraceError(f"{where}: expected an object, got {line[:60]}")
    if "\\ud" in line.lower():
        _whole(where, found)
    return found


def _whole(where: str, found: dict[str, Any]) -> None:
    """Raises TraceError if a string of ``found`` holds half of a surrogate pair: JSON can, no text can."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise TraceError(f"{where}: {half} is half of a surrogate pair, which is no character; {AGAIN}") from error


def typed(where: str, found: dict[str, Any], kind: type[T], name: str, remedy: str) -> T:
    """The object as ``kind``, called ``name``; 2.0 is no integer. Raises TraceError naming place, field, remedy."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        named = f"field {place.removesuffix('`')}: " if place else ""
        raise TraceError(f"{where}: no {name} ({named}{what[0].lower()}{what[1:]}); {remedy}") from error


def _misplaced(requests: Sequence[Request]) -> tuple[int, str] | None:
    """The first request that cannot stand where it does, and why."""
    seen, arrived_s = set[str](), 0.0
    for index, r in enumerate(requests):
        if r.id in seen:
            return index, f"request {r.id} is there twice, but every id must be unique"
        if missing := [source for source in r.after if source not in seen]:
            return index, f"request {r.id} waits for {', '.join(missing)}, which does not come before it"
        if r.arrival_s < arrived_s:
            return index, f"arrival_s of request {r.id} is {r.arrival_s}, before the {arrived_s} of the request above"
        seen.add(r.id)
        arrived_s = r.arrival_s
    return None


def _plain(request: Request) -> dict[str, Any]:
    pieces = [[p.kind, p.name, p.offset, p.tokens] for p in request.pieces]
    return {**asdict(request), "pieces": pieces, "after": list(request.after)}


def _request(where: str, line: str) -> Request:
    found = typed(where, parsed(where, line), _Line, "request", AGAIN)
    pieces = tuple(Piece(*msgspec.structs.astuple(piece)) for piece in found.pieces)
    try:
        return Request(**{**msgspec.structs.asdict(found), "pieces": pieces})
    except TraceError as error:
        raise TraceError(f"{where}: {error}; {AGAIN}") from error
