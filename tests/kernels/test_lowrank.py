from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import dispatch, lowrank
from kernels.operand import Paged
from tests.kernels.operands import TOLERANCE, expanded, flat, frequencies, pool, relative, softmaxed, span, turned


def expectation(case: dict[str, Any], side: str) -> Tensor:
    """The correction written out in fp64, anchors expanded whole."""
    base, deltas, weights = case[f"base_{side}"], case[f"deltas_{side}"], case[f"weights_{side}"].double()
    out = flat(base)
    for weight, anchor in zip(weights, deltas, strict=True):
        reach = min(anchor[0].shape[1], weight.shape[0])
        out[case["first_layer"] :, :reach] += weight[:reach, None] * expanded(anchor)[:, :reach]
    layers, heads, rows, dim = base.shape
    out = out.view(layers, rows, heads, dim).transpose(1, 2)
    if side == "v":
        return out
    return turned(out, torch.arange(rows) + case["start"], case["inv_freq"], case["scaling"])


def make(
    layers: int, heads: int, rows: int, dim: int, reaches: list[tuple[int, int | None]], cover: int, **change: Any
) -> dict[str, Any]:
    dtype = change.pop("dtype", torch.float32)
    first = change.pop("first_layer", min(1, layers))
    case = {
        "base_k": span(layers, heads, rows, dim, dtype, 5),
        "base_v": span(layers, heads, rows, dim, dtype, 6),
        "deltas_k": pool(layers - first, reaches, heads * dim, dtype, 7),
        "deltas_v": pool(layers - first, reaches, heads * dim, dtype, 8),
        "weights_k": softmaxed(len(reaches), cover, 9),
        "weights_v": softmaxed(len(reaches), cover, 10),
        "start": 11,
        "inv_freq": frequencies(dim),
        "scaling": 1.2,
        "first_layer": first,
        **change,
    }
    shape = (layers, heads, rows + 6, dim)
    return {
        "keys": torch.full(shape, torch.nan, dtype=dtype)[:, :, 2 : 2 + rows],
        "values": torch.full(shape, torch.nan, dtype=dtype)[:, :, 2 : 2 + rows],
        **case,
    }


