"""In which rotation deltas transfer between offsets (B1), and what rounding costs (B19)."""

from __future__ import annotations

import pytest
import torch
from tiny import Tiny, relative
from torch import Tensor

from methods.base import KV
from methods.frame import Arithmetic, Blend, Frame, FrameKind
from methods.lowrank import Full, Truncated

L, H, T, D = 3, 2, 40, 16


def still(seed: int, layers: int = L) -> Tensor:
    return torch.randn(layers, H, T, D, generator=torch.Generator().manual_seed(seed))


def placed(model: Tiny, keys: Tensor, start: int) -> Tensor:
    """De-rotated keys as a model caches them at ``start``, by the oracle's own rotation."""
    return torch.stack([model.turn(layer, torch.arange(start, start + T)) for layer in keys])


def corrected(
    kind: FrameKind, learned: int, used: int, arithmetic: Arithmetic = "fp32", dtype: torch.dtype = torch.float32
) -> float:
    """Learn the delta of one context at offset ``learned``, add it at ``used``; error against the truth there."""
    model = Tiny(layers=L, dim=D, scaling=1.2)
    frame = Frame(kind, arithmetic, model.shape().rope)
    base, exact = still(1), still(1)
    exact[1:] += 0.5 * still(2)[1:]
    values = still(3).to(dtype)
    dk, dv = frame.delta(
        KV(placed(model, exact, learned).to(dtype), values, learned), KV(placed(model, base, 5).to(dtype), values, 5)
    )
    stored_k, stored_v = (Full(torch.float32).encode(d[1:], 0) for d in (dk, dv))
    source = KV(placed(model, base, 11).to(dtype), values, 11)
    ones = torch.ones(1, T)
    keys, out = torch.empty_like(base, dtype=dtype), torch.empty_like(base, dtype=dtype)
    blend = Blend([stored_k.operand(T)], [stored_v.operand(T)], ones, ones)
    frame.write(keys, out, frame.keys(source), frame.values(source), blend, used)
    return relative(keys, placed(model, exact, used))


@pytest.mark.parametrize("kind", ["derotated", "local"])
@pytest.mark.parametrize("used", [0, 30, 31, 300])
def test_derotated_and_local_deltas_hold_at_any_offset(kind: FrameKind, used: int) -> None:
    """T4, I7."""
    assert corrected(kind, 30, used) < 1e-4


def test_absolute_deltas_hold_at_their_own_offset_only() -> None:
    """B1: exact where the anchor's request stood, worse with every step away from it."""
    assert corrected("absolute", 30, 30) < 1e-4
    errors = [corrected("absolute", 30, 30 + gap) for gap in (1, 4, 16)]
    assert errors == sorted(errors)
    assert errors[0] > 0.05


def test_rotation_inflates_the_rank_of_local_deltas() -> None:
    """D2: a delta of rank 4 before rotation is exact at rank 4 only where keys are de-rotated."""
    model = Tiny(layers=L, dim=D)
    flat = torch.randn(L, T, 4) @ torch.randn(L, 4, H * D)
    exact = flat.view(L, T, H, D).transpose(1, 2)
    errors = {}
    kinds: tuple[FrameKind, ...] = ("derotated", "local")
    for kind in kinds:
        frame = Frame(kind, "fp32", model.shape().rope)
        kv = KV(placed(model, exact, 17), exact, 17)
        delta, _ = frame.delta(kv, KV(torch.zeros_like(exact), exact, 3))
        left, right = Truncated(4, torch.float32).encode(delta, 1).operand(T)
        assert right is not None
        errors[kind] = relative(left @ right, delta.transpose(1, 2).flatten(2))
    assert errors["derotated"] < 1e-4
    assert errors["local"] > 0.1


def test_one_rounding_beats_one_per_step() -> None:
    """B19, in bfloat16."""
    once = corrected("derotated", 30, 77, "fp32", torch.bfloat16)
    often = corrected("derotated", 30, 77, "model_dtype", torch.bfloat16)
    assert once < 0.007
    assert 1.2 * once < often < 0.02


@pytest.mark.parametrize("kind", ["derotated", "local", "absolute"])
def test_rows_beyond_the_cover_and_layer_0_are_the_moved_reference(kind: FrameKind) -> None:
    """4.6."""
    model = Tiny(layers=L, dim=D)
    frame, base, values = Frame(kind, "fp32", model.shape().rope), still(1), still(3)
    source = KV(placed(model, base, 11), values, 11)
    cover = 15
    delta = Full(torch.float32).encode(still(4)[1:, :, :cover], 0).operand(cover)
    ones = torch.ones(1, cover)
    keys, out = torch.empty_like(base), torch.empty_like(values)
    frame.write(keys, out, frame.keys(source), frame.values(source), Blend([delta], [delta], ones, ones), 23)
    right = placed(model, base, 23)
    assert relative(keys[0], right[0]) < 1e-4
    assert relative(keys[:, :, cover:], right[:, :, cover:]) < 1e-4
    assert torch.equal(out[:, :, cover:], values[:, :, cover:])
    assert torch.equal(out[0], values[0])
    assert relative(out[1:, :, :cover], values[1:, :, :cover] + still(4)[1:, :, :cover]) < 1e-6
