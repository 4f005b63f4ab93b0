"""What the programs beside ``python -m harness`` share: a run's options with their own among them, and refusals.

The run's configuration is composed here; without Hydra's own flags, logging and folders.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.cli import USAGE, refuse_foreign_kernels
from harness.config import COMPONENTS, CONF, Choices, register
from harness.errors import UserError
from harness.explain import CommandLine, explain
from harness.output import of_disk


@dataclass
class Attempt:
    """What a program was asked for, as far as it has understood it, and its exit code."""

    asked: CommandLine = field(default_factory=lambda: CommandLine(()))
    code: int = 0


@contextmanager
def attempt() -> Iterator[Attempt]:
    """What the person at the keyboard can mend becomes a sentence on stderr and exit code 2."""
    made = Attempt()
    try:
        refuse_foreign_kernels()
        yield made
    except (UserError, HydraException, OmegaConfBaseException, YAMLError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        print(f"error: {explain(error, made.asked)}", file=sys.stderr)
        made.code = USAGE
    except OSError as error:
        refused = of_disk(error)
        if refused is None:
            raise
        print(f"error: {refused}", file=sys.stderr)
        made.code = USAGE


def split(words: Sequence[str], own: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Values of the options in ``own``, the last of each, and the other words."""
    mine = [word for word in words if word.partition("=")[0] in own and "=" in word]
    return dict(word.split("=", 1) for word in mine), [word for word in words if word not in mine]


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


def composed(asked: CommandLine) -> tuple[DictConfig, Choices]:
    """The configuration of the run ``asked`` for, and the names of its choices."""
    register()
    further = [] if asked.config_dir is None else [f"hydra.searchpath=[file://{Path(asked.config_dir).resolve()}]"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        whole = compose("config", [*asked.overrides, *further], return_hydra_config=True)
    names = Choices(*(str(whole.hydra.runtime.choices[group]) for group in COMPONENTS))
    return OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"]), names
