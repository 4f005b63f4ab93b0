"""A report beside the last one until all of it is there, so that a killed report leaves the last one as it was.

Its files are made in ``<out>/.report/new``, the list of them last, and then moved to their places. That takes
milliseconds; where a process is killed within them, the next report moves the rest before it does anything else. Only
the list is flushed to the disk, so that none of this holds for a power cut.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import UserError
from harness.report import manifest

OWN = ".report"
PAGE = "report.html"


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder for the page and the folders of tables and figures, which become those of ``out`` at the end of the
    ``with`` block, and nothing does if it is left by an exception.

    Raises:
        UserError: if another process makes a report there.
    """
    new, lock = out / OWN / "new", FileLock(out / OWN / ".lock", timeout=0)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"another report is being written to {out}; wait for it, or give another --out") from None
    try:
        _settle(new, out)
        for name in manifest.FOLDERS:
            (new / name).mkdir(parents=True)
        yield new
        manifest.record(new)
        _settle(new, out)
    finally:
        if not _whole(new):
            shutil.rmtree(new, ignore_errors=True)
        lock.release()


def _whole(new: Path) -> bool:
    return (new / manifest.MANIFEST).exists()


def _settle(new: Path, out: Path) -> None:
    """Move a report to its places if all of it is there, and remove it if not; what was begun is gone on with."""
    if _whole(new):
        for name in (*manifest.files(new), PAGE):
            if (new / name).exists():
                _move(new / name, out / name)
        for file in manifest.stale(out, new):
            file.unlink()
        _move(new / manifest.MANIFEST, out / manifest.MANIFEST)
    shutil.rmtree(new, ignore_errors=True)


def _move(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, to)  # a rename, but where the folder of tables or figures is a link to another disk
