"""Samples in the order of a run, and the rows that they become, whatever engine ran them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from harness.judged import judged
from harness.records import Row, StateSize, Status
from harness.script import Case
from harness.trajectory import Finished


@dataclass(frozen=True)
class Turn:
    """A sample at its place in the run's order."""

    repeat: int
    case: Case


def in_order(cases: Sequence[Case], repeats: int, seed: int) -> list[Turn]:
    """Samples of all repeats: the first in the data's order, the others permuted (warm-up always first), so that
    pools meet the samples in another order."""
    turns = []
    for repeat in range(repeats):
        warm, measured = [c for c in cases if c.warmup], [c for c in cases if not c.warmup]
        if repeat:
            order = np.random.default_rng([seed, repeat]).permutation(len(measured))
            measured = [measured[i] for i in order]
        turns += [Turn(repeat, case) for case in (*warm, *measured)]
    return turns


def finished(turn: Turn, raw: str, done: Finished, size: StateSize, peak: int) -> Row:
    """The row of a sample that ran to its end, with its answer as text and the largest memory in use."""
    case, (status, program, message) = turn.case, judged(done.verdict)
    return Row(
        sample_id=case.sample_id,
        repeat=turn.repeat,
        subject=case.subject,
        status=status,
        message=message,
        prediction=done.verdict.prediction,
        target=case.target,
        correct=done.verdict.correct,
        program=program,
        raw=raw,
        e2e_s=done.seconds,
        peak_bytes=peak,
        state_bytes=size,
        media=done.media,
        hops=done.hops,
    )


def failed(turn: Turn, status: Status, message: str) -> Row:
    """The row of a sample that did not."""
    case = turn.case
    return Row(
        sample_id=case.sample_id,
        repeat=turn.repeat,
        subject=case.subject,
        status=status,
        target=case.target,
        message=message,
    )


def peak_bytes(device: torch.device | None) -> int:
    """Largest memory in use: of the CUDA allocator since the sample began, else of the process so far."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
