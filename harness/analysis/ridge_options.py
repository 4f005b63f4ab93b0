"""Options of ``python -m harness.analyse ridge``; loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UserError
from harness.explain import CommandLine

OWN = ("observed", "held_out", "hops", "shift", "shift_source", "kl", "out")
COMPARES = True  # methods of its own

HELP = """\
``python -m harness.analyse ridge model=... task=...``: how well corrections predict deltas, on real hops.

Requests run dense once. Their hops are then shown to every method as if it had run them, and each corrects hops that
it has not seen: delta energy that remains (1 is rotation alone) against requests observed, KL of the first token
against dense with paired intervals, state bytes, and how well the gate's expected error foretells the true one.
Options besides those of a run (``method`` is not one):

    observed=4,16,64     requests observed before each evaluation; the last count is also that of the KL table
    held_out=64          requests that no method observes
    hops=2               hops of a trajectory that run, from the first on; those with a source are looked at
    shift=<task>         questions of another task under the same roles, which a fitted method meets; also shift_source=
    kl=true              run every held-out hop under every method as well (slower)
    out=<path>           where to write (default: results/analysis/ridge-<model>-<task>.json)

Outputs of earlier agents are looked at too if workflow.max_new_tokens is above 1. ``limit`` is not needed: as many
samples are read as the counts ask for.
"""


@dataclass(frozen=True)
class Options:
    """Options of an analysis that a run does not have; ``out`` None is the default place."""

    observed: tuple[int, ...] = (4, 8, 16, 32, 64)
    held_out: int = 64
    hops: int = 2
    shift: str | None = None
    shift_source: str | None = None
    kl: bool = True
    out: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises UserError for a value that does not fit."""
        try:
            observed = tuple(int(n) for n in given.get("observed", "4,8,16,32,64").split(","))
            held_out, hops = int(given.get("held_out", cls.held_out)), int(given.get("hops", cls.hops))
        except ValueError as error:
            raise UserError(f"observed, held_out and hops must be integers ({error})") from error
        if min(observed) < 1 or list(observed) != sorted(set(observed)):
            raise UserError(f"observed={given['observed']}: expected rising counts from 1 on, such as 4,16,64")
        if held_out < 2 or hops < 2:
            raise UserError(f"held_out={held_out} hops={hops}: both must be at least 2")
        kl = given.get("kl", "true")
        if kl not in ("true", "false"):
            raise UserError(f"kl={kl}: expected true or false")
        if "shift_source" in given and "shift" not in given:
            raise UserError(f"shift_source={given['shift_source']}: give shift=<task> too")
        places = given.get("shift"), given.get("shift_source")
        return cls(observed, held_out, hops, *places, kl == "true", given.get("out"))


def analyse(asked: CommandLine, own: Mapping[str, str]) -> None:
    options = Options.parse(own)
    from harness.analysis.ridge import analyse as run

    run(asked, options)
