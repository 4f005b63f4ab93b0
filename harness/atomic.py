"""Files that exist whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def replace(path: Path, data: bytes) -> None:
    """Make ``path`` hold ``data``: a temporary file in the same folder, fsync, rename over it, fsync of the folder.

    A reader sees the old contents or the new ones, never a mixture. The price is two fsyncs. A process killed in
    between leaves a ``.tmp-*`` file beside it.
    """
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # writing into an open file does not say which
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def replace_json(path: Path, value: Any) -> None:
    """Make ``path`` hold ``value`` (structs and what they are made of) as indented JSON."""
    replace(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write(handle: int, data: bytes) -> None:
    """Write all of ``data``; one call of the system may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_folder(folder: Path) -> None:
    """Make creations, renames and deletions in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what killed processes left behind. Only for who holds the folder alone."""
    for temporary in folder.glob(".tmp-*"):
        temporary.unlink(missing_ok=True)
