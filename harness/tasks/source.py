"""Rows of a benchmark from the embedded sample, a local file, or the hub.

Everything that can be wrong with data is said here, in one sentence with its place, before a model is loaded.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.tasks.table import Record, check_columns, json_array, json_lines, rows, some

FORMATS = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Hub:
    """A data set on the hub: its path, its configuration, and the official number of rows of each split."""

    path: str
    config: str
    sizes: tuple[tuple[str, int], ...]


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
        return Table("sample", "", "", json_lines(file.read_bytes(), sample, columns))
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
        return json_array(content, str(path), columns)
    return json_lines(content, str(path), columns)


def _csv(path: Path, columns: tuple[str, ...]) -> tuple[Record, ...]:
    import datasets

    header = _csv_header(path, columns)
    features = datasets.Features({name: datasets.Value("string") for name in header})
    with _scratch() as cache:
        try:
            data = datasets.Dataset.from_csv(
                str(path),
                features=features,
                keep_in_memory=True,
                cache_dir=cache,
                keep_default_na=False,
                encoding="utf-8-sig",
            )
        except Exception as error:  # whatever the parser raises, the remedy is the same
            raise UserError(f"task.source={path} cannot be parsed as CSV: {_reason(error)}") from error
        return some(rows(data, str(path), columns), str(path))


def _csv_header(path: Path, columns: tuple[str, ...]) -> list[str]:
    """Column names of a CSV file whose rows all have as many cells, and which has rows at all."""
    limit = csv.field_size_limit(sys.maxsize)  # a long cell is no broken one
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            check_columns(header, f"{path}:1", columns)
            if repeated := sorted({name for name in header if header.count(name) > 1}):
                raise UserError(
                    f"{path}:1: the column {', '.join(repeated)} is there more than once; rename or drop one"
                )
            empty = True
            for cells in filter(None, reader):
                empty = False
                if len(cells) != len(header):
                    where = f"{path}:{reader.line_num}"
                    raise UserError(f"{where}: expected {len(header)} cells as in the header, found {len(cells)}")
    except UnicodeDecodeError as error:
        raise UserError(
            f"task.source={path}: expected CSV in UTF-8 text, found byte 0x{error.object[error.start]:02x}"
        ) from error
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: broken CSV ({error})") from error
    finally:
        csv.field_size_limit(limit)
    if empty:
        raise UserError(f"{path} has no rows; task.source needs at least one")
    return header


def _parquet(path: Path, columns: tuple[str, ...]) -> tuple[Record, ...]:
    import datasets

    with _scratch() as cache:
        try:
            data = datasets.Dataset.from_parquet(str(path), keep_in_memory=True, cache_dir=cache)
        except Exception as error:  # whatever the parser raises, the remedy is the same
            raise UserError(f"task.source={path} cannot be read as Parquet: {_reason(error)}") from error
        check_columns(data.column_names, str(path), columns)
        return some(rows(_undecoded(data), str(path), columns), str(path))


@contextmanager
def _scratch() -> Iterator[str]:
    """A cache folder that lasts as long as the reading of a local file, with the reader's progress bars and log off."""
    import datasets

    shown, level = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # a broken file is reported in our own sentence
    try:
        with tempfile.TemporaryDirectory() as cache:
            yield cache
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _read_hub(hub: Hub, split: str, revision: str | None, columns: tuple[str, ...]) -> Table:
    sizes = dict(hub.sizes)
    if split not in sizes:
        raise UserError(f"task.split={split} is not a split of {hub.path}; choose one of {', '.join(sizes)}")
    import datasets

    try:
        data = datasets.load_dataset(hub.path, hub.config, split=split, revision=revision)
    except Exception as error:  # the client raises many types; offline, missing and gated all end here
        if "gated" in _reason(error).lower() or "gated" in str(error).lower():
            raise UserError(
                f"task.source=hub: {hub.path} is gated: accept its licence at "
                f"https://huggingface.co/datasets/{hub.path} and run `hf auth login`, or use task.source=sample or a "
                "local file"
            ) from error
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
    return Table(f"hub:{hub.path}", revision or "main", split, some(rows(_undecoded(data), name, columns), name))


def _undecoded(data: Any) -> Any:
    """The data set with pictures and clips left as the bytes or paths they are."""
    import datasets

    for name, feature in data.features.items():
        one = feature.feature if isinstance(feature, datasets.List) else feature
        if isinstance(one, datasets.Image | datasets.Video):
            left = type(one)(decode=False)
            data = data.cast_column(name, left if one is feature else datasets.List(left))
    return data


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
