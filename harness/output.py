"""Where results go: tried before the work begins, and told in one sentence when the disk refuses later."""

from __future__ import annotations

import errno
from pathlib import Path
from tempfile import NamedTemporaryFile

from harness.errors import UserError

REFUSALS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})
"""What a disk says while nothing is wrong with the program."""


def of_disk(error: BaseException, place: Path | None = None) -> UserError | None:
    """The sentence for a disk that is full, read-only or somebody else's; None for any other exception.

    ``place`` is where the work was, for errors that do not say their file: those of writing into one that is open.
    """
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return None
    where = f" {error.filename}" if error.filename else f" in {place}" if place is not None else ""
    return UserError(f"cannot write{where} ({error.strerror}); make room, or choose another place, and try again")


def writable(option: str, path: Path) -> Path:
    """``path``, at which a file can be written: its folder is made, a file that is there stays as it is.

    Raises:
        UserError: naming ``option``.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=".tmp-"):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write there ({error.strerror}); choose another file") from error
    return path


def writable_folder(option: str, path: Path) -> Path:
    """``path``, a folder in which files can be written; it is made. Raises UserError as :func:`writable`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path, prefix=".tmp-"):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write there ({error.strerror}); choose another folder") from error
    return path
