"""Rows of a benchmark from the embedded sample, a local file, or the hub.

Everything that can be wrong with data is said here, in one sentence with its place, before a model is loaded.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from harness.errors import UserError

FORMATS = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Hub:
    """A data set on the hub: its path, its configuration, and the official number of rows of each split."""

    path: str
    config: str
    sizes: tuple[tuple[str, int], ...]


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
        return str(value)


@dataclass(frozen=True)
class Table:
    """Rows in file order with the facts that a manifest records."""

    source: str
    revision: str
    split: str
    records: tuple[Record, ...]


def read(source: str, sample: str, hub: Hub, split: str, revision: str | None, columns: tuple[str, ...]) -> Table:
    """All rows of ``source``: ``sample``, ``hub``, or a path.

    Args:
        source: the task's option ``source``.
        sample: file name of the embedded sample.
        hub: what ``hub`` means for this task.
        split, revision: which part and state of the hub data set.
        columns: columns that every row must have.

    Raises:
        UserError: if the data cannot be read, has no rows, lacks a column, or a hub split has another size than
            the official one.
    """
    if source == "hub":
        return _read_hub(hub, split, revision, columns)
    if source == "sample":
        file = resources.files("harness") / "data" / sample
        return Table("sample", "", "", _json_lines(file.read_bytes(), sample, columns))
    return Table(f"file:{Path(source).name}", "", "", _read_file(Path(source).expanduser(), columns))


def _read_file(path: Path, columns: tuple[str, ...]) -> tuple[Record, ...]:
    if path.suffix.lower() not in FORMATS:
        raise UserError(
            f"task.source={path}: expected sample, hub or a file ending in {', '.join(FORMATS)}; "
            "write ./ in front of a path to be clear"
        )
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no file"
        raise UserError(f"task.source={path} is {kind}; give sample, hub or a path to an existing data file")
    try:
        if path.suffix.lower() == ".parquet":
            return _parquet(path, columns)
        if path.suffix.lower() == ".csv":
            return _csv(path, columns)
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"task.source={path} cannot be read: {error.strerror or error}") from error
    if path.suffix.lower() == ".json" and content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _json_array(content, str(path), columns)
    return _json_lines(content, str(path), columns)


def _json_lines(content: bytes, name: str, columns: tuple[str, ...]) -> tuple[Record, ...]:
    records = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            where = f"{name}:{number}"
            try:
                value = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: expected UTF-8 text, found byte 0x{line[error.start]:02x}") from error
            except (json.JSONDecodeError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise UserError(
                    f"{where}: expected one JSON object on this line, found broken JSON ({reason})"
                ) from error
            records.append(_record(value, where, columns))
    return _some(records, name)


def _json_array(content: bytes, name: str, columns: tuple[str, ...]) -> tuple[Record, ...]:
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: expected UTF-8 text, found byte 0x{content[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{name}:{error.lineno}: expected a JSON array of objects, found broken JSON ({error.msg})"
        ) from error
    return _some([_record(value, f"{name} row {n}", columns) for n, value in enumerate(values, start=1)], name)


def _csv(path: Path, columns: tuple[str, ...]) -> tuple[Record, ...]:
    import datasets

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"task.source={path}: expected CSV in UTF-8 ({error})") from error
    if not header:
        raise UserError(f"task.source={path} is empty; expected the columns {', '.join(columns)}")
    _check_columns(header, f"{path}:1", columns)
    features = datasets.Features({name: datasets.Value("string") for name in header})
    with tempfile.TemporaryDirectory() as cache:
        try:
            data = datasets.Dataset.from_csv(
                str(path), features=features, keep_in_memory=True, cache_dir=cache, keep_default_na=False
            )
        except Exception as error:  # whatever the parser raises, the remedy is the same
            raise UserError(f"task.source={path} cannot be parsed as CSV: {_reason(error)}") from error
        return _some(_rows(data, str(path), columns), str(path))


def _parquet(path: Path, columns: tuple[str, ...]) -> tuple[Record, ...]:
    import datasets

    with tempfile.TemporaryDirectory() as cache:
        try:
            data = datasets.Dataset.from_parquet(str(path), keep_in_memory=True, cache_dir=cache)
        except Exception as error:  # whatever the parser raises, the remedy is the same
            raise UserError(f"task.source={path} cannot be read as Parquet: {_reason(error)}") from error
        _check_columns(data.column_names, str(path), columns)
        return _some(_rows(data, str(path), columns), str(path))


def _read_hub(hub: Hub, split: str, revision: str | None, columns: tuple[str, ...]) -> Table:
    sizes = dict(hub.sizes)
    if split not in sizes:
        raise UserError(f"task.split={split} is not a split of {hub.path}; choose one of {', '.join(sizes)}")
    import datasets

    try:
        data = datasets.load_dataset(hub.path, hub.config, split=split, revision=revision)
    except Exception as error:  # the client raises many types; offline, missing and gated all end here
        raise UserError(
            f"task.source=hub: {hub.path} could not be loaded ({_reason(error)}); unset HF_HUB_OFFLINE and check the "
            "network, or use task.source=sample or a local file"
        ) from error
    if len(data) != sizes[split]:
        raise UserError(
            f"task.source=hub: the {split} split of {hub.path} has {len(data):,} rows, expected {sizes[split]:,}; "
            "set task.revision to a revision with the official rows"
        )
    name = f"{hub.path}/{split}"
    return Table(f"hub:{hub.path}", revision or "main", split, _some(_rows(data, name, columns), name))


def _rows(data: Iterable[Mapping[str, object]], name: str, columns: tuple[str, ...]) -> list[Record]:
    return [_record(value, f"{name} row {number}", columns) for number, value in enumerate(data, start=1)]


def _record(value: object, where: str, columns: tuple[str, ...]) -> Record:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected a JSON object with {', '.join(columns)}, found {type(value).__name__}")
    _check_columns(value, where, columns)
    return Record(value, where)


def _check_columns(found: Iterable[str], where: str, columns: tuple[str, ...]) -> None:
    names = list(found)
    if missing := [column for column in columns if column not in names]:
        raise UserError(
            f"{where}: missing column {', '.join(missing)}; expected {', '.join(columns)}, "
            f"found {', '.join(names) or 'none'}"
        )


def _some(records: list[Record], name: str) -> tuple[Record, ...]:
    if not records:
        raise UserError(f"{name} has no rows; task.source needs at least one")
    return tuple(records)


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
