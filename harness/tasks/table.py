"""Rows of a data file with their places, and what can be wrong with them, said in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.errors import UserError


@dataclass(frozen=True)
class Record:
    """One row and where it stands (``test.jsonl:3``), for messages."""

    values: Mapping[str, object]
    where: str

    def text(self, column: str) -> str:
        """The text of a column. Raises UserError if it is empty or neither text nor a number."""
        value = self.values.get(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.where}: column {column!r} is empty, but every row needs it")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(f"{self.where}: column {column!r} must hold text, found {type(value).__name__}")
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{self.where}: column {column!r} holds half a surrogate pair, which is no text") from error
        return str(value)


def json_lines(content: bytes, name: str, columns: tuple[str, ...]) -> tuple[Record, ...]:
    """Records of a JSONL text, one object a line; blank lines are skipped. Raises UserError naming the line."""
    records = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            where = f"{name}:{number}"
            try:
                value = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: expected UTF-8 text, found byte 0x{line[error.start]:02x}") from error
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: expected one JSON object on this line, found {_fault(error)}") from error
            records.append(_record(value, where, columns))
    return some(records, name)


def json_array(content: bytes, name: str, columns: tuple[str, ...]) -> tuple[Record, ...]:
    """Records of a JSON array of objects. Raises UserError naming the line or the row."""
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: expected UTF-8 text, found byte 0x{content[error.start]:02x}") from error
    except (ValueError, RecursionError) as error:
        where = f"{name}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else name
        raise UserError(f"{where}: expected a JSON array of objects, found {_fault(error)}") from error
    return some([_record(value, f"{name} row {n}", columns) for n, value in enumerate(values, start=1)], name)


def _fault(error: ValueError | RecursionError) -> str:
    match error:
        case json.JSONDecodeError():
            return f"broken JSON ({error.msg})"
        case RecursionError():
            return "JSON that is nested too deeply"
        case _:
            return "a number with too many digits"


def rows(data: Iterable[Mapping[str, object]], name: str, columns: tuple[str, ...]) -> list[Record]:
    """Records of mappings, counted from 1."""
    return [_record(value, f"{name} row {number}", columns) for number, value in enumerate(data, start=1)]


def _record(value: object, where: str, columns: tuple[str, ...]) -> Record:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected a JSON object with {', '.join(columns)}, found {type(value).__name__}")
    check_columns(value, where, columns)
    return Record(value, where)


def check_columns(found: Iterable[str], where: str, columns: tuple[str, ...]) -> None:
    """Raise UserError, naming missing and found columns together, unless all ``columns`` are found."""
    names = list(found)
    if missing := [column for column in columns if column not in names]:
        raise UserError(
            f"{where}: missing column {', '.join(missing)}; expected {', '.join(columns)}, "
            f"found {', '.join(names) or 'none'}"
        )


def some(records: list[Record], name: str) -> tuple[Record, ...]:
    """The records as a tuple. Raises UserError if there are none."""
    if not records:
        raise UserError(f"{name} has no rows; task.source needs at least one")
    return tuple(records)
