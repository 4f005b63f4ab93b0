"""``python -m harness.profile method=droidspeak model=... task=... [limit=50]``: what a method learns offline.

Calibration requests run dense; the method's profiler looks at every hop that reads an earlier hop's cache and may try
plans on its prompt. The requests are the *last* items of the task's data (runs take the first), or the first of another
file. Options besides those of a run:

    calibration=<path>  items from this file instead
    step=2              layers between two edges of a layer group
    within=0.05         relative loss of quality that the pick ``quality`` may have
    --config-dir DIR    further YAML files, as for a run
    out=<path>          where to write (default: results/profiles/<method>-<model>-<task>.json)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.command import attempt, composed, elsewhere, split
from harness.config import Choices
from harness.errors import UserError
from harness.explain import CommandLine

OWN = ("calibration", "step", "within", "out")


@dataclass(frozen=True)
class Options:
    """Options of a profile that a run does not have; ``out`` None is the default place."""

    calibration: str | None = None
    step: int = 2
    within: float = 0.05
    out: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises UserError for a value that does not fit."""
        try:
            step, within = int(given.get("step", cls.step)), float(given.get("within", cls.within))
        except ValueError as error:
            raise UserError(f"step must be an integer and within a number ({error})") from error
        if step < 1 or not 0 <= within < 1:
            raise UserError(f"step={step} within={within}: step must be at least 1, within at least 0 and below 1")
        return cls(given.get("calibration"), step, within, given.get("out"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile as ``arguments`` (those of the process by default) say; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    with attempt() as tried:
        words, config_dir = elsewhere(words)
        own, rest = split(words, OWN)
        tried.asked = CommandLine(tuple(rest), config_dir=config_dir)
        options = Options.parse(own)
        cfg, names = composed(tried.asked)
        if options.calibration is not None:
            if "source" not in cfg.task:
                raise UserError(f"calibration={options.calibration}: task={names.task} reads no data; leave it out")
            cfg.task.source = options.calibration
        # Imported here: help and refused options need neither torch nor transformers.
        from harness.calibration import profile

        try:
            profile(cfg, names, options)
        except UserError as error:
            if options.calibration is None:
                raise
            raise UserError(str(error).replace("task.source", "calibration")) from error  # as it was typed
    return tried.code


def place(names: Choices, options: Options) -> Path:
    """Where the profile goes."""
    default = Path("results", "profiles", f"{names.method}-{names.model}-{names.task}.json")
    return default if options.out is None else Path(options.out).expanduser()


if __name__ == "__main__":
    sys.exit(main())
