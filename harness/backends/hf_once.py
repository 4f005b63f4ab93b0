"""A folder of derived model files that is made once and appears by one rename.

A process that is killed while it writes leaves nothing that a later start would take for a model, and processes that
start at once wait for the first of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_root(option: str | None = None) -> Path:
    """``option`` if given, else ``$XDG_CACHE_HOME/kvcmas`` or ``~/.cache/kvcmas``."""
    if option is not None:
        return Path(option).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvcmas"


def made_once(folder: Path, usable: Callable[[Path], bool], write: Callable[[Path], None]) -> Path:
    """``folder``, which ``write`` fills where it is not ``usable``.

    Raises:
        OSError: it cannot be written.
    """
    from filelock import FileLock

    if usable(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):  # the lock dies with its holder
        if not usable(folder):
            _make(folder, write)
    return folder


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    for left in folder.parent.glob(f".{folder.name}-*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(left)
    if folder.exists():  # damaged from outside, it was never renamed half-written
        shutil.rmtree(folder)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(draft)
        for file in draft.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
