"""Programs that draw or print one thing from the run folders on their command line: :mod:`curve`, :mod:`serving`,
:mod:`paired`. A folder that cannot be used is named and left out; it is an error when none is left."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError
from harness.output import writable
from harness.report.soundness import regular

FORMATS = (".png", ".pdf", ".svg")

T = TypeVar("T")


def usable(folders: Sequence[Path], read: Callable[[Path], T], remedy: str) -> list[T]:
    """What ``read`` makes of each folder; those that it refuses are named on stderr.

    Raises:
        UserError: if it refuses all of them; ``remedy`` says what to do.
    """
    found = []
    for folder in folders:
        try:
            regular(folder)
            found.append(read(folder))
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not found:
        raise UserError(f"none of the folders can be used; {remedy}")
    return found


def same_kind(kinds: Iterable[str]) -> None:
    """Raises UserError if there are several kinds of runs, which one figure would mix up."""
    if len(several := sorted(set(kinds))) > 1:
        raise UserError(f"the folders hold runs of several kinds ({'; '.join(several)}); give those of one")


def save(figure: Any, target: Path) -> None:
    """Write the figure."""
    figure.savefig(target, dpi=150)


def drawable(out: Path) -> Path:
    """``out``, a file that a figure can be written to. Raises UserError for other endings and where it cannot be."""
    if out.suffix not in FORMATS:
        raise UserError(f"--out {out}: a figure is one of {', '.join(FORMATS)}")
    return writable("--out", out)


def run(module: str, about: str | None, plot: Callable[[Sequence[Path], Path], None], out: str,
        arguments: Sequence[str] | None) -> int:  # fmt: skip
    """The command line ``folders --out figure``; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results/figures") / out)
    options = parser.parse_args(arguments)
    try:
        plot(options.folders, drawable(options.out))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"figure: {options.out}")
    return 0
