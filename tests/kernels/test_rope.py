from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.operand import Paged
from kernels.rope import place, rotate
from tests.kernels.operands import TOLERANCE, frequencies, relative, span, turned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("dim", "rotated"), [(64, 64), (80, 32), (128, 128)])
@pytest.mark.parametrize("rows", [0, 1, 63])
def test_equals_complex_multiplication(rows: int, dim: int, rotated: int, dtype: torch.dtype) -> None:
    x = span(2, 3, rows, dim, dtype)
    at = torch.randint(-50, 5000, (rows,), generator=torch.Generator().manual_seed(3))
    out = rotate(x, at, frequencies(rotated), 1.1)
    assert out.dtype == dtype
    assert relative(out, turned(x, at, frequencies(rotated), 1.1)) < TOLERANCE[dtype]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(-3000, 3000), st.integers(-3000, 3000), st.sampled_from([2, 8, 12]))
def test_rotations_add_up(rows: int, first: int, second: int, rotated: int) -> None:
    x = span(1, 2, rows, 12)
    inv = frequencies(rotated)
    there = rotate(x, torch.full((rows,), first), inv)
    both = rotate(there, torch.full((rows,), second), inv)
    assert relative(both, rotate(x, torch.full((rows,), first + second), inv)) < 2e-3  # fp32 angles of thousands
    assert relative(rotate(there, torch.full((rows,), -first), inv), x) < 1e-5
    torch.testing.assert_close(there.norm(dim=-1), x.norm(dim=-1))


def test_places_rows_in_a_strided_and_in_a_paged_cache() -> None:
    x = span(2, 3, 21, 16)
    at = torch.arange(21) + 4
    expected = turned(x, at, frequencies(16))
    cache = torch.full((2, 3, 40, 16), torch.nan)
    place(cache[:, :, 7:28], x, at, frequencies(16))
    assert relative(cache[:, :, 7:28], expected) < 1e-5
    assert cache[:, :, :7].isnan().all()
    assert cache[:, :, 28:].isnan().all()
    paged = Paged(torch.full((2, 9, 4, 3, 16), torch.nan, dtype=torch.float16), torch.tensor([8, 0, 3, 5, 1, 2, 7]), 6)
    place(paged, x, at, frequencies(16))
    linear = paged.pages[:, paged.table].flatten(1, 2).permute(0, 2, 1, 3)
    assert relative(linear[:, :, 6:27], expected) < TOLERANCE[torch.float16]
    assert linear[:, :, :6].isnan().all()
    assert paged.pages[:, [4, 6]].isnan().all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.zeros(4, 3, 16, dtype=torch.int32)}),
        ("x", {"x": torch.zeros(4, 16, 3).transpose(1, 2)}),
        ("positions", {"positions": torch.arange(4)}),
        ("positions", {"positions": torch.zeros(3)}),
        ("positions", {"positions": torch.zeros(3, dtype=torch.int64, device="meta")}),
        ("inv_freq", {"inv_freq": torch.ones(9)}),
        ("inv_freq", {"inv_freq": torch.ones(8, dtype=torch.float64)}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"x": torch.zeros(4, 3, 16), "positions": torch.arange(3), "inv_freq": torch.ones(8)}
    rotate(**good)
    with pytest.raises(ValueError, match=f"^{name}"):
        rotate(**{**good, **change})


@pytest.mark.parametrize(
    ("name", "paged"),
    [
        (r"destination.pages", Paged(torch.zeros(2, 9, 4, 3, 8), torch.arange(6))),
        (r"destination.table", Paged(torch.zeros(2, 9, 4, 3, 16), torch.arange(5))),
        (r"destination.table", Paged(torch.zeros(2, 9, 4, 3, 16), torch.arange(6), 4)),
        (r"destination.table", Paged(torch.zeros(2, 9, 4, 3, 16), torch.arange(6).int())),
    ],
)
def test_names_the_part_of_a_paged_cache(name: str, paged: Paged) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        place(paged, span(2, 3, 21, 16), torch.arange(21), frequencies(16))
