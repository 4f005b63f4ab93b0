from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.factor import factorise, factorise_joint
from tests.kernels.operands import generator


def decaying(batch: int, rows: int, width: int, spectrum: str, seed: int = 0) -> Tensor:
    size = min(rows, width)
    at = torch.arange(1, size + 1.0)
    values = {"1/i": 1 / at, "1/sqrt": at**-0.5, "exp": torch.exp(-at / 16) + 1e-3}[spectrum]
    left = torch.linalg.qr(torch.randn(batch, rows, size, generator=generator(seed))).Q
    right = torch.linalg.qr(torch.randn(batch, width, size, generator=generator(seed + 1))).Q
    out: Tensor = (left * values) @ right.mT
    return out


def error(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(x.double() - left.double() @ right.double(), dim=(1, 2))
    return out


def optimum(x: Tensor, rank: int) -> Tensor:
    values: Tensor = torch.linalg.svdvals(x.double())
    return values[:, rank:].square().sum(1).sqrt()


@pytest.mark.parametrize("spectrum", ["1/i", "1/sqrt", "exp"])
@pytest.mark.parametrize(("rows", "width"), [(600, 192), (400, 520), (90, 192)])
def test_error_is_within_two_percent_of_the_optimum(rows: int, width: int, spectrum: str) -> None:
    x = decaying(3, rows, width, spectrum)
    factors = factorise(x, 32, seed=3)
    assert (error(x, factors.left, factors.right) <= 1.02 * optimum(x, 32)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_energy_is_the_error(dtype: torch.dtype) -> None:
    x = decaying(2, 300, 64, "1/i").to(dtype)
    factors = factorise(x, 16, seed=0)
    torch.testing.assert_close(factors.total, x.float().square().sum((1, 2)))
    torch.testing.assert_close(
        (factors.total - factors.energy.sum(1)).double(),
        error(x, factors.left, factors.right).square(),
        rtol=1e-3,
        atol=0,
    )
    assert (factors.energy.diff(dim=1) <= 0).all()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 40),
    inner=st.integers(0, 40),
    rank=st.integers(1, 40),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    plain=st.booleans(),
)
@example(rows=31, width=31, inner=31, rank=31, scale=1e-4, plain=False)  # its smallest direction is nearly lost
def test_any_shape_and_true_rank(rows: int, width: int, inner: int, rank: int, scale: float, plain: bool) -> None:
    """Zero, rank-deficient, short, square and wide matrices: orthonormal left factors, exact from the true rank on."""
    draw = generator(rows * 41 + width)
    x = torch.randn(2, rows, inner, generator=draw) @ torch.randn(2, inner, width, generator=draw) * scale
    x[1] = 0
    factors = factorise(x, rank, seed=1, ordered=not plain, oversampling=0 if plain else 8)
    kept = min(rank, rows, width)
    assert factors.left.shape == (2, rows, kept)
    assert factors.right.shape == (2, kept, width)
    torch.testing.assert_close(factors.left.mT @ factors.left, torch.eye(kept).expand(2, -1, -1), rtol=0, atol=2e-5)
    assert (factors.right[1] == 0).all()
    size = torch.linalg.vector_norm(x[0].double())
    if rank >= min(rows, width, inner):
        assert error(x, factors.left, factors.right)[0] <= 2e-5 * size
    else:
        assert error(x, factors.left, factors.right)[0] <= size * (1 + 1e-5)


def test_cutting_gives_the_factors_of_a_lower_rank() -> None:
    x = decaying(3, 300, 96, "1/i")
    large = factorise(x, 32, seed=0)
    for rank in (1, 8, 16):
        cut = error(x, large.left[..., :rank], large.right[:, :rank])
        assert (cut <= 1.02 * optimum(x, rank)).all()
        assert (cut <= 1.01 * error(x, *factorise(x, rank, seed=0)[:2])).all()


def test_paper_form_is_a_range_finder_without_order() -> None:
    x = decaying(2, 500, 192, "1/i")
    plain = factorise(x, 32, seed=0, oversampling=0, ordered=False)
    basis = torch.randn(192, 32, generator=generator(0))
    image = x.double() @ basis.double()
    for _ in range(2):
        image = x.double() @ (x.double().mT @ torch.linalg.qr(image).Q)
    basis = torch.linalg.qr(image).Q
    torch.testing.assert_close(plain.left.double() @ plain.left.double().mT, basis @ basis.mT, rtol=0, atol=1e-4)


def test_repeats_bit_for_bit_whatever_ran_before_and_beside() -> None:
    x = decaying(4, 500, 192, "1/i")
    first = factorise(x, 16, seed=7)
    torch.manual_seed(123)
    torch.randn(3)
    state = torch.get_rng_state()
    again = factorise(x, 16, seed=7)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was touched"
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    alone = factorise(x[2:3], 16, seed=7)
    torch.testing.assert_close(alone.left @ alone.right, (first.left @ first.right)[2:3], rtol=0, atol=1e-5)
    assert not torch.equal(factorise(x, 16, seed=8).left, first.left)


def test_same_bits_under_one_and_two_threads() -> None:
    x = decaying(3, 2048, 192, "1/i")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = factorise(x, 16, seed=7)
        torch.set_num_threads(2)
        two = factorise(x, 16, seed=7)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


def test_joint_form_shares_the_left_space_of_keys_and_values() -> None:
    draw = generator(4)
    hidden = torch.randn(2, 200, 10, generator=draw)
    k = hidden @ torch.randn(2, 10, 48, generator=draw)
    v = hidden @ torch.randn(2, 10, 48, generator=draw) * 0.1
    factors, right_k, right_v = factorise_joint(k, v, 10, seed=0, balance=10.0)
    assert (error(k, factors.left, right_k) < 1e-4 * torch.linalg.vector_norm(k, dim=(1, 2))).all()
    assert (error(v, factors.left, right_v) < 1e-4 * torch.linalg.vector_norm(v, dim=(1, 2))).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.zeros(4, 5)}),
        ("x", {"x": torch.zeros(4, 5, 6, dtype=torch.float64)}),
        ("rank", {"rank": 0}),
        ("oversampling", {"oversampling": -1}),
        ("oversampling", {"ordered": False}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        factorise(**{"x": torch.zeros(4, 5, 6), "rank": 2, "seed": 0, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^v must"):
        factorise_joint(torch.zeros(1, 5, 6), torch.zeros(1, 5, 7), 2, seed=0)
    with pytest.raises(ValueError, match=r"^balance"):
        factorise_joint(torch.zeros(1, 5, 6), torch.zeros(1, 5, 6), 2, seed=0, balance=0.0)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6, 1e-9, 1e-15])
def test_small_deltas_of_low_rank_do_not_underflow(scale: float) -> None:
    """Squares of entries below 1e-19 are no normal fp32 numbers; LAPACK's eigensolver gave up or said nan on some."""
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        x = scale * torch.randn(3, 20, 2, generator=draw) @ torch.randn(3, 2, 32, generator=draw)
        x[1, 2:] *= 0 if seed % 2 else 1e-6
        found = factorise(x, 4, seed=0)
        assert (found.left @ found.right - x).norm() < 1e-4 * x.norm(), seed
