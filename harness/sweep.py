"""Values of a sweep that no run of it can have, found before the first run begins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness.command import composed
from harness.errors import UserError
from harness.explain import CommandLine, search
from harness.validate import validate


def refuse_values(asked: CommandLine) -> None:
    """Refuse a sweep with a value that is wrong in every combination with the others.

    What is wrong in some of them only is left to its run, so that the others go on. Choices of groups are composed, and
    so refused, by Hydra.

    Raises:
        UserError: naming every such value.
    """
    loader = search(asked.config_dir)
    try:
        overrides = OverridesParser.create(loader).parse_overrides(list(asked.overrides))
    except HydraException:
        return  # is explained where it is composed
    axes, groups, wrong = [_words(o) for o in overrides], loader.list_groups(""), list[str]()
    for place, (override, axis) in enumerate(zip(overrides, axes, strict=True)):
        if len(axis) == 1 or override.key_or_group in groups:
            continue
        for word in axis:
            rest = itertools.product(*axes[:place], [word], *axes[place + 1 :])
            said = None
            for words in rest:
                said = _said(words, override.key_or_group, asked.config_dir)
                if said is None:
                    break
            wrong += [said] if said is not None else []
    if wrong:
        raise UserError("; ".join(wrong))


def _words(override: Override) -> list[str]:
    if not (override.is_sweep_override() and override.is_discrete_sweep()):
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _said(words: Sequence[str], key: str, config_dir: str | None) -> str | None:
    """What is wrong with the option ``key`` in a run of ``words``."""
    try:
        validate(composed(CommandLine(tuple(words), config_dir=config_dir))[0])
    except UserError as error:
        return str(error) if str(error).startswith(f"{key}=") else None
    except (HydraException, OmegaConfBaseException):
        return None
    return None
