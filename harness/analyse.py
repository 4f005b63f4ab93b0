"""``python -m harness.analyse <subject> model=... task=...``: questions about caches that no single run answers.

    ridge    how well corrections predict deltas: energy that remains, first-token KL, gates
    rank     how many components deltas and caches have, by layer, before and after rotation

``python -m harness.analyse <subject> --help`` lists the options of one. The result is a file in results/analysis.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness.cli import INTERRUPTED, USAGE, refuse_foreign_kernels
from harness.errors import UserError
from harness.explain import CommandLine, explain
from harness.hint import nearest

# Each has OWN, COMPARES, HELP and analyse(asked, words); what is expensive is imported by the last.
SUBJECTS = {"ridge": "harness.analysis.ridge_options", "rank": "harness.analysis.rank_options"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Analyse as ``arguments`` (those of the process by default) say; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wants_help = not words or bool({"-h", "--help"} & set(words))
    if wants_help and not SUBJECTS.keys() & set(words):
        print(__doc__)
        return 0
    asked = CommandLine(())
    try:
        refuse_foreign_kernels()
        if words[0] not in SUBJECTS:
            raise UserError(f"{words[0]}: there is no such analysis, {nearest(words[0], SUBJECTS)}")
        subject = import_module(SUBJECTS[words[0]])
        if wants_help:
            print(subject.HELP)
            return 0
        own = [w for w in words[1:] if w.partition("=")[0] in subject.OWN and "=" in w]
        asked = CommandLine(tuple(w for w in words[1:] if w not in own))
        if any(w.startswith("method=") for w in asked.overrides):
            why = "compares methods of its own" if subject.COMPARES else "looks at caches, not at a method"
            raise UserError(f"method: this analysis {why}; leave it out")
        subject.analyse(asked, own)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        print(f"error: {explain(error, asked)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
