"""What a method keeps, forgets and repeats; that agents read what others really wrote; and rotation itself."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

from harness.backends.hf_run import Decoding
from harness.invariants.base import EXACT, Invariant, Tolerance, relative, worst
from harness.invariants.subject import Subject
from harness.invariants.witness import Print, Witness
from methods.base import Dense, Reuse

FARTHEST = 4096
ANGLES = Tolerance(1e-3, 2e-2, 5e-2, "angles are fp32: at position p they are off by p times 6e-8, cached keys by more")


def rotation(subject: Subject) -> float:
    """On this model's own keys: R(a) then b more is R(a + b), and taking R(a) off gives the keys back."""
    shape = subject.bench.engine.shape
    keys = subject.bench.engine.encode(subject.request.question.ids).derotated(shape.rope).k
    errors = []
    for a, b in ((0, 7), (7, -7), (19, 300), (FARTHEST, -FARTHEST), (FARTHEST - 300, 299)):
        at = torch.arange(a, a + keys.shape[2], device=keys.device)
        placed = shape.rope.apply(keys, at)
        errors.append(relative(shape.rope.move(placed, b), shape.rope.apply(keys, at + b)))
        errors.append(relative(shape.rope.remove(placed, at), keys))
    return worst(errors)


def state(subject: Subject) -> float:
    """Bytes by which the state that is reported differs from the tensors that are kept, and bytes that these share with
    live caches."""
    keeper = subject.main
    kept, live = _kept(keeper), set[int]()
    for seen in keeper.seen:
        live |= {_storage(t) for t in (seen.run.cache.keys, seen.run.cache.values)}
        live |= {_storage(t) for source in seen.hop.sources.values() for t in source.hidden.values()}
    shared = sum(t.nbytes for t in kept if _storage(t) in live)
    return float(abs(keeper.state_bytes().total - sum(t.nbytes for t in kept)) + shared)


def forgetting(subject: Subject) -> float:
    """Storages of a request that outlive it and are no part of what the method says it keeps."""
    passers = subject.resumed
    gc.collect()
    kept = {_storage(t) for passer in passers for t in _kept(passer)}
    alive = {ref.storage for passer in passers for ref in passer.storages if ref.alive}
    return float(len(alive - kept))


def determinism(subject: Subject) -> float:
    """Hops that differ between two runs of the same requests, of which one went through a snapshot in between."""
    first = [Print.of(seen.hop, seen.run) for seen in subject.main.seen]
    second = [found for passer in subject.resumed for found in passer.prints]
    return float(sum(not a.same(b) for a, b in zip(first, second, strict=True)))


def closed_loop(subject: Subject) -> float:
    """Outputs that a reader sees other than they were generated, and forced ids that are not fed as given."""
    wrong, written = 0, dict[tuple[str, str], tuple[int, ...]]()
    for seen in subject.main.seen:
        for place in seen.hop.prompt.shared():
            name = (seen.hop.trajectory, place.span.producer if place.span is not None else "")
            if name in written:
                wrong += place.segment.ids != written[name][:-1]
        written[seen.hop.trajectory, seen.hop.agent] = seen.run.output_ids
    last = subject.main.seen[-1]
    forced = last.run.output_ids[::-1]
    plan = last.again() if isinstance(last.plan, Reuse) else Dense()
    again = subject.bench.engine.run(last.hop.prompt, plan, Decoding(len(forced), forced=forced))
    return float(wrong + (again.output_ids != forced) + (not torch.equal(again.logits, last.run.logits)))


def _kept(witness: Witness) -> list[Tensor]:
    """All tensors of a method's snapshot."""
    snapshot = witness.snapshot()
    return [] if snapshot is None else [t for blob in snapshot.blobs.values() for t in blob.values()]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


INVARIANTS = (
    Invariant("I8", "Rotations add up, and one there and back changes nothing.", ANGLES, rotation, ("T1",)),
    Invariant("I11", "State bytes are those of the tensors kept, which alias no live cache.", EXACT, state),
    Invariant("I12", "The same requests give the same bits, through a snapshot too.", EXACT, determinism, ("T15",)),
    Invariant("I14", "A reader sees the ids that were generated; forced ids are fed as given.", EXACT, closed_loop),
    Invariant("T12", "Nothing of a request outlives it beside the reported state.", EXACT, forgetting),
)
