"""Caches against dense ones of the very same prompt: layer 0, the limits of a method, identical prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from harness.invariants.base import Invariant, Tolerance, apart, relative, worst
from harness.invariants.script import again
from harness.invariants.subject import Bench, Inapplicable, Reference, Subject
from harness.invariants.witness import Seen
from methods.base import Reuse, Rows
from methods.limits import Options

ROTATED = Tolerance(
    1e-4, 2e-2, 5e-2, "a cached key is rotated there and back: two roundings to the cache's dtype, and fp32 angles"
)
RECOMPUTED = Tolerance(
    1e-3, 3e-2, 1e-1, "the same sums in another order, amplified layer by layer: chunked and whole prefill differ so"
)


def layer_zero(subject: Subject) -> float:
    errors = []
    for seen in subject.reusing():
        mine, true = seen.run.kv(0, len(seen.hop.prompt)), subject.bench.dense(seen.hop.prompt).kv
        errors += [relative(mine.k[0], true.k[0]), relative(mine.v[0], true.v[0])]
    return worst(errors)


def recompute_everything(subject: Subject) -> float:
    seen = subject.hops(_options(subject.limits.dense, "recomputes everything"), [subject.request])
    return _from_dense(subject, seen)


def recompute_nothing(subject: Subject) -> float:
    hops = subject.hops(_options(subject.limits.reuse, "recomputes and corrects nothing"), [subject.request])
    errors = [min(_from_reuse(subject.bench, seen)) for seen in hops if seen.reuse is not None]
    if not errors:
        raise Inapplicable("it planned no reuse at the limit where it corrects nothing")
    return worst(errors)


def same_prefix(subject: Subject) -> float:
    script = subject.bench.prefix
    case = script.cases()[0]
    seen = subject.hops(subject.limits.reusing, [case, again(case)], script)
    reused = [hop for hop in seen if hop.reuse is not None]
    if not reused:
        raise Inapplicable("it planned no reuse of a span with the same prefix")
    return _from_dense(subject, reused)


def exact_correction(subject: Subject) -> float:
    options = _options(subject.limits.exact, "corrects exactly")
    name = again(subject.request)
    hops = subject.hops(options, [subject.request, name])
    reused = [seen for seen in hops if seen.reuse is not None and seen.hop.trajectory == name.sample_id]
    if not reused:
        raise Inapplicable("it planned no reuse at the limit where it corrects exactly")
    return _from_dense(subject, reused)


def _options(limit: Options | None, what: str) -> Options:
    if limit is None:
        raise Inapplicable(f"it declares no limit that {what}")
    return limit


def _from_dense(subject: Subject, hops: Sequence[Seen]) -> float:
    errors = []
    for seen in hops:
        true = subject.bench.dense(seen.hop.prompt)
        errors.append(apart(seen.run, true.logits, true.kv))
    return worst(errors)


def _from_reuse(bench: Bench, seen: Seen) -> list[float]:
    """Distances from plain reuse of what the plan reuses, out of each cache that it may mean: the hop upstream, the
    first holder, an encode of the span alone. Private rows are taken as planned."""
    prompt, plan = seen.hop.prompt, seen.plan
    planned = plan.rows if isinstance(plan, Reuse) else {}
    places = [place for place in prompt.shared() if place.index in planned]
    spans = {place.index: place.span for place in places if place.span is not None}
    private: dict[int, Rows] = {index: rows for index, rows in planned.items() if index not in spans}
    found: list[Reference] = []
    for held in (seen.hop.sources, seen.hop.first):
        if all(span.id in held for span in spans.values()):
            found.append(bench.run(prompt, Reuse({**private, **{i: held[s.id].kv for i, s in spans.items()}})))
    encoded = {index: bench.engine.encode(span.ids) for index, span in spans.items()}
    found.append(bench.run(prompt, Reuse({**private, **encoded})))
    return [apart(seen.run, reference.logits, reference.kv) for reference in found]


INVARIANTS = (
    Invariant(
        "I1",
        "Layer 0 of every cache depends on token and position only, so that any reuse equals dense there.",
        ROTATED,
        layer_zero,
        ("T2",),
    ),
    Invariant(
        "I2", "Recomputing everything is dense.", RECOMPUTED, recompute_everything, ("T10",)
    ),
    Invariant(
        "I3", "Recomputing and correcting nothing is plain reuse of a rotated cache.", RECOMPUTED, recompute_nothing
    ),
    Invariant(
        "I4", "A span whose prefix is the same in both prompts is reused exactly.", RECOMPUTED, same_prefix, ("T3",)
    ),
    Invariant(
        "I5",
        "A correction learned in full from the very same request, or the true one, gives the dense cache.",
        RECOMPUTED,
        exact_correction,
        ("T4", "T13"),
    ),
)  # fmt: skip
