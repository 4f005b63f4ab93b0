"""Keys and values of a delta over one left factor: exactness, error, size, and what a method makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Tiny, TinyEngine, questions, relative, trajectory
from torch import Tensor

from methods.anchors import Pair
from methods.kvcmas import KVCMAS
from methods.lowrank import (
    Full,
    Joint,
    LowRank,
    Matrix,
    Raw,
    Truncated,
    joint_bytes,
    joint_codec,
    joint_elements,
    pair_bytes,
)

LAYERS, H, D = 3, 2, 24
C = H * D


def change(rank: int, rows: int, ratio: float = 1.0, decay: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """``dX W_K`` and ``ratio * dX W_V``, ``[L, H, n, D]``, of a change of rank ``rank`` over its own wide W."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(LAYERS, rows, rank, generator=draw)).Q * decay ** torch.arange(rank)
    rights = (torch.randn(LAYERS, rank, C, generator=draw) * by for by in (1.0, ratio))
    k, v = ((left @ right).view(LAYERS, rows, H, D).transpose(1, 2) for right in rights)
    return k, v


def expanded(stored: Matrix) -> Tensor:
    left, right = stored.operand(len(stored))
    flat = left if right is None else left.float() @ right.float()
    return flat.float().view(LAYERS, -1, H, D).transpose(1, 2)


def errors(codec: Joint, k: Tensor, v: Tensor) -> tuple[float, float]:
    stored_k, stored_v = codec.encode(k, v, 7)
    return relative(expanded(stored_k), k), relative(expanded(stored_v), v)


@pytest.mark.parametrize("ratio", [1e-3, 1.0, 1e3])
def test_one_change_of_the_hidden_state_needs_its_rank_once(ratio: float) -> None:
    """D2: one left factor of r columns holds both; apart, keys and values need r columns each."""
    k, v = change(12, 150, ratio)
    stored_k, stored_v = Joint(12, torch.float32).encode(k, v, 7)
    assert isinstance(stored_k, LowRank)
    assert isinstance(stored_v, LowRank)
    assert stored_k.left is stored_v.left
    assert relative(expanded(stored_k), k) < 1e-5
    assert relative(expanded(stored_v), v) < 1e-5
    apart = [Truncated(12, torch.float32).encode(x, 7) for x in (k, v)]
    assert all(relative(expanded(a), x) < 1e-5 for a, x in zip(apart, (k, v), strict=True))
    assert all(relative(expanded(Truncated(11, torch.float32).encode(x, 7)), x) > 1e-2 for x in (k, v))
    assert Pair("", stored_k, stored_v).nbytes < 0.7 * Pair("", apart[0], apart[1]).nbytes


def test_error_is_near_the_best_and_falls_with_rank() -> None:
    """Against an exact singular value decomposition of the concatenation at equal norms; K and V of different left
    spaces, so that neither form is exact."""
    k, _ = change(40, 200, decay=0.9, seed=1)
    _, v = change(40, 200, ratio=50.0, decay=0.9, seed=2)
    flat_k, flat_v = (x.transpose(1, 2).reshape(LAYERS, 200, C).double() for x in (k, v))
    norms = [x.flatten(1).norm(dim=1)[:, None, None] for x in (flat_k, flat_v)]
    spectrum = torch.linalg.svdvals(torch.cat([flat_k / norms[0], flat_v / norms[1]], 2))
    found = []
    for rank in (1, 2, 4, 8, 16, 32, 48):
        stored = Joint(rank, torch.float32).encode(k, v, 7)
        assert isinstance(stored[0], LowRank)
        lost = sum(
            (expanded(s) - x).double().square().sum((1, 2, 3)) / norm[:, 0, 0] ** 2
            for s, x, norm in zip(stored, (k, v), norms, strict=True)
        )
        best = spectrum[:, rank:].square().sum(-1)
        assert (lost <= 1.1 * best + 1e-9).all()
        found.append(float(lost.sum()))
    assert found == sorted(found, reverse=True)


