"""The paper's numbers beside ours, with a verdict on each.

``reproduced``: measured under the paper's conditions, and its number lies in our 95 % interval or within a tenth of our
value. ``differs``: measured under its conditions, and it does not. ``not comparable``: we have a number, but of another
model, length, machine or sample; which is said. ``calculated``: a formula or a setting of ours, which no run has put
to the test, whatever its distance. ``no run``: the command that would make one is given. Nobody types a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.report.claims import CLAIMS
from harness.report.evidence import Evidence, Ours
from harness.report.value import Value, number
from harness.reported import Reported

NEAR = 0.10


@dataclass(frozen=True)
class Verdict:
    reported: Reported
    verdict: str
    ours: Ours | None
    why: str
    command: str

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or not self.reported.value else self.ours.value.value / self.reported.value


def verdicts(reported: Mapping[str, Reported], evidence: Evidence) -> list[Verdict]:
    """One for every reported number, in its order."""
    return [_verdict(number_, evidence) for number_ in reported.values()]


def _verdict(reported: Reported, evidence: Evidence) -> Verdict:
    command, find = CLAIMS.get(reported.id, ("", None))
    if find is None:
        why = "measured on no machine yet, only simulated" if command else "no experiment measures this yet"
        return Verdict(reported, "no run", None, why, command)
    ours = find(evidence, reported)
    if ours is None:
        return Verdict(reported, "no run", None, "no run of this experiment is in the folders", command)
    if ours.reasons:
        return Verdict(reported, "not comparable", ours, "; ".join(ours.reasons), command)
    why = f"{ours.remark}; " if ours.remark else ""
    value, paper = ours.value, reported.value
    inside = value.low is not None and value.high is not None and value.low <= paper <= value.high
    if inside and ours.measured:
        return Verdict(reported, "reproduced", ours, f"{why}inside our interval", command)
    off = abs(value.value - paper) / max(abs(paper), 1e-12)
    verdict = "calculated" if not ours.measured else "reproduced" if off <= NEAR else "differs"
    return Verdict(reported, verdict, ours, f"{why}{100 * off:.0f} % from the paper's number", command)


def said(value: Value, unit: str) -> str:
    """Our number in the paper's unit."""
    setting = value.low is None and value.value == int(value.value)  # measured numbers are not whole
    text = f"{value.value:,.0f}" if setting else number(value.value)
    if value.low is not None and value.high is not None:
        text += f" ({number(value.low)}–{number(value.high)})"
    return f"{text} {unit}"
