"""What a method keeps between requests: its size, its isolation, and that it can go on from a snapshot."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import AGENTS, Tiny, TinyEngine, questions, trajectory
from torch import Tensor

from methods.base import Snapshot
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from methods.lowrank import pair_bytes
from methods.ridge import Ridge

KEEPING: dict[str, Callable[[], Any]] = {
    "dense": lambda: DenseMethod(prefix_cache=True),
    "full_reuse": FullReuse,
    "ridge": lambda: Ridge(tau=1e9, warmup=2, min_requests=4, refresh=0.3, recompute=0.2),
    "ridge-waiting": lambda: Ridge(warmup=7),
    "entropy": lambda: KVCMAS(rank=2, pool=2),
    "corrected": lambda: KVCMAS(rank=2, pool=2, gate="always"),
    "delta-glue": lambda: KVCMAS(rank=2, pool=3, gate="always", glue="delta", reference="context_free"),
    "joint": lambda: KVCMAS(rank=2, pool=3, gate="always", joint=True, glue="delta", reference="context_free"),
    "authors": lambda: KVCMAS(
        rank=2, pool=2, gate="entropy", anchor_base="last_writer", capacity="legacy", glue="rotate", min_anchors=0
    ),
}


def bound(method: Any, model: Tiny) -> Any:
    method.bind(model.shape(), 3)
    return method


def through_a_store(snapshot: Snapshot) -> Snapshot:
    """Only what JSON and copied tensors carry."""
    blobs = {name: {part: t.clone() for part, t in blob.items()} for name, blob in snapshot.blobs.items()}
    return Snapshot(json.loads(json.dumps(snapshot.meta)), blobs)


def facts(method: Any, engine: TinyEngine, names: range) -> list[Any]:
    out = []
    for i in names:
        for call in trajectory(method, engine, questions(12)[i], f"t{i}"):
            out.append((type(call.plan), call.ran.output_ids, call.ran.logits, dict(call.notes), call.ran.k))
        out.append(method.state_bytes())
    return out


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("name", KEEPING)
def test_a_restored_method_goes_on_bit_for_bit(name: str) -> None:
    model = Tiny()
    whole, cut = bound(KEEPING[name](), model), bound(KEEPING[name](), model)
    engine = TinyEngine(model)
    facts(whole, engine, range(5))
    facts(cut, engine, range(5))
    resumed = bound(KEEPING[name](), model)
    resumed.restore(through_a_store(cut.snapshot()))
    assert same(facts(whole, engine, range(5, 9)), facts(resumed, engine, range(5, 9)))
    assert through_a_store(whole.snapshot()).meta == through_a_store(resumed.snapshot()).meta


@pytest.mark.parametrize("name", KEEPING)
def test_restoring_forgets_a_request_that_broke_off(name: str) -> None:
    model = Tiny()
    whole, broken = bound(KEEPING[name](), model), bound(KEEPING[name](), model)
    engine = TinyEngine(model)
    facts(whole, engine, range(3))
    facts(broken, engine, range(3))
    before = through_a_store(broken.snapshot())
    trajectory(broken, engine, questions(12)[9], "t3", AGENTS[:2], finish=False)
    broken.restore(before)
    assert same(facts(whole, engine, range(3, 6)), facts(broken, engine, range(3, 6)))


@pytest.mark.parametrize("name", KEEPING)
def test_a_blob_never_changes_its_contents(name: str) -> None:
    """Also when the same request comes again."""
    model = Tiny()
    method, engine = bound(KEEPING[name](), model), TinyEngine(model)
    seen: dict[str, dict[str, Tensor]] = {}
    for i in (0, 1, 2, 0, 3, 1):
        facts(method, engine, range(i, i + 1))
        for blob, tensors in method.snapshot().blobs.items():
            if blob in seen:
                assert same(list(tensors.items()), list(seen[blob].items()))
            seen[blob] = {part: t.clone() for part, t in tensors.items()}


@pytest.mark.parametrize("name", KEEPING)
def test_bytes_are_those_of_the_stored_tensors(name: str) -> None:
    """I11: and no stored tensor is a view of something larger."""
    model = Tiny()
    method, engine = bound(KEEPING[name](), model), TinyEngine(model)
    facts(method, engine, range(6))
    tensors = [t for blob in method.snapshot().blobs.values() for t in blob.values()]
    assert sum(t.nbytes for t in tensors) == method.state_bytes().total
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)


@pytest.mark.parametrize("rank", [2, 5, 32])
def test_pool_bytes_equal_the_formula(rank: int) -> None:
    """T12: 2 L r (n + C) e per reference, 2 (L - 1) r (n + C) e per delta, raw where that is not smaller."""
    model = Tiny()
    engine = TinyEngine(model, new_tokens=7)
    method = bound(KVCMAS(rank=rank, gate="never", role_cache=False, pool=3, question_admission="first_n"), model)
    for i, question in enumerate(questions(3, length=40)):
        trajectory(method, engine, question, f"t{i}")
    width, layers = 16, 4
    # a request leaves the question as held by a and by b, and the outputs of a and b; c reads a's output too
    bases = 2 * pair_bytes(layers, 40, width, rank, rank, 2) + 2 * pair_bytes(layers, 6, width, rank, rank, 2)
    deltas = 2 * pair_bytes(layers - 1, 40, width, rank, rank, 2) + 3 * pair_bytes(layers - 1, 6, width, rank, rank, 2)
    assert method.state_bytes().base == 3 * bases
    assert method.state_bytes().correction == 3 * deltas


def test_ranks_are_per_kind() -> None:
    model = Tiny()
    engine = TinyEngine(model, new_tokens=2)
    ranks = {"rank_delta": 3, "rank_base_key": 2, "rank_base_value": 0}
    method = bound(KVCMAS(gate="never", role_cache=False, **ranks), model)  # type: ignore[arg-type]
    trajectory(method, engine, questions(1, length=60)[0], "t", AGENTS[:2])
    expected = pair_bytes(4, 60, 16, 2, 0, 2) + pair_bytes(4, 1, 16, 2, 0, 2)
    assert method.state_bytes().base == expected
    assert method.state_bytes().correction == pair_bytes(3, 60, 16, 3, 3, 2) + pair_bytes(3, 1, 16, 3, 3, 2)


def test_nothing_of_a_request_outlives_it() -> None:
    """T12: neither its caches, nor its references, nor an encode, nor a memo of weights."""
    model = Tiny()
    engine = TinyEngine(model)
    method = bound(
        KVCMAS(gate="always", weight_memo="request", anchor_base="last_writer", reference="context_free"), model
    )
    encoded: list[weakref.ref[Tensor]] = []
    encode = engine.encode

    def watched(ids: Any) -> Any:
        kv = encode(ids)
        encoded.append(weakref.ref(kv.k))
        return kv

    engine.encode = watched  # type: ignore[method-assign]
    trajectory(method, engine, questions(2)[0], "t0")
    calls = trajectory(method, engine, questions(2)[1], "t1")
    held = [weakref.ref(source.kv.k) for call in calls for source in call.hop.sources.values()]
    held += [weakref.ref(rows.keys) for rows in calls[2].plan.rows.values() if hasattr(rows, "keys")]  # type: ignore[union-attr]
    del calls
    gc.collect()
    assert held
    assert encoded
    assert all(ref() is None for ref in [*held, *encoded])


def test_a_request_learns_only_when_it_ends() -> None:
    model = Tiny()
    method, engine = bound(KVCMAS(role_cache=False), model), TinyEngine(model)
    trajectory(method, engine, questions(1)[0], "open", finish=False)
    assert method.state_bytes().total == 0
    method.end("open")
    assert method.state_bytes().total > 0
    method.end("never seen")


def test_the_order_of_other_requests_does_not_change_factors() -> None:
    """T15: an anchor's factors are a function of the run's seed and the anchor's name."""
    model = Tiny()
    engine = TinyEngine(model)

    def factors(order: list[int], seed: int = 3) -> list[Tensor]:
        method = KVCMAS(rank=2, gate="never", question_admission="first_n")
        method.bind(model.shape(), seed)
        for i in order:
            trajectory(method, engine, questions(3, length=40)[i], f"t{i}")
        found = [a for pool in method.sharing.pools.values() for a in pool if a.name.startswith("t1/question")]
        return [t for a in found for pair in a.deltas.values() for t in pair.k.tensors().values()]

    one, two, other = factors([0, 1, 2]), factors([2, 1]), factors([1], seed=4)
    assert same(one, two)
    assert not same(one, other)


def test_the_same_run_twice_decides_the_same() -> None:
    """I12."""
    model = Tiny()
    engine = TinyEngine(model)
    one, two = (facts(bound(KEEPING["entropy"](), model), engine, range(8)) for _ in range(2))
    assert same(one, two)


def test_unbound_methods_say_so() -> None:
    with pytest.raises(ValueError, match="bind"):
        KVCMAS().state_bytes()
