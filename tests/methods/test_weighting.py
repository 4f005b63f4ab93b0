"""Weights of anchors per token."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import rope
from torch import Tensor

from methods.anchors import Anchor, Pair
from methods.frame import Blend, Frame
from methods.lowrank import Full, Raw, Truncated
from methods.weights import (
    Nearest,
    SoftmaxL1,
    SoftmaxL2,
    Uniform,
    Weighting,
    channel_weights,
    effective,
    hot_anchors,
)

L, H, T, D = 3, 2, 7, 4
WEIGHTINGS = [SoftmaxL1(0.1), SoftmaxL2(0.1), Uniform(), Nearest()]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(keys: Tensor, values: Tensor, name: str, rank: int = 0) -> Anchor:
    codec = Truncated(rank, torch.float32) if rank else Full(torch.float32)
    pair = Pair(name, codec.encode(keys, 1), codec.encode(values, 2))
    return Anchor(name, keys.shape[2], pair, {"e": pair})


def anchors(count: int, rank: int = 0, rows: int = T) -> list[Anchor]:
    return [stored(draw(L, H, rows, D, seed=i), draw(L, H, rows, D, seed=50 + i), f"a{i}", rank) for i in range(count)]


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("rank", [0, 2])
def test_weights_sum_to_one_and_follow_their_anchors(weighting: Weighting, rank: int) -> None:
    """T5, I12."""
    keys, values, pool = draw(L, H, T, D, seed=90), draw(L, H, T, D, seed=91), anchors(4, rank, rows=T + 2)
    for cover in (T, 3):
        both = weighting.match(keys, values, pool, cover)
        order = [2, 0, 3, 1]
        turned = weighting.match(keys, values, [pool[i] for i in order], cover)
        for weights, after in zip(both, turned, strict=True):
            assert weights.shape == (4, cover)
            assert weights.dtype == torch.float32
            assert (weights >= 0).all()
            assert torch.allclose(weights.sum(0), torch.ones(cover), atol=1e-5)
            assert torch.allclose(weights[order], after, atol=1e-5)


@pytest.mark.parametrize("form", ["l1", "l2"])
def test_softmax_weights_as_the_paper_writes_them(form: str) -> None:
    keys, values, pool = draw(L, H, T, D, seed=90), draw(L, H, T, D, seed=91), anchors(3)
    got = (SoftmaxL1(0.7) if form == "l1" else SoftmaxL2(0.7)).match(keys, values, pool, T)
    for mine, x, first in zip(got, (keys, values), (0, 50), strict=True):
        others = torch.stack([draw(L, H, T, D, seed=first + i) for i in range(3)])
        gap = (others - x).abs() if form == "l1" else (others - x).square()
        distance = gap.permute(0, 3, 1, 2, 4).flatten(2).mean(2)
        distance = distance if form == "l1" else distance.sqrt()
        raw = torch.exp(-distance / 0.7)
        assert torch.allclose(mine, raw / raw.sum(0), atol=1e-5)


@pytest.mark.parametrize("weighting", [SoftmaxL1(), SoftmaxL2(), Uniform()], ids=lambda w: type(w).__name__)
def test_equal_anchors_share_equally(weighting: Weighting) -> None:
    one = anchors(1)[0]
    k, _ = weighting.match(draw(L, H, T, D, seed=9), draw(L, H, T, D, seed=8), [one, one, one], T)
    assert torch.allclose(k, torch.full((3, T), 1 / 3), atol=1e-6)
    assert effective(k) == pytest.approx(3.0, rel=1e-5)


def test_nearest_takes_one_and_a_cold_softmax_agrees() -> None:
    pool = anchors(4)
    keys = draw(L, H, T, D, seed=2) + 0.01 * draw(L, H, T, D, seed=77)
    k, _ = Nearest().match(keys, keys, pool, T)
    assert torch.equal(k, torch.eye(4)[2][:, None].expand(4, T))
    assert effective(k) == pytest.approx(1.0)
    cold, _ = SoftmaxL1(1e-3).match(keys, keys, pool, T)
    assert torch.allclose(cold, k, atol=1e-4)


def test_hot_anchors_mix_the_nearest_of_each_layer_with_renormalised_weights() -> None:
    """Against sums written out: per layer the two nearest anchors, their weights scaled back to 1."""
    pool = anchors(4)
    keys, values = draw(L, H, T, D, seed=90), draw(L, H, T, D, seed=91)
    assert hot_anchors(keys, pool, T, 4) is None
    hot = hot_anchors(keys, pool, T, 2)
    assert hot is not None
    others = torch.stack([draw(L, H, T, D, seed=i) for i in range(4)])
    gaps = (others - keys).abs().mean((2, 3, 4))  # [A, L]
    for layer in range(L):
        assert set(hot[layer].nonzero().flatten().tolist()) == set(gaps[:, layer].argsort()[:2].tolist())
    k, v = SoftmaxL1().match(keys, values, pool, T)
    deltas = [Raw(draw(L - 1, T, H * D, seed=30 + i)) for i in range(4)]
    blend = Blend([d.operand(T) for d in deltas], [d.operand(T) for d in deltas], k, v, hot)
    out_k, out_v = torch.empty_like(keys), torch.empty_like(values)
    Frame("derotated", "fp32", rope(D)).write(out_k, out_v, keys, values, blend, 0)
    for layer in range(1, L):
        kept = hot[layer].nonzero().flatten().tolist()
        total = sum(v[i] for i in kept)
        right = values[layer] + sum(
            ((v[i] / total)[:, None] * deltas[i].x[layer - 1]).view(T, H, D).transpose(0, 1) for i in kept
        )
        assert torch.allclose(out_v[layer], right, atol=1e-5)
    assert torch.equal(out_v[0], values[0])


def test_channel_weights_are_per_channel_whatever_the_length() -> None:
    """B11: with as many rows as channels a weight per channel must not be read as one per token."""
    rows = H * D
    pool = anchors(3, rows=rows)
    keys = draw(L, H, rows, D, seed=90)
    got = channel_weights(keys, [a.base.k.operand(rows) for a in pool], rows, 1.0)
    assert got.shape == (3, L, H * D)
    gap = torch.stack([draw(L, H, rows, D, seed=i) for i in range(3)]) - keys
    assert torch.allclose(got, torch.softmax(-gap.square().sum(3).sqrt().flatten(2), 0), atol=1e-5)
    matrix = Raw(draw(L, rows, H * D, seed=3))
    scaled = matrix.scaled(got[0]).operand(rows)[0]
    assert torch.allclose(scaled, matrix.x * got[0].unsqueeze(1), atol=1e-6)


def test_effective_number_of_anchors() -> None:
    assert effective(torch.tensor([[0.5], [0.5], [0.0]])) == pytest.approx(2.0)
    assert effective(torch.tensor([[0.9], [0.1]])) == pytest.approx(
        math.exp(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)))
    )
