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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", help="run folders, or folders that hold some")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where tables, figures and page go")
    parser.add_argument("--analyses", type=Path, default=Path("results/analysis"), help="folder of analyses")
    options = parser.parse_args(arguments)
    from harness.report.make import make

    try:
        writable_folder("--out", options.out)
        made = make(options.folders or [Path("results/runs")], options.analyses, options.out)
    except (UserError, OSError) as error:
        refused = error if isinstance(error, UserError) else of_disk(error)
        if refused is None:
            raise
        print(f"error: {refused}", file=sys.stderr)
        return 2
    for problem in made.problems:
        print(f"warning: {problem.folder}: {problem.what}; {problem.remedy}", file=sys.stderr)
    print(f"{made.runs} runs, {made.tables} tables, {made.figures} figures: {options.out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
