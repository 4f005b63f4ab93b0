"""What a report wrote, so that the next one removes what no exhibit shows any more, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from harness import atomic

MANIFEST = Path("tables") / "manifest.json"
FOLDERS = ("tables", "figures")


def record(folder: Path) -> None:
    """List the tables and figures in ``folder``, which all are of one report, beside them."""
    made = {name: _digest(folder / name) for name in files(folder)}
    atomic.replace(folder / MANIFEST, (json.dumps(made, indent=1, sort_keys=True) + "\n").encode())


def files(folder: Path) -> list[str]:
    """Names of all tables and figures, without the list of them."""
    found = (file.relative_to(folder) for below in FOLDERS for file in (folder / below).glob("*"))
    return sorted(name.as_posix() for name in found if name != MANIFEST)


def stale(out: Path, new: Path) -> Iterator[Path]:
    """Files in ``out`` that its report wrote and the one in ``new`` did not.

    A file that was changed since it was written, and one that no report wrote, is none of them.
    """
    made = _read(new)
    for name, digest in _read(out).items():
        if name not in made and _is(out / name, digest):
            yield out / name


def _read(folder: Path) -> dict[str, str]:
    """Names and digests of a report's files; {} if there is no such list, or it cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: digest for name, digest in found.items() if _own(name)}


def _own(name: str) -> bool:
    """Whether it lies where a report writes, whatever the list says."""
    path = Path(name)
    return len(path.parts) == 2 and path.parts[0] in FOLDERS and path.parts[1] != ".."


def _is(file: Path, digest: str) -> bool:
    return file.is_file() and not file.is_symlink() and _digest(file) == digest


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
