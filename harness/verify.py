"""``python -m harness.verify model=... method=all``: the correctness gate.

Checks every invariant of ``harness.invariants`` that applies to each method on a checkpoint: on short requests of the
task's own roles and samples, through the ordinary runner, with the method's own options. Prints a table, writes
results/verified/<model>-<method>.json, and exits with 1 if anything failed. A run whose (method, model) pair has not
passed is marked unverified in every table.

    method=all            every choice of the group, or one name, or several: method=cacheblend,epic
    model=<name>          as for a run, options included: model=smollm2 model.dtype=float32
    method.<option>=...   as for a run, for every chosen method
    --config-dir DIR      further YAML files, as for a run: --config-dir my_conf method=mine
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from omegaconf import DictConfig

from harness.cli import DEFECT, INTERRUPTED
from harness.command import attempt, composed, elsewhere
from harness.config import CONF, GROUPS, Choices, Config
from harness.errors import UserError
from harness.explain import CommandLine
from harness.hint import nearest

FROM_ELSEWHERE = "custom"  # brings no constructor, so that all cannot mean it


@dataclass(frozen=True)
class Chosen:
    """One method's configuration, and the names of its choices."""

    cfg: DictConfig
    names: Choices


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify what ``arguments`` (those of the process by default) name; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    try:
        with attempt() as tried:
            tried.asked = CommandLine(tuple(words))
            words, config_dir = elsewhere(words)
            flags = [word for word in words if "=" not in word]
            if flags:
                raise UserError(f"{flags[0]}: expected options such as model=tiny method=all")
            _refuse_unknown(words)
            chosen = []
            for name in methods(words):
                tried.asked = CommandLine((*others(words), f"method={name}"), config_dir=config_dir)
                chosen.append(Chosen(*composed(tried.asked)))
            # Imported here: help and refused options need neither torch nor transformers.
            from harness.verification import verify

            tried.code = 0 if verify(chosen) else DEFECT
    except KeyboardInterrupt:
        print("interrupted; methods that were done are stored", file=sys.stderr)
        return INTERRUPTED
    return tried.code


def _refuse_unknown(words: Sequence[str]) -> None:
    known = [*(f.name for f in fields(Config)), *GROUPS, "hydra"]
    for word in words:
        option = word.partition("=")[0].partition(".")[0].partition("/")[0].partition("@")[0]
        if option not in known and not word.startswith(("+", "~")):
            raise UserError(f"{word}: there is no option {option}, {nearest(option, known)}")


def methods(words: Sequence[str]) -> list[str]:
    """Names of the methods to verify, in order.

    Raises:
        UserError: if none is given, one is empty, or the option is given twice.
    """
    given = [word.partition("=")[2] for word in words if word.partition("=")[0] == "method"]
    if len(given) != 1:
        raise UserError(f"method is given {len(given)} times; give it once: method=all, or names such as epic,kvcomm")
    if given[0] != "all":
        names = [name.strip() for name in given[0].split(",")]
        if not all(names):
            raise UserError(f"method={given[0]}: a name is empty; give names such as epic,kvcomm, or all")
        return list(dict.fromkeys(names))
    return sorted(path.stem for path in (CONF / "method").glob("*.yaml") if path.stem != FROM_ELSEWHERE)


def others(words: Sequence[str]) -> list[str]:
    """All options but the choice of the method."""
    return [word for word in words if word.partition("=")[0] != "method"]


if __name__ == "__main__":
    sys.exit(main())
