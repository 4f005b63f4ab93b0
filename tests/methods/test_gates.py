"""Gates: what they measure, what they refuse, and what counts as used."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods.anchors import Anchor, Pair
from methods.gate import Always, Entropy, Never, Relative, activated
from methods.lowrank import Raw, Truncated

L, H, N, D = 2, 2, 12, 4


def draw(seed: int, rows: int = N) -> Tensor:
    return torch.randn(L, H, rows, D, generator=torch.Generator().manual_seed(seed))


def anchor(values: Tensor, name: str, rank: int = 0) -> Anchor:
    flat = values.transpose(1, 2).flatten(2)
    pair = Pair(name, Raw(flat), Truncated(rank, torch.float32).encode(values, 3) if rank else Raw(flat))
    return Anchor(name, values.shape[2], pair, {})


def test_entropy_as_the_papers_write_it() -> None:
    x, others = 0.1 * draw(0), [0.1 * draw(i) for i in (1, 2, 3)]
    verdict = Entropy(0.5).judge(x, [anchor(o, str(i)) for i, o in enumerate(others)])
    d = torch.stack([(x - o).square().sum().sqrt() for o in others]).double()
    p = torch.exp(-d) / torch.exp(-d).sum()
    bits = -(p * torch.log2(p)).sum()
    assert verdict.value == pytest.approx(float(bits) / math.log2(3), rel=1e-4)
    assert [share for _, share in verdict.mass] == pytest.approx(p.tolist(), rel=1e-4)
    assert Entropy(verdict.value + 1e-3).judge(x, [anchor(o, "") for o in others]).reliable
    assert not Entropy(verdict.value - 1e-3).judge(x, [anchor(o, "") for o in others]).reliable


def test_identical_anchors() -> None:
    """B8: two anchors equal to the span are reliable by distance, and refused by entropy alone."""
    x = draw(0)
    twins = [anchor(x, "a"), anchor(x, "b")]
    assert Relative(0.1).judge(x, twins).reliable
    assert Relative(0.1).judge(x, twins).value == pytest.approx(0.0, abs=1e-3)
    assert not Entropy(0.5).judge(x, twins).reliable
    assert Entropy(0.5).judge(x, twins).value == pytest.approx(1.0)
    assert Entropy(0.5, guard=True).judge(x, twins).reliable
    assert Entropy(0.5, guard=True).judge(x, twins[:1]).reliable


def test_the_guard_knows_a_span_behind_its_own_truncation() -> None:
    x = draw(0)
    rough = [anchor(x, "a", rank=2), anchor(x, "b", rank=2)]
    assert rough[0].base.v.residual > 0.1 * float(x.norm())
    assert Entropy(0.5, guard=True).judge(x, rough).reliable
    assert not Entropy(0.1, guard=True).judge(draw(1), rough).reliable


def test_entropy_accepts_contrast_and_relative_refuses_distance() -> None:
    """6.6: one far anchor among farther ones is accepted by entropy."""
    x = draw(0)
    far = [anchor(x + 3 * draw(1), "a"), anchor(x + 30 * draw(2), "b")]
    assert Entropy(0.3).judge(x, far).reliable
    assert not Relative(0.3).judge(x, far).reliable


def test_fewer_than_two_anchors() -> None:
    """T8."""
    x = draw(0)
    assert not Entropy(2.0).judge(x, []).reliable
    assert not Entropy(2.0).judge(x, [anchor(draw(1), "a")]).reliable
    assert not Relative(9.0).judge(x, []).reliable
    assert Relative(9.0).judge(x, [anchor(draw(1), "a")]).reliable


def test_relative_distance_does_not_depend_on_length() -> None:
    values = []
    for rows in (6, 60):
        x, other = draw(0, rows), draw(1, rows)
        values.append(Relative(1.0).judge(x, [anchor(x + 0.2 * other, "a")]).value)
    assert values[0] == pytest.approx(values[1], rel=0.2)


@pytest.mark.parametrize("gate", [Entropy, Relative])
def test_monotone_in_the_threshold(gate: type[Entropy] | type[Relative]) -> None:
    x = 0.1 * draw(0)
    pool = [anchor(0.1 * draw(i), str(i)) for i in range(1, 5)]
    verdicts = [gate(tau).judge(x, pool).reliable for tau in (0.05, 0.2, 0.5, 0.9, 1.0, 1.5, 2.0)]
    assert verdicts == sorted(verdicts)
    assert verdicts[-1]
    assert not verdicts[0]


def test_always_and_never() -> None:
    assert Always().judge(draw(0), []).reliable
    assert not Never().judge(draw(0), [anchor(draw(0), "a")]).reliable
    assert Never().closed
    assert not Always().closed


def shares(*values: float) -> list[tuple[str, float]]:
    return [(str(i), v) for i, v in enumerate(values)]


def test_which_anchors_count_as_used() -> None:
    """B6: the legacy rule counts all anchors when the best holds 0.9 alone, and drops the one that crosses 0.9."""
    one, spread = shares(0.97, 0.01, 0.01, 0.01), shares(0.5, 0.3, 0.15, 0.05)
    assert activated(one, 0.9, "mass") == ["0"]
    assert activated(spread, 0.9, "mass") == ["0", "1", "2"]
    assert activated(one, 0.9, "legacy_top_p") == ["0", "1", "2", "3"]
    assert activated(spread, 0.9, "legacy_top_p") == ["0", "1"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=10), st.floats(0.05, 1.0))
def test_the_used_set_is_the_smallest_that_holds_the_mass(raw: list[float], top_p: float) -> None:
    mass = shares(*(v / sum(raw) for v in raw))
    used = activated(mass, top_p, "mass")
    held = sorted((dict(mass)[name] for name in used), reverse=True)
    assert sum(held) >= top_p - 1e-9 or len(held) == len(mass)
    assert sum(held[:-1]) < top_p
    assert held == sorted((share for _, share in mass), reverse=True)[: len(held)]
