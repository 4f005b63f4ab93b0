"""Which run a configuration is: the same options and the same inputs give the same folder.

The id is a hash of the resolved options together with the *contents* of the inputs they name, without anything
that cannot change a row: tracking, folders, Hydra's own settings. Another schema of the rows starts all runs
afresh. It does not see the code, an online model's latest revision or the device that ``auto`` picks; those are
recorded in the run's provenance instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.errors import UserError
from harness.records import SCHEMA
from harness.signature import locate

_DIGITS = 10
_ELSEWHERE = frozenset({"hydra", "tracking", "results_dir", "points", "exhibit"})
_MEANT = frozenset({"size", "sizes"})  # others refer to them
_OPTIONAL = frozenset({"trace", "shard"})
_FOLDERS = frozenset({"cache_dir", "videos"})
_INPUTS = frozenset({"source", "path", "profile", "lookup", "costs"})

_WHOLE = 16 << 20  # files up to this many bytes are read whole inside a folder
_BLOCK, _BLOCKS = 64 << 10, 256


@dataclass(frozen=True)
class Run:
    """Identity of a run.

    Attributes:
        task, method: names for the folder.
        id: ten hexadecimal digits.
    """

    task: str
    method: str
    id: str

    @property
    def folder(self) -> Path:
        """Relative to ``results_dir``."""
        return Path(self.task, f"{self.method}-{self.id}")


def identify(cfg: DictConfig, choices: Mapping[str, Any]) -> Run:
    """The run that ``cfg`` describes; ``choices`` are the names of the chosen YAML files by group.

    Local inputs are read: a data file whole, a folder of weights by :func:`digest`.
    """
    # What is null because the task has no use for it is left out, as if the option were not there.
    names = [str(k) for k in cfg if k not in _ELSEWHERE and not (k in _OPTIONAL and cfg[k] is None)]
    kept = OmegaConf.masked_copy(cfg, names)
    plain = OmegaConf.to_container(kept, resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)  # the configuration of a run is a mapping
    plain = {key: value for key, value in plain.items() if key not in _MEANT}
    text = json.dumps([SCHEMA, _canonical(plain)], sort_keys=True)
    name = OmegaConf.select(cfg, "task.name") or choices.get("task")
    return Run(_label(name), _label(choices.get("method")), hashlib.sha256(text.encode()).hexdigest()[:_DIGITS])


def embedded(cfg: Mapping[str, Any], choice: str = "sample") -> Path | None:
    """The file that ``task.source=sample`` or ``task.lookup=frozen`` stands for, which the task's class names; None if
    it names none."""
    try:
        name = getattr(locate("task", cfg["_target_"]), choice, None)
    except UserError:
        return None
    return None if name is None else Path(__file__).parent / "data" / str(name)


def digest(path: Path) -> str:
    """Hash of a file, or of a folder's file names, sizes and contents.

    Inside a folder a file above 16 MiB (weights) counts by 256 evenly spaced blocks of 64 KiB, so that a model of
    many gigabytes takes a second; another checkpoint of the same shape still gives another hash.
    """
    found = hashlib.sha256()
    if path.is_dir():
        for file in sorted(p for p in path.rglob("[!.]*") if p.is_file() and not _hidden(p.relative_to(path))):
            size = file.stat().st_size
            found.update(f"{file.relative_to(path).as_posix()}\0{size}\0".encode())
            for block in _blocks(file, size):
                found.update(block)
    else:
        for block in _blocks(path, 0):
            found.update(block)
    return found.hexdigest()


def _hidden(path: Path) -> bool:
    """Bookkeeping of version control and of downloads."""
    return any(part.startswith(".") for part in path.parts)


def _blocks(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        if size <= _WHOLE:
            while block := stream.read(1 << 20):
                yield block
            return
        for index in range(_BLOCKS):
            stream.seek(index * (size - _BLOCK) // (_BLOCKS - 1))
            yield stream.read(_BLOCK)


def _canonical(value: Any) -> Any:
    """``value`` with inputs replaced by their contents, folders dropped and 1.0 written as 1."""
    if isinstance(value, dict):
        return {
            str(k): _contents(v, value) if k in _INPUTS and isinstance(v, str) else _canonical(v)
            for k, v in value.items()
            if k not in _FOLDERS
        }
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _contents(value: str, owner: Mapping[str, Any]) -> str:
    if value == "hub":
        return value
    match value:
        case "sample":
            path = embedded(owner)
        case "frozen":
            path = embedded(owner, value)
        case _:
            path = Path(value).expanduser()
    # An input that is not there, or cannot be read, is reported by whoever opens it.
    try:
        return f"sha256:{digest(path)}" if path is not None and path.exists() else value
    except OSError:
        return value


def _label(name: object) -> str:
    """``name`` as one folder name."""
    text = "".join(c if c.isalnum() or c in "._" else "-" for c in str(name)).strip(".-")
    return text or "unnamed"
