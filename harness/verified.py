"""What ``python -m harness.verify`` found out about a method on a model, on disk, and what a run reads from it.

A file counts only for the very weights and the very code that were checked: whoever changes a line of a method, of a
kernel or of the engine has to verify again.
"""

from __future__ import annotations

import hashlib
import math
from enum import StrEnum
from pathlib import Path

import msgspec

from harness.atomic import replace_json

VERIFIED_SCHEMA = 1
"""Version of the file. Another version counts as no file."""

FOLDER = Path("results", "verified")
ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("kernels", "methods", "harness/backends", "harness/invariants")


class Verdict(StrEnum):
    """How a method did on an invariant; ``inapplicable`` comes with a reason."""

    passed = "pass"
    failed = "fail"
    inapplicable = "n/a"


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One invariant of one method.

    Attributes:
        error: what was measured; None if nothing could be, or if it was not a finite number.
        tolerance: the largest error that passes in the model's dtype.
        reason: why it does not apply, or what was wrong if no number says it.
    """

    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.error is not None and not math.isfinite(self.error):
            raise ValueError(f"error must be finite or None, got {self.error}")
        if self.verdict is Verdict.inapplicable and not self.reason:
            raise ValueError("an invariant that does not apply needs a reason")


class Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``results/verified/<model>-<method>.json``.

    Attributes:
        method, target: name of its YAML and its constructor.
        options: sha256 of the resolved options that were checked; limits and other settings of a sweep share the code.
        model, revision, dtype, device: which weights, and how they ran.
        code: hash of the sources, see :func:`code`.
        versions: of kvcmas, torch and transformers.
        outcomes: by invariant id.
        seconds: wall time, loading left out.
    """

    schema: int = VERIFIED_SCHEMA
    method: str
    target: str
    options: str
    model: str
    revision: str
    dtype: str
    device: str
    code: str
    versions: dict[str, str]
    outcomes: dict[str, Outcome]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something was checked."""
        verdicts = [outcome.verdict for outcome in self.outcomes.values()]
        return Verdict.failed not in verdicts and Verdict.passed in verdicts

    def write(self, folder: Path = FOLDER) -> Path:
        """Replace the file as a whole; its folder is made."""
        path = place(self.method, self.model, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, self)
        return path


def read(method: str, model: str, folder: Path = FOLDER) -> Verified | None:
    """The stored outcome; None if there is none that this version can read."""
    try:
        found = msgspec.json.decode(place(method, model, folder).read_bytes(), type=Verified)
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return found if found.schema == VERIFIED_SCHEMA else None


def verified(method: str, model: str, revision: str, target: str = "", folder: Path = FOLDER) -> bool | None:
    """Whether ``method`` passed its checks on these weights; None if nobody knows.

    Args:
        method, model: names of their YAML files.
        revision: of the weights.
        target: the method's constructor, which must be the one that was checked; "" for any.
    """
    found = read(method, model, folder)
    if found is None or found.revision != revision or (target and found.target != target):
        return None
    return found.passed if found.code == code(found.target) else None


def mark(passed: bool | None) -> str:
    """What tables say about a run; nothing if it is verified."""
    return {True: "", False: "unverified (failed)", None: "unverified"}[passed]


def place(method: str, model: str, folder: Path = FOLDER) -> Path:
    """The file of a method on a model."""
    return folder / f"{model}-{method}.json"


def code(target: str) -> str:
    """Hash of all sources that decide what a method does: kernels, methods, engine, the checks themselves, and the
    method's own module if it lies elsewhere."""
    files = {path for part in SOURCES for path in (ROOT / part).rglob("*.py")}
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
    found.update(_elsewhere(target))
    return found.hexdigest()[:16]


def _elsewhere(target: str) -> bytes:
    """The source of a constructor's module, found without running it."""
    import importlib.util

    module = target.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        return b""
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return path.read_bytes() if path is not None and path.is_file() else b""
