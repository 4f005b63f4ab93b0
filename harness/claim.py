"""Who may write into a run folder: one process at a time, and one configuration for good."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from harness import atomic
from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, SUMMARY, read_provenance, read_rows
from harness.provenance import Provenance, utc_now


class Holder(msgspec.Struct, frozen=True):
    """Who holds a folder. It stands beside the lock, which the system itself ends with the process."""

    pid: int
    host: str
    since_utc: str


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the folder for the length of a ``with`` block. Raises UserError if another process does, naming it."""
    lock, holder = FileLock(path / ".lock", timeout=0), path / ".holder.json"
    try:
        lock.acquire()
    except Timeout:
        try:
            who = msgspec.json.decode(holder.read_bytes(), type=Holder)
            name = f"process {who.pid} on {who.host} since {who.since_utc}"
        except (OSError, msgspec.DecodeError):
            name = "another process"  # which has not got as far as to say its name
        raise UserError(f"the run folder {path} is held by {name}; wait for it, or end it and try again") from None
    except OSError as error:
        raise UserError(f"cannot write into {path} ({error.strerror}); make room, or choose another place") from error
    try:
        atomic.replace_json(holder, Holder(os.getpid(), socket.gethostname(), utc_now()))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def claim(path: Path, config_yaml: str, identity: str) -> Provenance:
    """Check that the folder is of this identity, or make it so if nobody has used it yet.

    Raises:
        UserError: if it belongs to another, if files are missing, or if its configuration was edited.
    """
    config = path / CONFIG
    if not config.exists():
        if read_rows(path).rows or (path / SUMMARY).exists():
            raise UserError(f"{path} has results but no {CONFIG}; move the folder away to run this configuration")
        made = Provenance(identity_sha256=_sha256(identity), config_sha256=_sha256(config_yaml), sessions=[])
        atomic.replace_json(path / PROVENANCE, made)
        atomic.replace(config, config_yaml.encode())
        return made
    provenance = read_provenance(path)
    if provenance is None:
        raise UserError(f"{path} has no {PROVENANCE}; move the folder away to run this configuration")
    if provenance.identity_sha256 != _sha256(identity):
        raise UserError(f"{path} belongs to another configuration (see its {CONFIG}); move it away to run this one")
    if provenance.config_sha256 != hashlib.sha256(config.read_bytes()).hexdigest():
        raise UserError(f"{config} was edited after the run began; undo that, or move the folder away to start over")
    return provenance


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
