"""How matrices are stored: error, size, determinism."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import relative
from torch import Tensor

from methods.lowrank import Full, LowRank, Matrix, Raw, Truncated, codec, matrix, pair_bytes, stored_elements

LAYERS, H, D = 3, 2, 24


def rows_of_rank(rank: int, rows: int, decay: float = 1.0, seed: int = 0) -> Tensor:
    """``[L, H, n, D]`` whose flattened layers have exactly this rank, singular values falling by ``decay``."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(LAYERS, rows, rank, generator=draw)).Q
    right = torch.linalg.qr(torch.randn(LAYERS, H * D, rank, generator=draw)).Q
    flat = left * decay ** torch.arange(rank) @ right.mT
    return flat.view(LAYERS, rows, H, D).transpose(1, 2)


def expanded(stored: Matrix) -> Tensor:
    left, right = stored.operand(len(stored))
    flat = left if right is None else left @ right
    return flat.float().view(LAYERS, -1, H, D).transpose(1, 2)


def test_rank_of_the_matrix_is_exact_and_error_falls_with_rank() -> None:
    """T6, I13: within a small factor of the optimal truncation."""
    x = rows_of_rank(20, 90, decay=0.8)
    errors = [relative(expanded(Truncated(r, torch.float32).encode(x, 7)), x) for r in (1, 2, 4, 8, 16, 20)]
    best = [float((0.8 ** torch.arange(20))[r:].norm() / (0.8 ** torch.arange(20)).norm()) for r in (1, 2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5
    assert all(e <= 1.05 * b for e, b in zip(errors, best, strict=False))


def test_residual_is_what_was_lost() -> None:
    x = rows_of_rank(20, 90, decay=0.9)
    stored = Truncated(6, torch.float32).encode(x, 7)
    assert stored.residual == pytest.approx(float((expanded(stored) - x).norm()), rel=1e-3)
    assert Full(torch.float32).encode(x, 0).residual == 0.0


def test_balanced_factors_survive_float16() -> None:
    """B18: a right factor that carries the whole scale leaves the range of float16, balanced factors do not."""
    x = rows_of_rank(4, 200) * 3e5
    plain = Truncated(4, torch.float16, balanced=False).encode(x, 1)
    balanced = Truncated(4, torch.float16).encode(x, 1)
    assert not torch.isfinite(expanded(plain)).all()
    assert relative(expanded(balanced), x) < 5e-3


def test_zero_and_empty_and_tiny_matrices() -> None:
    """T6: the zero matrix, n < r, a single row."""
    zero = Truncated(2, torch.bfloat16).encode(torch.zeros(LAYERS, H, 50, D), 0)
    assert isinstance(zero, LowRank)
    assert torch.equal(expanded(zero), torch.zeros(LAYERS, H, 50, D))
    for rows in (0, 1, 3):
        x = torch.randn(LAYERS, H, rows, D)
        short = Truncated(32, torch.float32).encode(x, 0)
        assert isinstance(short, Raw)
        assert torch.equal(expanded(short), x)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 130), st.integers(0, 40))
def test_bytes_equal_the_formula_and_never_exceed_raw(rows: int, rank: int) -> None:
    """D3, T12: r (n + C) elements a layer, raw below break-even; rank 0 is full."""
    chosen = codec(rank, torch.bfloat16, 2, 1, True)
    stored = chosen.encode(torch.randn(LAYERS, H, rows, D), 1)
    width = H * D
    r = min(rank, rows, width)
    right = 2 * LAYERS * (min(r * (rows + width), rows * width) if r else rows * width)
    assert stored.nbytes == right == sum(t.nbytes for t in stored.tensors().values())
    assert 2 * right == pair_bytes(LAYERS, rows, width, rank, rank, 2)
    assert stored_elements(rows, width, rank) <= rows * width
    assert isinstance(stored, Raw) == (not r or r * (rows + width) >= rows * width)


def test_break_even_of_the_paper() -> None:
    """4.4: at rank 32 factors pay off from 34 tokens on at C = 1024, from 35 at C = 512."""
    for width, first in ((1024, 34), (512, 35)):
        smaller = [n for n in range(1, 80) if stored_elements(n, width, 32) < n * width]
        assert smaller == list(range(first, 80))
    assert pair_bytes(32, 4096, 1024, 32, 32, 2) == 20 * 2**20
    assert pair_bytes(32, 4096, 1024, 0, 0, 2) == 512 * 2**20


def test_factors_depend_on_the_seed_alone() -> None:
    """T15: neither on the global generator, nor on threads, nor on what was encoded before."""
    x = torch.randn(LAYERS, H, 90, D)
    threads = torch.get_num_threads()
    found = []
    for count, noise in ((1, 0), (2, 5), (1, 9)):
        torch.set_num_threads(count)
        torch.manual_seed(noise)
        torch.randn(noise)
        Truncated(3, torch.float32).encode(torch.randn(LAYERS, H, 60, D), 1)
        found.append(Truncated(5, torch.float32).encode(x, 42))
    torch.set_num_threads(threads)
    one, two, again = (stored.tensors() for stored in found)
    assert all(torch.equal(one[part], again[part]) for part in one)
    assert all(torch.allclose(one[part], two[part], atol=1e-3) for part in one)  # sums may split differently
    assert not torch.equal(found[0].tensors()["left"], Truncated(5, torch.float32).encode(x, 43).tensors()["left"])


@pytest.mark.parametrize("rank", [0, 4])
def test_a_stored_matrix_owns_its_memory_and_comes_back_from_its_tensors(rank: int) -> None:
    """I11."""
    x = torch.randn(LAYERS, 60, H * D).view(LAYERS, 60, H, D).transpose(1, 2)
    stored = codec(rank, torch.float32, 0, 1, True).encode(x, 1)
    before = expanded(stored).clone()
    x.zero_()
    assert torch.equal(expanded(stored), before)
    again = matrix({name: t.clone() for name, t in stored.tensors().items()}, stored.residual)
    assert torch.equal(expanded(again), before)
    assert again.residual == stored.residual
    assert all(t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes for t in stored.tensors().values())
    rows = stored.operand(7)
    assert rows[0].shape[1] == 7