def check(case: dict[str, Any]) -> None:
    lowrank.correct(**case)
    for name, side in (("keys", "k"), ("values", "v")):
        assert relative(case[name], expectation(case, side)) < TOLERANCE[case[name].dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("rows", [0, 1, 63, 257])
def test_equals_the_expanded_form(rows: int, dim: int, dtype: torch.dtype) -> None:
    check(make(3, 2, rows, dim, [(rows + 3, 5), (rows // 2, 7), (rows, None)], max(0, rows - 2), dtype=dtype))


@settings(deadline=None, max_examples=60)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    rows=st.integers(0, 30),
    half=st.integers(1, 6),
    anchors=st.lists(st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 5))), max_size=4),
    data=st.data(),
)
def test_any_shape(layers: int, heads: int, rows: int, half: int, anchors: list[Any], data: st.DataObject) -> None:
    cover = data.draw(st.integers(0, rows))
    first = data.draw(st.integers(0, layers))
    rotated = 2 * data.draw(st.integers(0, half))
    check(make(layers, heads, rows, 2 * half, anchors, cover, first_layer=first, inv_freq=frequencies(rotated)))


def test_tiles_and_layer_groups_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowrank, "TILE", 8)
    monkeypatch.setattr(lowrank, "ROWS", 16)
    for rows in (3, 8, 29):
        check(make(6, 2, rows, 8, [(rows, 3), (max(0, rows - 5), 2), (rows, None)], max(0, rows - 1)))


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", [torch.float32, torch.bfloat16])
def test_narrow_factors_cost_no_more_than_a_rounding_of_the_delta(
    base: torch.dtype, cache: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta of a tenth of the base, in tiles and groups of layers: beside rounding the result, the error is small."""
    monkeypatch.setattr(lowrank, "TILE", 8)
    monkeypatch.setattr(lowrank, "ROWS", 16)
    monkeypatch.setattr(dispatch, "bf16_units", lambda: True)
    case = make(5, 2, 29, 64, [(29, 12), (20, 7), (35, 16)], 27, scaling=1.0)
    case |= {name: case[name].to(base) for name in ("base_k", "base_v")}
    case |= {name: case[name].to(cache) for name in ("keys", "values")}
    for side in "kv":
        case[f"deltas_{side}"] = [(0.2 * q.bfloat16(), b.bfloat16()) for q, b in case[f"deltas_{side}"]]
    lowrank.correct(**case)
    for name, side in (("keys", "k"), ("values", "v")):
        exact = expectation(case, side)
        assert relative(case[name], exact) < relative(exact.to(cache), exact) + 5e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_paged_cache_gets_the_same_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "bf16_units", lambda: True)
    case = make(3, 2, 21, 16, [(30, 4), (10, 3)], 18, dtype=dtype)
    lowrank.correct(**case)
    paged = {
        name: Paged(torch.full((3, 9, 4, 2, 16), torch.nan, dtype=dtype), torch.tensor([8, 0, 3, 5, 1, 2]), 3)
        for name in ("keys", "values")
    }
    lowrank.correct(**{**case, **paged})
    for name, cache in paged.items():
        linear = cache.pages[:, cache.table].flatten(1, 2).permute(0, 2, 1, 3)
        assert torch.equal(linear[:, :, 3:24], case[name])
        assert linear[:, :, :3].isnan().all()


def test_mixed_storage_of_cache_base_and_factors() -> None:
    case = make(3, 2, 33, 16, [(33, 4), (20, None)], 33)
    for side in "kv":
        case[f"deltas_{side}"] = [
            (left.bfloat16(), None if right is None else right.half()) for left, right in case[f"deltas_{side}"]
        ]
        case[f"base_{side}"] = case[f"base_{side}"].bfloat16()
    check(case)


def test_one_anchor_of_full_weight_restores_its_rows_exactly() -> None:
    case = make(3, 2, 40, 8, [(40, None)], 40)
    goal = span(3, 2, 40, 8, seed=20)
    delta = (flat(goal) - flat(case["base_v"]))[1:].float()
    case |= {"deltas_v": [(delta, None)], "weights_v": torch.ones(1, 40)}
    lowrank.correct(**case)
    assert relative(case["values"][1:], goal[1:]) < 1e-6
    assert torch.equal(case["values"][0], case["base_v"][0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("keys", {"keys": torch.zeros(3, 2, 20, 16)}),
        ("keys", {"keys": torch.zeros(3, 2, 16, 21).mT}),
        ("values", {"values": torch.zeros(3, 2, 21, 16, dtype=torch.float64)}),
        ("values", {"values": torch.zeros(3, 2, 21, 16, device="meta")}),
        ("base_v", {"base_v": torch.zeros(3, 2, 22, 16)}),
        ("base_v", {"base_v": torch.zeros(3, 2, 21, 16, dtype=torch.float64)}),
        (r"deltas_k\[0\] right", {"deltas_k": [(torch.zeros(2, 30, 4), torch.zeros(2, 5, 32))] * 2}),
        (r"deltas_k\[0\] left", {"deltas_k": [(torch.zeros(3, 30, 4), torch.zeros(3, 4, 32))] * 2}),
        (r"deltas_v\[1\]", {"deltas_v": [(torch.zeros(2, 30, 32), None), (torch.zeros(2, 30, 31), None)]}),
        ("weights_k", {"weights_k": torch.zeros(2, 22)}),
        ("weights_k", {"weights_k": torch.zeros(3, 18)}),
        ("weights_v", {"weights_v": torch.zeros(2, 17)}),
        ("weights_v", {"weights_v": torch.zeros(2, 18, dtype=torch.bfloat16)}),
        ("first_layer", {"first_layer": 4}),
        ("inv_freq", {"inv_freq": torch.zeros(9)}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        lowrank.correct(**{**make(3, 2, 21, 16, [(30, 4), (10, 3)], 18), **change})
