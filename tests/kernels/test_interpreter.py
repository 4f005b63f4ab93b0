"""Every Triton kernel against its reference, run by Triton's interpreter on a CPU.

These tests need TRITON_INTERPRET=1 before Triton is imported, hence a process of their own, which
``test_interpreted.py`` starts. The kernels widen 16-bit operands of matrix products there, because the interpreter
multiplies the bit patterns of bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention, distance, gpu_check, lowrank, rope, sparse
from kernels.dispatch import using
from kernels.operand import Paged
from kernels.workload import MODELS, Point, operands
from tests.kernels.operands import TOLERANCE, frequencies, generator, pool, relative, softmaxed, span

pytestmark = pytest.mark.interpreter
HALF = [torch.float32, torch.float16]
ALL = [torch.float32, torch.float16, torch.bfloat16]
# T = 0, 1, 63, 257 with every head dimension; the interpreter is slow, so the longest span meets each type once.
SHAPES = [(rows, dim) for rows in (0, 1, 63) for dim in (64, 80, 128)]
LONG = [(257, 64), (257, 80), (257, 128)]
Make = Callable[[], Tensor]


def grid(dtypes: list[torch.dtype]) -> list[tuple[int, int, torch.dtype]]:
    every = [(*shape, dtype) for shape in SHAPES for dtype in dtypes]
    return every + [(*shape, dtypes[at % len(dtypes)]) for at, shape in enumerate(LONG)]


def check(make: Make, tolerance: float) -> None:
    with using("torch"):
        expected = make()
    with using("triton"):
        found = make()
    assert relative(found, expected) < tolerance


def poisoned(layers: int, heads: int, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """A window of a larger cache full of NaN; the kernel must fill the window and nothing else."""
    return torch.full((layers, heads, rows + 7, dim), torch.nan, dtype=dtype)


@pytest.mark.parametrize(("rows", "dim", "dtype"), grid(ALL))
def test_rope(rows: int, dim: int, dtype: torch.dtype) -> None:
    rotated = {64: 64, 80: 80, 128: 96}[dim]
    x, at = span(2, 2, rows, dim, dtype), torch.randint(-9, 4000, (rows,), generator=generator(1))

    def dense() -> Tensor:
        cache = poisoned(2, 2, rows, dim, dtype)
        rope.place(cache[:, :, 3 : 3 + rows], x, at, frequencies(rotated), 1.1)
        return cache

    def paged() -> Tensor:
        cache = Paged(
            torch.full((2, 40, 8, 2, dim), torch.nan, dtype=dtype), torch.randperm(40, generator=generator(2)), 5
        )
        rope.place(cache, x, at, frequencies(rotated))
        return cache.pages

    check(lambda: rope.rotate(x, at, frequencies(rotated), 1.1), TOLERANCE[dtype])
    check(lambda: rope.rotate(x[0, 0], at, frequencies(rotated)), TOLERANCE[dtype])
    check(dense, TOLERANCE[dtype])
    check(paged, TOLERANCE[dtype])


def correction(
    rows: int,
    dim: int,
    dtype: torch.dtype,
    anchors: list[tuple[int, int | None]],
    cover: int,
    heads: int = 2,
    **more: Any,
) -> Make:
    first = more.pop("first_layer", 1)
    paged = more.pop("paged", False)
    base_k, base_v = span(3, heads, rows, dim, dtype, 5), span(3, heads, rows, dim, dtype, 6)
    deltas_k, deltas_v = (pool(3 - first, anchors, heads * dim, dtype, seed) for seed in (7, 8))
    weights_k, weights_v = softmaxed(len(anchors), cover, 9), softmaxed(len(anchors), cover, 10)
    rotated = more.pop("rotated", dim)

    def make() -> Tensor:
        caches: list[Any]
        targets: list[Any]
        if paged:
            table = torch.randperm(40, generator=generator(2))
            caches = [Paged(torch.full((3, 40, 8, heads, dim), torch.nan, dtype=dtype), table, 5) for _ in range(2)]
            targets = caches
        else:
            caches = [poisoned(3, heads, rows, dim, dtype) for _ in range(2)]
            targets = [cache[:, :, 3 : 3 + rows] for cache in caches]
        keys, values = targets
        lowrank.correct(
            keys, values, base_k, base_v, deltas_k, deltas_v, weights_k, weights_v,
            start=11, inv_freq=frequencies(rotated), scaling=1.1, first_layer=first,
        )  # fmt: skip
        return torch.stack([cache.pages if paged else cache for cache in caches])

    return make


@pytest.mark.parametrize(("rows", "dim", "dtype"), grid(HALF))
def test_lowrank(rows: int, dim: int, dtype: torch.dtype) -> None:
    anchors: list[tuple[int, int | None]] = [(rows + 2, 5), (rows // 2, 33), (rows, None), (max(0, rows - 3), 16)]
    check(correction(rows, dim, dtype, anchors, max(0, rows - 2)), TOLERANCE[dtype])


@pytest.mark.parametrize("more", [{"paged": True}, {"rotated": 48}, {"first_layer": 0}, {"first_layer": 3}])
def test_lowrank_variants(more: dict[str, Any]) -> None:
    check(correction(37, 64, torch.float16, [(40, 32), (20, 64)], 30, **more), TOLERANCE[torch.float16])
    check(correction(37, 80, torch.float32, [(40, 3)], 37, **more), TOLERANCE[torch.float32])
    check(correction(37, 64, torch.float32, [], 0, **more), TOLERANCE[torch.float32])


@settings(deadline=None, max_examples=12)
@given(
    rows=st.integers(0, 40),
    half=st.integers(1, 12),
    heads=st.integers(1, 3),
    anchors=st.lists(st.tuples(st.integers(0, 45), st.one_of(st.none(), st.integers(0, 40))), max_size=3),
    data=st.data(),
)
def test_lowrank_any_shape(rows: int, half: int, heads: int, anchors: list[Any], data: st.DataObject) -> None:
    cover = data.draw(st.integers(0, rows))
    rotated = 2 * data.draw(st.integers(1, half))
    make = correction(rows, 2 * half, torch.float32, anchors, cover, heads, rotated=rotated)
    check(make, TOLERANCE[torch.float32])


@pytest.mark.parametrize(("rows", "dim", "dtype"), grid(HALF))
def test_distances(rows: int, dim: int, dtype: torch.dtype) -> None:
    x = span(2, 2, rows, dim, dtype)
    anchors = pool(2, [(rows + 2, 5), (rows // 2, 33), (rows, None)], 2 * dim, dtype)
    check(lambda: distance.token_l1(x, anchors, rows), 1e-5)
    check(lambda: distance.layer_l1(x, anchors, rows // 2), 1e-5)
    check(lambda: distance.token_l2(x, anchors, rows), 1e-4)  # the reference's Gram form cancels
    check(lambda: distance.span_l2(x, [anchors[0], anchors[2]]), 1e-4)


@settings(deadline=None, max_examples=12)
@given(
    rows=st.integers(0, 40),
    dim=st.integers(1, 20),
    reaches=st.lists(st.tuples(st.integers(0, 45), st.one_of(st.none(), st.integers(0, 40))), max_size=3),
)
def test_distances_any_shape(rows: int, dim: int, reaches: list[Any]) -> None:
    x, anchors = span(2, 2, rows, dim), pool(2, reaches, 2 * dim)
    check(lambda: distance.token_l1(x, anchors, rows), 1e-5)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize(("rows", "keys", "dim"), [(0, 9, 64), (1, 1, 64), (63, 130, 80), (33, 257, 128)])
def test_attention(rows: int, keys: int, dim: int, groups: int, dtype: torch.dtype) -> None:
    draw = generator(rows)
    q = torch.randn(groups, rows, dim, generator=draw).to(dtype)
    k, v = (torch.randn(1, keys, dim, generator=draw).to(dtype) for _ in range(2))
    at = torch.randint(0, keys, (rows,), generator=draw)
    check(lambda: attention.attend(q, k, v, at, dim**-0.5), TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "dim", "dtype"), grid(ALL))
def test_sparse(rows: int, dim: int, dtype: torch.dtype) -> None:
    base, residual = span(3, 2, rows, dim, dtype), span(2, 2, rows, dim, dtype, 1)
    bitmap, values = sparse.sparsify(residual, 0.3)

    def make(**rotation: Any) -> Tensor:
        cache = poisoned(3, 2, rows, dim, dtype)
        sparse.apply(cache[:, :, 3 : 3 + rows], base, bitmap, values, **rotation)
        return cache

    check(make, TOLERANCE[dtype])
    check(lambda: make(start=9, inv_freq=frequencies(dim - 16), scaling=1.1), TOLERANCE[dtype])


def test_anchors_of_two_types_are_refused() -> None:
    anchors = [*pool(2, [(9, 4)], 16), *pool(2, [(9, 4)], 16, torch.float16)]
    with using("triton"), pytest.raises(ValueError, match=r"^anchors must have one dtype"):
        distance.token_l1(span(2, 2, 9, 8), anchors, 9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_checks_that_a_gpu_runs(dtype: str) -> None:
    span = operands(Point("tiny", 40, 3, 4, dtype, dtype), torch.device("cpu"))
    with using("triton"):
        results = list(gpu_check.checks(MODELS["tiny"], span))
    assert len(results) == 8
    assert [check for check in results if not check.passed] == []
    assert any(check.error > 0 for check in results), "both sides ran the reference"
