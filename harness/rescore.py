"""``python -m harness.rescore <run folder> [--write] [task.<option>=<value> ...]``: score stored answers again.

Every finished row of a complete run is extracted and scored anew from its raw answer, without a model, by the task and
the data that the run's config.yaml names, and what changes is shown. With --write the new predictions, scores and
summary replace the old ones; hops and all times stay, the rows as they were are kept in rows.jsonl.bak-N, and summary
and provenance say which code did it.

    --write               replace rows and summary
    task.source=<path>    where the data is now; it must be the same data
    task.<option>=...     another option of the task (task.execute=true; task.extractor=..., which is never written)
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from harness.cli import USAGE
from harness.errors import UserError
from harness.hint import nearest

FLAGS = ("--write", "--help")
NEVER_WRITTEN = "task.extractor"  # the run's own configuration says how it is scored


def main(arguments: Sequence[str] | None = None) -> int:
    """Rescore what ``arguments`` (those of the process by default) name; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    try:
        folder, options, write = _parse(words)
        # Imported here: help needs none of it.
        from harness.rescoring import rescore

        rescore(folder, options, write, words)
    except UserError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    return 0


def _parse(words: Sequence[str]) -> tuple[Path, list[str], bool]:
    flags = [word for word in words if word.startswith("-")]
    options = [word for word in words if word not in flags and "=" in word and not Path(word).is_dir()]
    folders = [word for word in words if word not in flags and word not in options]
    if unknown := [flag for flag in flags if flag not in FLAGS]:
        raise UserError(f"{unknown[0]}: there is no such flag, {nearest(unknown[0], FLAGS)}")
    if len(folders) != 1:
        raise UserError(f"expected one run folder and options such as task.source=<path>, got {' '.join(words)}")
    if "--write" in flags and any(option.partition("=")[0] == NEVER_WRITTEN for option in options):
        raise UserError(
            f"{NEVER_WRITTEN} and --write do not go together, since the run's config.yaml would then be wrong; leave "
            "--write out to look at the scores, or run again (equal options make a folder of their own)"
        )
    return Path(folders[0]), options, "--write" in flags


if __name__ == "__main__":
    sys.exit(main())