def test_neither_matrix_is_sacrificed_to_the_larger() -> None:
    """The errors do not depend on the scale of the values, in any layer."""
    k, _ = change(40, 200, decay=0.9, seed=1)
    _, v = change(40, 200, decay=0.9, seed=2)
    plain = errors(Joint(16, torch.float32), k, v)
    by = torch.tensor([1e-3, 1.0, 1e4])[:, None, None, None]
    stored = Joint(16, torch.float32).encode(k, v * by, 7)
    assert errors(Joint(16, torch.float32), k, v * 300) == pytest.approx(plain, rel=1e-3)
    assert relative(expanded(stored[1]) / by, v) == pytest.approx(plain[1], rel=1e-3)
    assert relative(expanded(stored[0]), k) == pytest.approx(plain[0], rel=1e-3)


def test_residuals_are_what_each_lost() -> None:
    k, _ = change(40, 200, decay=0.9, seed=1)
    _, v = change(40, 200, ratio=0.01, decay=0.9, seed=2)
    for stored, x in zip(Joint(8, torch.float32).encode(k, v, 7), (k, v), strict=True):
        assert stored.residual == pytest.approx(float((expanded(stored) - x).norm()), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_full_rank_is_exact(dtype: torch.dtype) -> None:
    """All of rank n or 2 C would cost more than the entries do, so these are stored."""
    k, v = (torch.randn(LAYERS, H, 60, D) for _ in range(2))
    for rank in (60, 2 * C, 1000):
        stored = Joint(rank, dtype).encode(k, v, 1)
        assert all(isinstance(s, Raw) for s in stored)
        assert torch.equal(expanded(stored[0]), k.to(dtype).float())
        assert torch.equal(expanded(stored[1]), v.to(dtype).float())


def test_nothing_to_store() -> None:
    """Zero keys, zero values, both, no rows."""
    some, none = change(4, 90)[0], torch.zeros(LAYERS, H, 90, D)
    for k, v in ((none, none), (some, none), (none, some)):
        stored = Joint(4, torch.bfloat16).encode(k, v, 0)
        assert torch.equal(expanded(stored[0]), none) == (k is none)
        assert all(relative(expanded(s), x) < 1e-2 for s, x in zip(stored, (k, v), strict=True))
    empty = Joint(4, torch.float32).encode(some[:, :, :0], some[:, :, :0], 0)
    assert [len(s) for s in empty] == [0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 200), st.integers(0, 110))
def test_bytes_equal_the_formula_and_never_exceed_raw(rows: int, rank: int) -> None:
    """r (n + 2 C) elements a layer for keys and values, raw below break-even; rank 0 is full."""
    k, v = (torch.randn(LAYERS, H, rows, D) for _ in range(2))
    chosen = joint_codec(rank, torch.bfloat16, 2, 1, True)
    stored = chosen.encode(k, v, 1) if isinstance(chosen, Joint) else (chosen.encode(k, 1), chosen.encode(v, 1))
    pair = Pair("", *stored)
    r = min(rank, rows, 2 * C)
    low = r > 0 and r * (rows + 2 * C) < 2 * rows * C
    assert pair.nbytes == 2 * LAYERS * (r * (rows + 2 * C) if low else 2 * rows * C)
    assert pair.nbytes == joint_bytes(LAYERS, rows, C, rank, 2) == sum(t.nbytes for t in pair.tensors().values())
    assert pair.nbytes <= pair_bytes(LAYERS, rows, C, rank, rank, 2)
    assert set(pair.tensors()) == ({"left", "k.right", "v.right"} if low else {"k.x", "v.x"})
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in pair.tensors().values())


def test_size_at_the_papers_shape() -> None:
    """4,096 tokens, 32 layers of width 1024, rank 32, 16 bit: 12 MiB instead of 20 apart and 512 in full."""
    assert joint_bytes(32, 4096, 1024, 32, 2) == 12 * 2**20
    assert joint_bytes(32, 4096, 1024, 0, 2) == 512 * 2**20
    smaller = [n for n in range(1, 80) if joint_elements(n, 1024, 32) < 2 * n * 1024]
    assert smaller == list(range(33, 80))


def test_balanced_factors_survive_float16() -> None:
    k, v = (x * 3e5 for x in change(4, 200, ratio=1e-3))
    plain = Joint(4, torch.float16, balanced=False).encode(k, v, 1)
    balanced = Joint(4, torch.float16).encode(k, v, 1)
    assert not torch.isfinite(expanded(plain[0])).all()
    assert relative(expanded(balanced[0]), k) < 5e-3
    assert relative(expanded(balanced[1]), v) < 5e-3


