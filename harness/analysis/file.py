"""Where an analysis goes, and how it gets there; loads neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness import atomic
from harness.config import Choices
from harness.output import writable


def place(subject: str, names: Choices, out: str | None) -> Path:
    """``out``, or results/analysis/<subject>-<model>-<task>.json. Raises UserError if it cannot be written."""
    default = Path("results", "analysis", f"{subject}-{names.model}-{names.task}.json")
    return writable("out", default if out is None else Path(out).expanduser())


def write(found: msgspec.Struct, path: Path) -> None:
    """Replace the file as a whole."""
    atomic.replace_json(path, found)
