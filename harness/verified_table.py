"""The table method x invariant, with the reason of everything that did not pass below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.invariants.catalogue import ELSEWHERE, INVARIANTS
from harness.verified import Outcome, Verdict, Verified, place


def show(found: Sequence[Verified], console: Console | None = None) -> None:
    """Print outcomes: ``pass``, the number that failed, or ``n/a``."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("method", no_wrap=True)
    for invariant in INVARIANTS:
        table.add_column("\n".join((invariant.id, *invariant.also)), justify="right", no_wrap=True)
    for one in found:
        table.add_row(Text(one.method), *(_cell(one.outcomes[invariant.id]) for invariant in INVARIANTS))
    head = f"\n{found[0].model} ({found[0].revision}), {found[0].dtype} on {found[0].device}\n"
    console.print(Text(head), soft_wrap=True)
    console.print(table)
    console.print()
    for invariant in INVARIANTS:
        console.print(Text(f"{invariant.id}: {invariant.statement}"), soft_wrap=True)
        for line in _reasons(found, invariant.id):
            console.print(Text(f"    {line}"), soft_wrap=True)
    for ids, why in ELSEWHERE.items():
        console.print(Text(f"{ids}: not checked here, {why}"), soft_wrap=True)
    failed = [one.method for one in found if not one.passed]
    verdict = f"failed: {', '.join(failed)}" if failed else f"all {len(found)} passed"
    seconds = sum(one.seconds for one in found)
    console.print(Text(f"\n{verdict}; {seconds:.0f} s; files: {place('<method>', found[0].model)}"), soft_wrap=True)


def _cell(outcome: Outcome) -> Text:
    """Four characters, so that the table fits 80 columns; the lines below say it in full."""
    if outcome.verdict is not Verdict.failed:
        return Text(outcome.verdict)
    number = "fail" if outcome.error is None else f"{outcome.error:.0e}".replace("e-0", "e-").replace("e+0", "e+")
    return Text(number, style="bold red")


def _reasons(found: Sequence[Verified], name: str) -> list[str]:
    """One line per reason, with the methods it holds for; failures first."""
    lines: dict[tuple[Verdict, str], list[str]] = {}
    for one in found:
        outcome = one.outcomes[name]
        if outcome.verdict is Verdict.failed:
            said = outcome.reason or f"{outcome.error:.3g} exceeds {outcome.tolerance:g}"
            lines.setdefault((Verdict.failed, said), []).append(one.method)
        elif outcome.verdict is Verdict.inapplicable:
            lines.setdefault((Verdict.inapplicable, outcome.reason), []).append(one.method)
    order = sorted(lines, key=lambda key: key[0] is not Verdict.failed)
    return [f"{verdict} {', '.join(lines[verdict, why])}: {why}" for verdict, why in order]
