"""Pools: bounds, eviction, updates, and which anchors fit a span."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.anchors import Anchor, AnchorPool, Pair
from methods.lowrank import Raw

Operation = tuple[str, str]


def anchor(name: str, length: int = 4, edge: str = "q:a>b", mark: float = 0.0) -> Anchor:
    pair = Pair(name, Raw(torch.full((2, length, 3), mark)), Raw(torch.full((2, length, 3), mark)))
    return Anchor(name, length, pair, {edge: pair})


def filled(capacity: int, window: int, rule: str = "strict", names: str = "") -> AnchorPool:
    pool = AnchorPool(capacity, window, rule)  # type: ignore[arg-type]
    for name in names:
        pool.admit(anchor(name))
    return pool


operations = st.lists(st.tuples(st.sampled_from(["admit", "touch"]), st.sampled_from("abcdefghijkl")), max_size=60)


@settings(max_examples=60, deadline=None)
@given(operations, st.integers(0, 5), st.integers(1, 6))
def test_a_pool_is_bounded_and_evicts_the_least_used_of_the_oldest(
    events: list[Operation], capacity: int, window: int
) -> None:
    """T9, I11, against a list that is kept by hand."""
    pool = filled(capacity, window)
    model: list[list[object]] = []  # [name, uses], oldest first
    for event, name in events:
        known = [entry for entry in model if entry[0] == name]
        if event == "touch":
            pool.touch([name])
            for entry in known:
                entry[1] = int(str(entry[1])) + 1
        else:
            pool.admit(anchor(name))
            if not known and capacity:
                if len(model) == capacity:
                    uses = [int(str(entry[1])) for entry in model[:window]]
                    del model[uses.index(min(uses))]
                model.append([name, 0])
        assert len(pool) <= capacity
        assert list(pool.uses.items()) == [(entry[0], entry[1]) for entry in model]
        assert list(pool.anchors) == list(pool.uses)


@settings(max_examples=60, deadline=None)
@given(operations, st.integers(0, 5), st.integers(1, 6))
def test_the_authors_pool_holds_one_more(events: list[Operation], capacity: int, window: int) -> None:
    pool = filled(capacity, window, "legacy")
    for event, name in events:
        if event == "touch":
            pool.touch([name])
        else:
            pool.admit(anchor(name))
        assert len(pool) <= capacity + 1
        assert list(pool.anchors) == list(pool.uses)


def test_capacity_and_eviction_on_update() -> None:
    """B7: the legacy rule reaches one more than its capacity, and updating an entry evicts another."""
    strict, legacy = filled(3, 5, "strict", "abcd"), filled(3, 5, "legacy", "abcd")
    assert list(strict.anchors) == ["b", "c", "d"]
    assert list(legacy.anchors) == ["a", "b", "c", "d"]
    strict.admit(anchor("d", edge="q:a>c"))
    legacy.admit(anchor("d", edge="q:a>c"))
    assert list(strict.anchors) == ["b", "c", "d"]
    assert list(legacy.anchors) == ["b", "c", "d"]
    assert set(legacy.anchors["d"].deltas) == {"q:a>b", "q:a>c"}


def test_an_update_keeps_age_uses_and_other_edges_and_takes_the_newest_base() -> None:
    pool = filled(3, 5, names="ab")
    pool.touch(["a", "a"])
    pool.admit(anchor("a", edge="q:b>c", mark=1.0))
    assert list(pool.anchors) == ["a", "b"]
    assert pool.uses == {"a": 2, "b": 0}
    assert set(pool.anchors["a"].deltas) == {"q:a>b", "q:b>c"}
    assert float(pool.anchors["a"].base.k.tensors()["x"].max()) == 1.0


def test_usable_anchors() -> None:
    """4.6: those that are long enough; else the longest, which correct the rows they have."""
    pool = AnchorPool(10, 5)
    for name, length in (("a", 4), ("b", 9), ("c", 9), ("d", 6)):
        pool.admit(anchor(name, length))
    pool.admit(anchor("e", 20, edge="q:b>c"))
    found = pool.usable("q:a>b", 6, partial=True)
    assert ([a.name for a in found.anchors], found.cover) == (["b", "c", "d"], 6)
    longest = pool.usable("q:a>b", 12, partial=True)
    assert ([a.name for a in longest.anchors], longest.cover) == (["b", "c"], 9)
    assert pool.usable("q:a>b", 12, partial=False).anchors == ()
    assert pool.usable("q:x>y", 1, partial=True).anchors == ()
    assert [a.name for a in pool.covering(7)] == ["b", "c", "e"]
