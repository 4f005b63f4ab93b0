"""A run's summary: every metric of its rows, a pure function of them in the order they were written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness import metrics
from harness.records import SCHEMA, Phases, Route, Row, Status
from harness.summary import Early, Part, Summary


@dataclass(frozen=True)
class Heading:
    """What the rows cannot know, see :class:`harness.summary.Summary`.

    Attributes:
        layers: L of the model.
        programs: answers are programs, so that pass@k is told.
        early: how many samples of each repeat stand apart.
    """

    task: str
    method: str
    model: str
    backend: str
    layers: int
    command: str
    verified: bool | None = None
    built_from: str = ""
    glue: str = "recompute"
    teacher_forcing: bool = False
    early: int = 0
    programs: bool = False


def part(rows: Sequence[Row], layers: int) -> Part:
    """The metrics of some samples by themselves."""
    counted = metrics.hops(rows)
    return Part(
        n=len(rows),
        accuracy=metrics.accuracy(rows),
        reuse_ratio=metrics.reuse_ratio(counted),
        fresh_share=metrics.fresh_share(counted, layers),
        ttft_s=metrics.ttft(h for h in counted if not h.source_hop),
        fidelity=metrics.fidelity(counted),
    )


def early(rows: Sequence[Row], limit: int, layers: int) -> Early | None:
    """The first ``limit`` samples of each repeat, warm-up not counted, and the later ones; None if there are none, or
    if the method neither reuses nor learns corrections. Reuse without learning has them too, so that the later samples
    of a method that learns stand beside the same samples of one that does not."""
    learned = any(r.state_bytes is not None and r.state_bytes.correction for r in rows)
    if not learned and all(h.route is not Route.reuse for r in rows for h in r.hops):
        return None
    first, later, seen = list[Row](), list[Row](), Counter[int]()
    for row in rows:
        if row.warmup:
            continue
        seen[row.repeat] += 1
        (first if seen[row.repeat] <= limit else later).append(row)
    return Early(limit, part(first, layers), part(later, layers)) if limit and later else None


def summarise(rows: Sequence[Row], heading: Heading) -> Summary:
    """All metrics of a run, a pure function of its rows in the order they were written."""
    counted = metrics.hops(rows)
    return Summary(
        schema=SCHEMA,
        task=heading.task,
        method=heading.method,
        model=heading.model,
        backend=heading.backend,
        built_from=heading.built_from,
        glue=heading.glue,
        teacher_forcing=heading.teacher_forcing,
        layers=heading.layers,
        n=len(rows),
        accuracy=metrics.accuracy(rows),
        accuracy_ci95=metrics.accuracy_ci95(rows),
        pass_at_k=metrics.pass_at_k(rows) if heading.programs else None,
        reuse_ratio=metrics.reuse_ratio(counted),
        fresh_share=metrics.fresh_share(counted, heading.layers),
        ttft_s=metrics.ttft(counted),
        ttft_by_hop_s=metrics.ttft_by_hop(counted),
        ttft_by_route_s=metrics.ttft_by_route(counted),
        e2e_s=metrics.e2e(rows),
        throughput_tokens_s=metrics.throughput(counted, heading.layers),
        hops=metrics.hop_counts(rows),
        state_bytes=metrics.state_bytes(rows),
        peak_bytes=max((r.peak_bytes for r in rows if r.peak_bytes is not None), default=None),
        fidelity=metrics.fidelity(counted),
        speedup=metrics.speedup(counted),
        statuses={status: sum(r.status is status for r in rows) for status in Status},
        phases_s=sum((h.phases for h in counted), Phases()),
        learn_s=metrics.learn_s(rows),
        command=heading.command,
        programs=heading.programs,
        early=early(rows, heading.early, heading.layers),
        verified=heading.verified,
    )
