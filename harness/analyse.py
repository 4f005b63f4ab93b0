"""``python -m harness.analyse <subject> model=... task=...``: questions about caches that no single run answers.

    ridge    how well corrections predict deltas: energy that remains, first-token KL, gates
    rank     how many components deltas and caches have, by layer, before and after rotation

``python -m harness.analyse <subject> --help`` lists the options of one. The result is a file in results/analysis.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from harness.cli import INTERRUPTED
from harness.command import attempt, split
from harness.errors import UserError
from harness.explain import CommandLine
from harness.hint import nearest

# Each has OWN, COMPARES, HELP and analyse(asked, own); what is expensive is imported by the last.
SUBJECTS = {"ridge": "harness.analysis.ridge_options", "rank": "harness.analysis.rank_options"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Analyse as ``arguments`` (those of the process by default) say; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wants_help = not words or bool({"-h", "--help"} & set(words))
    if wants_help and not SUBJECTS.keys() & set(words):
        print(__doc__)
        return 0
    try:
        with attempt() as tried:
            if words[0] not in SUBJECTS:
                raise UserError(f"{words[0]}: there is no such analysis, {nearest(words[0], SUBJECTS)}")
            subject = import_module(SUBJECTS[words[0]])
            if wants_help:
                print(subject.HELP)
                return 0
            own, rest = split(words[1:], subject.OWN)
            tried.asked = CommandLine(tuple(rest))
            if any(w.startswith("method=") for w in rest):
                why = "compares methods of its own" if subject.COMPARES else "looks at caches, not at a method"
                raise UserError(f"method: this analysis {why}; leave it out")
            subject.analyse(tried.asked, own)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return tried.code


if __name__ == "__main__":
    sys.exit(main())
