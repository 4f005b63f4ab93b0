"""Reading a cost file: whole, of sane numbers, and saying all that the simulation of its methods needs.

A simulation gives plausible times from any numbers, so that what is absent from measured phases is refused, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.errors import UserError
from harness.hint import nearest
from harness.records import Route
from harness.sim.costs import PHASES, TERMS, CostFile, Recipe

FOLDER, PREFIX = Path(__file__).parent.parent / "data", "costs_"
LONGEST_S = 1e6  # of one unit of a measured phase, or of its fixed part
WRITE = "python -m harness.sim calibrate writes whole files"


def read(name: str, option: str = "backend.costs") -> CostFile:
    """The cost file called ``name``: ``authors``, ``ours``, or a path; ``option`` is where the name was given.

    Raises:
        UserError: if there is none, or it is not as :class:`CostFile` says: a number that is negative, not finite or
            beyond ``LONGEST_S`` in a measured phase, a measured phase or one of its terms that is missing, measured
            phases without ``layers``. It names file and field.
    """
    known = sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"{PREFIX}*.yaml"))
    if not name.strip():
        raise UserError(f"{option}={name}: expected the name of a cost file, one of {', '.join(known)}, or a path")
    path = FOLDER / f"{PREFIX}{name}.yaml" if name in known else Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"{option}={name}: there is no such cost file, {nearest(name, known)} (or give a path)")
    try:
        text = path.read_text(encoding="utf-8")
        plain: Any = OmegaConf.to_container(OmegaConf.create(text)) if text.strip() else {}
        file = msgspec.convert(plain, CostFile)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no cost file: it is no text ({error.reason}); {WRITE}") from error
    except (msgspec.ValidationError, OmegaConfBaseException, YAMLError, OSError, RecursionError) as error:
        raise UserError(f"{path} is no cost file: {' '.join(str(error).split())}") from error
    complaint = next(_numbers(plain), None) or next(_measured(file, plain), None)
    if complaint is None and not text.endswith("\n") and any(recipe.phases for recipe in file.methods.values()):
        complaint = "it ends in the middle of a line, so that its last number may be cut"
    if complaint is not None:
        raise UserError(f"{path} is no cost file: {complaint}; {WRITE}")
    return file


def _numbers(node: Any, place: tuple[str, ...] = ()) -> Iterator[str]:
    """Numbers that cannot be costs, rates or sizes."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _numbers(value, (*place, str(key)))
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        measured = place[:1] == ("methods",) and "phases" in place
        if measured and not 0 <= node <= LONGEST_S:
            yield f"{'.'.join(place)} is {node}, expected seconds from 0 to {LONGEST_S:.0f}"
        elif not 0 <= node < float("inf"):
            yield f"{'.'.join(place)} is {node}, expected a finite number from 0 up"


def _measured(file: CostFile, plain: Any) -> Iterator[str]:
    """What methods with measured phases lack."""
    for name, recipe in file.methods.items():
        found = plain["methods"][name].get("phases") or {}
        if not found and not (file.hardware and file.models):
            yield f"methods.{name} has no measured phases, and there are no hardware and models to derive them from"
        for route in _routes(recipe) if found else ():
            if route not in recipe.phases:
                yield f"methods.{name}.phases has no {route}, a route that {name} takes"
        for route, phases in found.items():
            for phase in PHASES:
                where = f"methods.{name}.phases.{route}"
                if phase not in phases:
                    yield f"{where} has no phase {phase}"
                    return
                if absent := [f"{term}_s" for term in TERMS[phase] if f"{term}_s" not in phases[phase]]:
                    yield f"{where}.{phase} has no {' and no '.join(absent)}"
        if found and file.layers is None:
            yield f"it has no layers, which the measured phases of {name} need"


def _routes(recipe: Recipe) -> Iterator[Route]:
    """Routes that calls take under ``recipe``."""
    yield Route.dense
    if recipe.reuse != "nothing":
        yield Route.reuse
        if recipe.refused or recipe.needs:
            yield Route.fallback
