"""What a verdict means for a row, of a run or scored again."""

from __future__ import annotations

from harness.records import ProgramRun, Status
from harness.sandbox.base import Outcome
from harness.script import Verdict


def judged(verdict: Verdict) -> tuple[Status, ProgramRun | None, str]:
    """Status, run of the program and message of a row whose hops all ran. A program that the sandbox could not judge is
    an ``error``: whether it is right is not known."""
    ran = verdict.execution
    if ran is None:
        return (Status.invalid if verdict.prediction is None else Status.ok), None, ""
    program = ProgramRun(ran.outcome.value, ran.message, ran.level.value)
    if ran.outcome in (Outcome.unsupported, Outcome.broken):
        return Status.error, program, f"{ran.outcome}: {ran.message}"
    return Status.ok, program, ""
