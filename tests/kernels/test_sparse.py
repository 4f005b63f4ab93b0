from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.sparse import apply, sparsify
from tests.kernels.operands import TOLERANCE, frequencies, relative, span, turned


def unpacked(bitmap: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bit by bit in Python."""
    size = shape[1] * shape[2] * shape[3]
    out = torch.zeros(shape[0], size, dtype=torch.float64)
    for layer in range(shape[0]):
        taken = iter(values[layer].double().tolist())
        for entry in range(size):
            if int(bitmap[layer, entry // 8]) >> (entry % 8) & 1:
                out[layer, entry] = next(taken)
        assert next(taken, None) is None
    return out.view(shape)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 9), st.integers(1, 9), st.floats(0, 1))
def test_keeps_the_largest_entries_of_every_layer(layers: int, heads: int, rows: int, dim: int, density: float) -> None:
    x = span(layers, heads, rows, dim).round(decimals=1)  # with ties
    bitmap, values = sparsify(x, density)
    kept = round(density * heads * rows * dim)
    assert values.shape == (layers, kept)
    assert bitmap.shape == (layers, -(-heads * rows * dim // 8))
    dense = unpacked(bitmap, values, (layers, heads, rows, dim))
    assert ((dense == 0) | (dense == x.double())).all()
    best = x.double().abs().flatten(1).sort(1, descending=True).values[:, :kept].sum(1)
    torch.testing.assert_close(dense.abs().flatten(1).sum(1), best)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "dim", "first"), [(0, 64, 1), (1, 64, 0), (13, 80, 1), (9, 12, 2)])
def test_adds_and_rotates(rows: int, dim: int, first: int, dtype: torch.dtype) -> None:
    base, residual = span(3, 2, rows, dim, dtype), span(3 - first, 2, rows, dim, dtype, 1)
    bitmap, values = sparsify(residual, 0.3)
    expected = base.double()
    expected[first:] += unpacked(bitmap, values, tuple(residual.shape))
    out = torch.full((3, 2, rows + 5, dim), torch.nan, dtype=dtype)[:, :, 1 : 1 + rows]
    apply(out, base, bitmap, values, first_layer=first)
    assert relative(out, expected) < TOLERANCE[dtype]
    apply(out, base, bitmap, values, start=9, inv_freq=frequencies(dim), scaling=1.1, first_layer=first)
    assert relative(out, turned(expected, torch.arange(rows) + 9, frequencies(dim), 1.1)) < TOLERANCE[dtype]


def test_density_one_is_exact_and_zero_is_the_base() -> None:
    base, goal = span(2, 2, 10, 8), span(2, 2, 10, 8, seed=3)
    out = torch.empty_like(base)
    apply(out, base, *sparsify(goal - base, 1.0), first_layer=0)
    torch.testing.assert_close(out, goal)
    apply(out, base, *sparsify(goal - base, 0.0), first_layer=0)
    assert torch.equal(out, base)


def test_error_falls_with_density() -> None:
    residual = span(1, 2, 40, 8)
    errors = []
    for density in (0.0, 0.1, 0.25, 0.5, 1.0):
        out = torch.empty_like(residual)
        apply(out, torch.zeros_like(residual), *sparsify(residual, density), first_layer=0)
        errors.append(float((out - residual).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("destination", {"destination": torch.zeros(3, 2, 8, 5).mT}),
        ("base", {"base": torch.zeros(3, 2, 5, 9)}),
        ("bitmap", {"bitmap": torch.zeros(2, 9, dtype=torch.uint8)}),
        ("bitmap", {"bitmap": torch.zeros(2, 10, dtype=torch.int32)}),
        ("values", {"values": torch.zeros(3, 4)}),
        ("values", {"values": torch.zeros(2, 4, dtype=torch.float64)}),
        ("first_layer", {"first_layer": 4}),
        ("inv_freq", {"start": 3}),
        ("inv_freq", {"start": 3, "inv_freq": torch.zeros(5)}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, Any]) -> None:
    bitmap, values = sparsify(span(2, 2, 5, 8), 0.05)
    good: dict[str, Any] = {
        "destination": span(3, 2, 5, 8),
        "base": span(3, 2, 5, 8),
        "bitmap": bitmap,
        "values": values,
    }
    apply(**good)
    with pytest.raises(ValueError, match=f"^{name}"):
        apply(**{**good, **change})
    with pytest.raises(ValueError, match=r"^density"):
        sparsify(span(2, 2, 5, 8), 1.5)
