"""What the paper reports (KVCMAS, arXiv 2609.34060), as a table: never mixed with what was measured here.

``results/paper.csv`` has a line per number, with the setting that it holds for. ``kind`` says what stands behind it:
``measured`` or ``estimated`` by the authors, or a ``setting`` of theirs (a sample count, a rank).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UserError

PAPER = Path(__file__).resolve().parent.parent / "results" / "paper.csv"
COLUMNS = ("id", "quantity", "method", "versus", "setting", "value", "unit", "kind")


class Reported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reported number.

    Attributes:
        id: unique, and stable: the report refers to it.
        method, versus: what it is of, and what that is compared with ("" if nothing).
        setting: lengths, load, model and device as far as they are stated.
        value, unit: as printed; ``percent`` is of 100, ``ratio`` of 1, ``x`` a factor.
    """

    id: str
    quantity: str
    method: str
    versus: str
    setting: str
    value: float
    unit: str
    kind: Literal["measured", "estimated", "setting"]


def read_reported(path: Path = PAPER) -> dict[str, Reported]:
    """The reported numbers by id, in the order of the file.

    Raises:
        UserError: if there is no such file, or a line of it is no reported number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = csv.DictReader(stream)
            if tuple(lines.fieldnames or ()) != COLUMNS:
                raise UserError(f"{path} has the columns {lines.fieldnames}, expected {', '.join(COLUMNS)}")
            found: dict[str, Reported] = {}
            for line in lines:
                number = _line(path, lines.line_num, line)
                if number.id in found:
                    raise UserError(f"{path}:{lines.line_num} has the id {number.id} a second time; give it another")
                found[number.id] = number
    except OSError as error:
        raise UserError(f"the reported numbers cannot be read from {path}: {error.strerror}") from error
    return found


def _line(path: Path, number: int, line: dict[str, str]) -> Reported:
    try:
        return msgspec.convert({**line, "value": float(line["value"])}, Reported)
    except (ValueError, TypeError) as error:  # msgspec's own errors are ValueErrors
        raise UserError(f"{path}:{number} is no reported number ({error}); correct that line") from error
