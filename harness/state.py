"""What a stateful method knows, on disk, so that a killed run goes on as if it had not been.

``state/meta.json`` names the blobs and says after how many rows it was taken; ``state/blobs/`` holds each blob once.
Blobs are written before the meta that names them and deleted after the meta that forgets them, and the meta is
replaced atomically: at every moment the folder holds one whole state. This is no archive: the folder goes when
the run is complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from harness import atomic
from harness.records import SCHEMA
from methods.base import Snapshot


class StateUnreadable(Exception):
    """The folder holds no state that can be trusted; the message says why."""


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named group of tensors: its name, its file under ``blobs/`` and the hash of that file."""

    name: str
    file: str
    sha256: str


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of ``meta.json``. ``method`` is the snapshot's meta as JSON text (Python's dialect, so that floats,
    infinities included, come back bit for bit); ``sha256`` covers everything else."""

    schema: int
    rows_done: int
    method: str
    blobs: list[Blob]
    sha256: str

    def digest(self) -> str:
        content = (self.schema, self.rows_done, self.method, [(b.name, b.file, b.sha256) for b in self.blobs])
        return _sha256(json.dumps(content).encode())


@dataclass(frozen=True, eq=False)
class State:
    """A snapshot and the number of rows that were on disk when it was taken."""

    rows_done: int
    snapshot: Snapshot


class StateFolder:
    """The state of one run. Whoever uses it holds the run folder's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blobs = path / "blobs"
        self._known: dict[str, Blob] = {}

    def save(self, rows_done: int, snapshot: Snapshot) -> None:
        """Replace the state. Blobs already on disk are not written again, so that an unchanged snapshot costs one
        small file. Tensors are stored as they are, whatever their dtype; their device is not.

        Raises:
            TypeError: if the snapshot's meta is not JSON.
        """
        method = json.dumps(snapshot.meta)
        self._blobs.mkdir(parents=True, exist_ok=True)
        fresh = [name for name in snapshot.blobs if name not in self._known]
        blobs = {name: self._known.get(name) or self._write(name, snapshot.blobs[name]) for name in snapshot.blobs}
        meta = Meta(SCHEMA, rows_done, method, list(blobs.values()), "")
        meta = msgspec.structs.replace(meta, sha256=meta.digest())
        atomic.replace(self._path / "meta.json", msgspec.json.encode(meta))
        forgotten = self._known.keys() - blobs.keys()
        self._known = blobs
        if fresh or forgotten:
            self._delete_all_but(blobs.values())

    def load(self) -> State | None:
        """The state, tensors on the CPU, or None if there is none at all.

        Raises:
            StateUnreadable: if a file is missing, damaged or of another schema version.
        """
        if not (self._path / "meta.json").exists():
            return None
        try:
            meta = msgspec.json.decode((self._path / "meta.json").read_bytes(), type=Meta)
        except (OSError, msgspec.DecodeError) as error:
            raise StateUnreadable(f"meta.json cannot be read ({error})") from error
        if meta.schema != SCHEMA:
            raise StateUnreadable(f"meta.json has schema {meta.schema}, this version reads {SCHEMA}")
        if meta.sha256 != meta.digest():
            raise StateUnreadable("meta.json does not match its own checksum")
        snapshot = Snapshot(json.loads(meta.method), {blob.name: self._read(blob) for blob in meta.blobs})
        self._known = {blob.name: blob for blob in meta.blobs}
        self._delete_all_but(meta.blobs)
        return State(meta.rows_done, snapshot)

    def remove(self) -> None:
        """Forget everything. The meta goes first, so that a kill in between leaves no state rather than half a one."""
        (self._path / "meta.json").unlink(missing_ok=True)
        self._known = {}
        if self._path.exists():
            atomic.sync_folder(self._path)
            shutil.rmtree(self._path)

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> Blob:
        # Clones, because safetensors refuses tensors that share storage, and views would carry all of theirs.
        plain = {key: t.detach().to("cpu").clone(memory_format=torch.contiguous_format) for key, t in tensors.items()}
        data = save(plain)
        blob = Blob(name, f"{_sha256(name.encode())}.safetensors", _sha256(data))
        atomic.replace(self._blobs / blob.file, data)
        return blob

    def _read(self, blob: Blob) -> dict[str, Tensor]:
        try:
            data = (self._blobs / blob.file).read_bytes()
            if _sha256(data) != blob.sha256:
                raise StateUnreadable(f"blob {blob.name} does not match its checksum")
            return load(data)
        except (OSError, SafetensorError) as error:
            raise StateUnreadable(f"blob {blob.name} cannot be read ({error})") from error

    def _delete_all_but(self, keep: Iterable[Blob]) -> None:
        """Files no meta names: forgotten blobs, and those written just before a kill, which are not to be trusted
        because a run that starts over may give the same name to other contents."""
        names = {blob.file for blob in keep}
        for file in self._blobs.glob("*"):
            if file.name not in names:
                file.unlink()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
