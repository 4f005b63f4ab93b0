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

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.cli import USAGE, refuse_foreign_kernels
from harness.config import COMPONENTS, CONF, Choices, register
from harness.errors import UserError
from harness.explain import CommandLine, explain

OWN = ("calibration", "step", "within", "out")


@dataclass(frozen=True)
class Options:
    """Options of a profile that a run does not have; ``out`` None is the default place."""

    calibration: str | None = None
    step: int = 2
    within: float = 0.05
    out: str | None = None

    @classmethod
    def parse(cls, words: Sequence[str]) -> Options:
        """Raises UserError for a value that does not fit."""
        given = dict(word.split("=", 1) for word in words)
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
    asked = CommandLine(())
    try:
        refuse_foreign_kernels()
        words, config_dir = elsewhere(words)
        own = [w for w in words if w.partition("=")[0] in OWN and "=" in w]
        asked = CommandLine(tuple(w for w in words if w not in own), config_dir=config_dir)
        options = Options.parse(own)
        cfg, names = composed(asked, options)
        # Imported here: help and refused options need neither torch nor transformers.
        from harness.calibration import profile

        profile(cfg, names, options)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        print(f"error: {explain(error, asked)}", file=sys.stderr)
        return USAGE
    return 0


def elsewhere(words: Sequence[str]) -> tuple[list[str], str | None]:
    """``words`` without ``--config-dir DIR``, and that folder of further YAML files.

    Raises:
        UserError: if the flag has no folder, or one that does not exist.
    """
    rest, found = list[str](), None
    given = iter(words)
    for word in given:
        flag, equals, value = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            rest.append(word)
            continue
        found = value if equals else next(given, "")
        if not Path(found).is_dir() or not found:
            raise UserError(f"--config-dir {found}: expected a folder of YAML files, in folders named after the groups")
    return rest, found


def composed(asked: CommandLine, options: Options) -> tuple[DictConfig, Choices]:
    """The configuration of the run ``asked`` for over the calibration data, and the names of its choices."""
    register()
    further = [] if asked.config_dir is None else [f"hydra.searchpath=[file://{Path(asked.config_dir).resolve()}]"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        whole = compose("config", [*asked.overrides, *further], return_hydra_config=True)
    names = Choices(*(str(whole.hydra.runtime.choices[group]) for group in COMPONENTS))
    cfg = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    if options.calibration is not None:
        if "source" not in cfg.task:
            raise UserError(f"calibration={options.calibration}: task={names.task} reads no data; leave it out")
        cfg.task.source = options.calibration
    return cfg, names


def place(names: Choices, options: Options) -> Path:
    """Where the profile goes."""
    default = Path("results", "profiles", f"{names.method}-{names.model}-{names.task}.json")
    return default if options.out is None else Path(options.out).expanduser()


if __name__ == "__main__":
    sys.exit(main())
