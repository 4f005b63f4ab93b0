"""What a report wrote, so that the next one removes what no exhibit shows any more, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from harness import atomic

MANIFEST = Path("tables") / "manifest.json"
FOLDERS = ("tables", "figures")


def renew(out: Path, files: Iterable[Path]) -> list[Path]:
    """Record ``files`` as those of this report and delete those of the last one that are not among them; returns the
    deleted ones.

    A file that was changed since it was written, and one that no report wrote, is left alone.
    """
    made = {file.relative_to(out).as_posix(): _digest(file) for file in files}
    stale = [out / name for name, digest in _read(out).items() if name not in made and _is(out / name, digest)]
    for file in stale:
        file.unlink()
    atomic.replace(out / MANIFEST, (json.dumps(made, indent=1, sort_keys=True) + "\n").encode())
    return stale


def _read(out: Path) -> dict[str, str]:
    """Names and digests of the last report's files; {} if there is no such list, or it cannot be read."""
    try:
        found = json.loads((out / MANIFEST).read_bytes())
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
