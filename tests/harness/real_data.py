"""Where tests find the benchmarks' own data: ``KVCMAS_DATA``, else ``../shared/data`` beside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(os.environ.get("KVCMAS_DATA") or Path(__file__).parents[3] / "shared" / "data")


def path(name: str) -> Path:
    """A file of the data, such as ``gsm8k/test.jsonl``; skips the test if it is not there."""
    file = ROOT / name
    if not file.is_file():
        pytest.skip(f"{name} is not below KVCMAS_DATA")
    return file


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path(name).read_bytes().split(b"\n") if line]
