"""Pictures and clips of a data row: paths beside the data file, embedded bytes, or scenes drawn by code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from harness.errors import UserError
from harness.media import Media
from harness.tasks.base import content_hash
from harness.tasks.table import Record

Draw = Callable[[Mapping[str, Any]], bytes]


def attached(
    record: Record,
    columns: Sequence[str],
    kind: Literal["image", "video"],
    folder: Path,
    draw: Draw,
    frames: int = 0,
) -> tuple[Media, ...]:
    """What the first of ``columns`` that holds anything shows; nothing if none does.

    Args:
        folder: what relative paths are relative to.
        draw: turns the column ``scene`` of an embedded sample, which wins over the others, into bytes.
        frames: of each clip, how many are shown.

    Raises:
        UserError: if a column holds something else than a path, bytes, or a list of these.
    """
    scene = record.values.get("scene")
    if isinstance(scene, Mapping):
        text = json.dumps(scene, sort_keys=True, ensure_ascii=True)
        return (
            Media(kind, f"scene {content_hash(text)}", record.where, draw=partial(_drawn, draw, text), frames=frames),
        )
    for column in columns:
        value = record.values.get(column)
        values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        found = [m for v in values if (m := _medium(record, column, v, kind, folder)) is not None]
        if found:
            return tuple(replace(m, frames=frames, alone=len(found) == 1) for m in found)
    return ()


@lru_cache(64)
def _drawn(draw: Draw, scene: str) -> bytes:
    return draw(json.loads(scene))


def _medium(record: Record, column: str, value: object, kind: Literal["image", "video"], folder: Path) -> Media | None:
    if isinstance(value, Mapping) and {"bytes", "path"} & set(value):  # as Parquet files of the hub hold it
        name, data = value.get("path"), value.get("bytes")
        if data is None:
            return _medium(record, column, name, kind, folder)
        return Media(kind, str(name or column), record.where, data=bytes(data))
    match value:
        case None | "":
            return None
        case bytes():
            return Media(kind, column, record.where, data=value)
        case str():
            return Media(kind, value, record.where, path=folder / value)
    raise UserError(
        f"{record.where}: column {column!r} must hold a path, the bytes of a file or a list of these, found "
        f"{type(value).__name__}"
    )
