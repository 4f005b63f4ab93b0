"""Rows of the mixed forward: no leak from later rows, none dropped that must run, none read that was never set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.invariants.base import EXACT, Invariant
from harness.invariants.subject import ONE, Inapplicable, Subject
from harness.invariants.witness import Seen, fresh_rows
from methods.base import Reuse, Rope, Rows
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Changed:
    """Rows of which one is another one, in all layers."""

    rows: Rows
    at: int

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        self.rows.write(keys, values, start, rope)
        keys[:, :, self.at] *= -2.0
        values[:, :, self.at] *= -2.0


@dataclass(frozen=True, eq=False)
class Probe:
    """A plan for a prompt, and the row to change: ``row`` of the prompt, in ``segment``."""

    prompt: Prompt
    plan: Reuse
    segment: int
    row: int


def leak(subject: Subject) -> float:
    """The largest change of an earlier row's keys and values, when a later reused row changes and the same rows run."""
    engine, probe = subject.bench.engine, _probe(subject.reusing(), subject.bench.layers)
    prompt, plan = probe.prompt, probe.plan
    at = probe.row - prompt.placed[probe.segment].start
    changed = replace(plan, rows={**plan.rows, probe.segment: Changed(plan.rows[probe.segment], at)})
    before, after = engine.run(prompt, plan, ONE), engine.run(prompt, changed, ONE)
    if torch.equal(before.logits, after.logits):
        raise Inapplicable(f"no later row reads reused row {probe.row}, so that nothing was tested")
    mine, other = before.kv(0, probe.row), after.kv(0, probe.row)
    moves = [(mine.k - other.k).abs().max(), (mine.v - other.v).abs().max()]
    return float(torch.stack(moves).double().max())


def nested(subject: Subject) -> float:
    """Rows that run a layer without having run the one before or having entered with a state, and rows that no reused
    segment covers but that do not run; over all hops."""
    wrong = 0
    for seen in subject.reusing():
        passed = seen.passed(subject.bench.layers)
        for layer, rows in enumerate(passed):
            wrong += int((~torch.isin(seen.fresh, rows)).sum())
            wrong += len(rows) != seen.run.fresh_rows[layer]
            if layer:
                states = torch.cat([passed[layer - 1], *_entered(seen, layer)])
                wrong += int((~torch.isin(rows, states)).sum())
    return float(wrong)


def unset(subject: Subject) -> float:
    """Numbers that are not finite in logits and held rows, where every row that nobody set was NaN."""
    wrong = 0
    for seen in subject.main.seen:
        kv = seen.run.kv(0, seen.run.held)
        wrong += sum(int((~x.isfinite()).sum()) for x in (seen.run.logits, kv.k, kv.v))
    return float(wrong)


def _probe(hops: Sequence[Seen], layers: int) -> Probe:
    """The last reused row of a span that keeps its reused values at the last layer and has a running row before it.

    Private rows that come from a cache run here, where the plan lets rows run or not for all layers.
    """
    for seen in reversed(hops):
        prompt, places = seen.hop.prompt, list(seen.hop.prompt.shared())
        if seen.recorded is None:
            spans = {place.index for place in places}
            plan = Reuse({index: rows for index, rows in seen.again().rows.items() if index in spans})
            running = fresh_rows(prompt, plan)
        else:
            plan, running = seen.again(), seen.passed(layers)[-1]
        lost = torch.cat([running, _written(seen, layers - 1)])
        for place in (p for p in reversed(places) if p.index in plan.rows):
            kept = torch.arange(place.start, place.stop)
            kept = kept[~torch.isin(kept, lost)]
            if len(kept) and bool((running < kept[-1]).any()):
                return Probe(prompt, plan, place.index, int(kept[-1]))
    raise Inapplicable("no recomputed row lies before a reused one that keeps its values")


def _entered(seen: Seen, layer: int) -> list[Tensor]:
    entry = seen.recorded.selections[layer].enter if seen.recorded is not None else None
    return [] if entry is None else [entry[0].cpu()]


def _written(seen: Seen, layer: int) -> Tensor:
    rows = seen.recorded.selections[layer].write if seen.recorded is not None else None
    return torch.zeros(0, dtype=torch.long) if rows is None else rows.cpu()


INVARIANTS = (
    Invariant("I6", "A recomputed row sees no later row: it does not move when one changes.", EXACT, leak),
    Invariant("I9", "Rows that run a layer ran the one before or enter there; fresh rows run all.", EXACT, nested),
    Invariant("I10", "No row is read that nobody set.", EXACT, unset),
)