def test_encoding_neither_needs_nor_changes_its_input() -> None:
    """I11, with heads merged without a copy."""
    k, v = (torch.randn(LAYERS, 1, 90, C) for _ in range(2))
    kept = k.clone(), v.clone()
    stored = Joint(5, torch.float32).encode(k, v, 1)
    assert torch.equal(k, kept[0])
    assert torch.equal(v, kept[1])
    before = [expanded(s).clone() for s in stored]
    k.zero_()
    v.zero_()
    assert all(torch.equal(expanded(s), b) for s, b in zip(stored, before, strict=True))


def bound(model: Tiny, **options: Any) -> KVCMAS:
    method = KVCMAS(joint=True, **options)
    method.bind(model.shape(), 3)
    return method


def test_a_deltas_rank_is_that_of_the_hidden_state() -> None:
    """Reuse equals dense when the anchor is this very request: at rank 32, the width of the hidden state, joint factors
    lose nothing, although keys and values of a layer have 64 columns."""
    model = Tiny(heads=4)
    engine = TinyEngine(model)
    assert model.hidden == 32
    method = bound(model, rank_delta=32, rank_base_key=0, rank_base_value=0, factor_dtype="float32", gate="always")
    question = questions(1, length=90)[0]
    first = trajectory(method, engine, question, "t0")
    again = trajectory(method, engine, question, "t1")
    deltas = [pair for pool in method.sharing.pools.values() for a in pool for pair in a.deltas.values()]
    long = [pair for pair in deltas if len(pair.k) == 90]
    assert long
    assert all(set(pair.tensors()) == {"left", "k.right", "v.right"} for pair in long)
    for one, two in zip(first[1:], again[1:], strict=True):
        assert one.ran.dense
        assert not two.ran.dense
        assert relative(two.ran.k, one.ran.k) < 1e-4
        assert relative(two.ran.v, one.ran.v) < 1e-4
        assert two.ran.output_ids == one.ran.output_ids


def test_raw_deltas_at_full_rank_reuse_what_dense_computed() -> None:
    model = Tiny()
    engine = TinyEngine(model)
    method = bound(model, rank=1000, factor_dtype="float32", gate="always", glue="delta")
    first, again = (trajectory(method, engine, questions(1)[0], name) for name in ("t0", "t1"))
    for one, two in zip(first[1:], again[1:], strict=True):
        assert not two.ran.dense
        assert relative(two.ran.k, one.ran.k) < 1e-4
        assert relative(two.ran.logits, one.ran.logits) < 1e-4


@pytest.mark.parametrize("rank", [2, 5, 32])
def test_pool_bytes_equal_the_formula(rank: int) -> None:
    """L r (n + 2 C) e less one layer per delta; references stay apart."""
    model = Tiny()
    engine = TinyEngine(model, new_tokens=7)
    method = bound(model, rank=rank, gate="never", role_cache=False, pool=3, question_admission="first_n")
    for i, question in enumerate(questions(3, length=40)):
        trajectory(method, engine, question, f"t{i}")
    width, layers = 16, 4
    bases = 2 * pair_bytes(layers, 40, width, rank, rank, 2) + 2 * pair_bytes(layers, 6, width, rank, rank, 2)
    deltas = 2 * joint_bytes(layers - 1, 40, width, rank, 2) + 3 * joint_bytes(layers - 1, 6, width, rank, 2)
    assert method.state_bytes().base == 3 * bases
    assert method.state_bytes().correction == 3 * deltas


@pytest.mark.parametrize("frame", ["local", "absolute"])
def test_rotated_keys_are_refused(frame: Any) -> None:
    with pytest.raises(ValueError, match=f"joint=true needs frame=derotated, got frame={frame}"):
        KVCMAS(joint=True, frame=frame)
    assert not KVCMAS(frame=frame).joint


def test_which_matrices_are_joint() -> None:
    """Deltas; references, full tensors and rank 0 are not."""
    shape = Tiny().shape(torch.float16)
    grid = KVCMAS(joint=True, rank=8, rank_glue=0, factor_dtype="model", oversampling=0, balanced=False).grid(shape)
    assert grid.delta == Joint(8, torch.float16, 0, 2, False)
    assert grid.glue_delta == Full(torch.float16)
    assert grid.base_key == grid.base_value == Truncated(8, torch.float16, 0, 2, False)
    assert KVCMAS(joint=True, codec="full").grid(shape).delta == Full(torch.bfloat16)
