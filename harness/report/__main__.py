"""``python -m harness.report [folders]``: tables, figures and one page from run folders, without running anything.

Folders are run folders or hold some (default: results/runs). Analyses of ranks are taken from results/analysis. Written
are <out>/tables/*.{md,tex,csv}, <out>/figures/*.{pdf,png} and <out>/report.html, which opens from disk; tables
and figures of an earlier report that no longer belong to any exhibit are removed. The same folders give the same bytes.
Runs that are incomplete, damaged or in conflict are listed in the page and on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.output import of_disk, writable_folder
from harness.report.text import printable


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", help="run folders, or folders that hold some")
    parser.add_argument("--out", default="results", help="where tables, figures and page go")
    parser.add_argument("--analyses", help="folder of analyses (default: results/analysis)")
    options = parser.parse_args(arguments)
    from harness.report.make import make

    try:
        places = [_named("a folder", word) for word in options.folders] or [Path("results/runs")]
        analyses = Path("results/analysis") if options.analyses is None else _named("--analyses", options.analyses)
        if options.analyses is not None and not analyses.is_dir():
            raise UserError(f"--analyses {analyses} is no folder; name the one of the analyses, or leave it out")
        out = writable_folder("--out", _named("--out", options.out))
        made = make(places, analyses, out)
    except (UserError, OSError) as error:
        refused = error if isinstance(error, UserError) else of_disk(error)
        if refused is None:
            raise
        print(f"error: {refused}", file=sys.stderr)
        return 2
    for problem in made.problems:
        print(f"warning: {problem.folder}: {problem.what}; {problem.remedy}", file=sys.stderr)
    page = printable(str(out / "report.html"))
    print(f"{made.runs} runs, {made.tables} tables, {made.figures} figures: {page}")
    return 0


def _named(what: str, word: str) -> Path:
    """An empty word would mean the working folder."""
    if not word:
        raise UserError(f"{what} is empty, as the value of a shell variable that is not set; name the folder")
    return Path(word)


if __name__ == "__main__":
    sys.exit(main())
