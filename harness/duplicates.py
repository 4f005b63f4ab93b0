"""Repeated requests: what methods that serve only content they have seen are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.script import Case


def duplicated(cases: Sequence[Case], share: float, seed: int) -> list[Case]:
    """All cases in their order, with repeats of earlier ones between them.

    After the first measured case every request is, with probability ``share``, a repeat of an earlier one, each
    equally likely, so that ``share`` of all requests are repeats in the long run. Warm-up is neither repeated nor
    interrupted. The n-th repeat of a case is called ``<id>~dup<n>``.

    Args:
        share: in [0, 1).
    """
    draw = np.random.default_rng([seed, 1])
    out, earlier, times = list[Case](), list[Case](), dict[str, int]()
    for case in cases:
        while earlier and not case.warmup and draw.random() < share:
            again = earlier[int(draw.integers(len(earlier)))]
            times[again.sample_id] = times.get(again.sample_id, 0) + 1
            name = f"{again.sample_id}~dup{times[again.sample_id]}"
            out.append(replace(again, sample_id=name, repeat_of=again.sample_id))
        out.append(case)
        if not case.warmup:
            earlier.append(case)
    return out
