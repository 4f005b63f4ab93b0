"""Which run folders are meant, and which of them really ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.folder import run_folders
from harness.traffic.pool import Measured, measured


def usable(places: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Run folders that are among ``places`` or lie below them, and why others below them are left out.

    Raises:
        UserError: for a place that does not exist or holds no run, for a run that is named itself and cannot be used,
            or if no run is left.
    """
    found, left_out = list[Path](), list[str]()
    for place in places:
        if not place.exists():
            raise UserError(f"{place}: there is no such folder; give folders of runs of task=trace")
        if not place.is_dir():
            raise UserError(f"{place}: this is a file; give the folder of a run of task=trace")
        folders = sorted(run_folders(place))
        if not folders:
            raise UserError(f"{place}: there is no run in it or below it; give folders of runs of task=trace")
        for folder in folders:
            try:
                ran(folder)
            except UserError as error:
                if folder == place:
                    raise
                left_out.append(str(error))
            else:
                found.append(folder)
    if not found:
        raise UserError(f"none of the runs can be used: {left_out[0]}")
    return list(dict.fromkeys(found)), left_out


def ran(folder: Path) -> Measured:
    """The complete run of a trace in ``folder``. Raises UserError if there is none, or if nothing ran in it."""
    found = measured(folder)
    if found.serving.simulated:
        raise UserError(f"{folder} is a simulation; give runs of task=trace that really ran")
    return found
