"""Quantities of a run beside another run of the same block: what is left of the error of plain reuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np

from harness.report.block import Block
from harness.report.quantity import k_error, reused, v_error
from harness.report.run import Run
from harness.report.value import DRAWS, Value

Part = Literal["k", "v", "kv"]
PLAIN = "full_reuse"
HEADS = {"left_k": "K error left, %", "left_v": "V error left, %"}
AXES = {"left_k": "K error left, % of plain reuse's", "left_v": "V error left, % of plain reuse's"}


def left(part: Part) -> Callable[[Block, Run], Value | None]:
    """Percent of plain reuse's relative error that remains, a ratio of means over the hops that both reused on the
    same prompts (teacher-forced blocks only), with a paired bootstrap over samples. 100 repairs nothing."""

    def of(block: Block, run: Run) -> Value | None:
        base = block.baseline(run, PLAIN)
        if base is None or not run.summary.teacher_forcing:
            return None
        mine, theirs = _errors(run, part), _errors(base, part)
        both = sorted(mine.keys() & theirs.keys())
        samples = sorted({key[:2] for key in both})
        if not both:
            return None
        above, below = (
            np.asarray([sum(side[k] for k in both if k[:2] == s) for s in samples]) for side in (mine, theirs)
        )
        if not below.sum():
            return None
        draws = np.random.default_rng(0).integers(0, len(samples), (DRAWS, len(samples)))
        found = 100 * above[draws].sum(1) / np.maximum(below[draws].sum(1), 1e-30)
        low, high = np.quantile(found, (0.025, 0.975))
        return Value(100 * float(above.sum() / below.sum()), float(low), float(high))

    return of


@cache
def left_of(block: Block, run: Run, name: str) -> Value | None:
    """``left_k`` or ``left_v`` of a run, computed once."""
    return left("k" if name == "left_k" else "v")(block, run)


def _errors(run: Run, part: Part) -> dict[tuple[str, int, int], float]:
    """By sample, repeat and place of the hop."""
    found = {}
    for row in run.rows:
        for place, hop in enumerate(row.hops):
            if row.completed and not hop.warmup and reused(hop):
                errors = [e(hop) for e, name in ((k_error, "k"), (v_error, "v")) if name in part]
                if all(e is not None for e in errors):
                    found[row.sample_id, row.repeat, place] = sum(e for e in errors if e is not None)
    return found
