from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import dispatch, distance, distance_bf16
from tests.kernels.operands import TOLERANCE, expanded, flat, pool, relative, span

Reaches = list[tuple[int, int | None]]
NARROW = 2e-3  # one rounding of a difference and one of a partial sum, averaged over few layers and columns


def differences(x: Tensor, anchors: list[Any], cover: int) -> Tensor:
    """``[A, L, cover, C]`` fp64, inf in rows that an anchor does not reach."""
    out = torch.full((len(anchors), x.shape[0], cover, x.shape[1] * x.shape[3]), torch.inf, dtype=torch.float64)
    for a, anchor in enumerate(anchors):
        reach = min(cover, anchor[0].shape[1])
        out[a, :, :reach] = flat(x)[:, :reach] - expanded(anchor)[:, :reach]
    return out


def check(x: Tensor, anchors: list[Any], cover: int) -> None:
    off = differences(x, anchors, cover)
    narrow = any(right is not None and dispatch.narrow(left, right) for left, right in anchors)
    assert relative(distance.token_l1(x, anchors, cover), off.abs().mean((1, 3))) < (NARROW if narrow else 1e-5)
    # The Gram form cancels: its error is that of the squared norms, not of the distance.
    assert relative(distance.token_l2(x, anchors, cover), off.square().mean((1, 3)).sqrt()) < 1e-4
    layers, heads, _, dim = x.shape
    by_layer = distance.layer_l1(x, anchors, cover)
    by_channel = distance.channel_l2(x, anchors, cover)
    for a, anchor in enumerate(anchors):
        reach = min(cover, anchor[0].shape[1])
        if not reach:
            assert by_layer[a].isinf().all()
            assert by_channel[a].isinf().all()
            continue
        assert relative(by_layer[a], off[a, :, :reach].abs().mean((1, 2))) < 1e-5
        assert relative(by_channel[a], off[a, :, :reach].norm(dim=1).view(layers, heads, dim)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("rows", [0, 1, 63, 257])
def test_equals_the_expanded_form(rows: int, dim: int, dtype: torch.dtype) -> None:
    x = span(3, 2, rows, dim, dtype)
    check(x, pool(3, [(rows + 2, 5), (rows // 2, 33), (rows, None), (rows // 3, None)], 2 * dim, dtype), rows)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 factors are multiplied as they are, whatever this processor has."""
    monkeypatch.setattr(dispatch, "bf16_units", lambda: True)


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 3, 64])
@pytest.mark.parametrize("cover", [0, 1, 29])
def test_narrow_factors_and_raw_ones(cover: int, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance_bf16, "TILE", 8)
    monkeypatch.setattr(distance_bf16, "CELLS", 2 * 8 * 2 * dim)
    reaches: Reaches = [(30, 3), (9, 33), (29, None), (0, 2), (11, None)]
    x, anchors = span(5, 2, 29, dim, dtype), pool(5, reaches, 2 * dim, torch.bfloat16)
    off = differences(x, anchors, cover)
    tolerance = NARROW if dim > 3 else TOLERANCE[torch.bfloat16]  # nothing averages over a few columns
    assert relative(distance.token_l1(x, anchors, cover), off.abs().mean((1, 3))) < tolerance


@pytest.mark.usefixtures("units")
def test_narrow_factors_leave_the_weights_of_a_real_model_alone() -> None:
    """SmolLM2's layers and width; distances as far apart as their spread among rows."""
    x, anchors = span(30, 3, 64, 64), pool(30, [(64, 32)] * 6, 192, torch.bfloat16)
    expected = torch.softmax(-differences(x, anchors, 64).abs().mean((1, 3)), 0)
    found = distance.softmax_weights(distance.token_l1(x, anchors, 64), 1.0)
    assert ((found - expected).abs() / expected).max() < 1e-3


@pytest.mark.usefixtures("units")
def test_narrow_factors_equal_to_the_span_are_at_distance_zero() -> None:
    """Rank 4 in integers: bf16 holds rows and products without rounding."""
    draw = torch.Generator().manual_seed(5)
    left, right = (torch.randint(-3, 4, shape, generator=draw).float() for shape in ((2, 40, 4), (2, 4, 16)))
    x = (left @ right).view(2, 40, 2, 8).transpose(1, 2)
    assert distance.token_l1(x, [(left.bfloat16(), right.bfloat16())], 40).max() == 0


@settings(deadline=None, max_examples=60)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    rows=st.integers(0, 30),
    dim=st.integers(1, 9),
    reaches=st.lists(st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 5))), max_size=4),
    data=st.data(),
)
def test_any_shape(layers: int, heads: int, rows: int, dim: int, reaches: Reaches, data: st.DataObject) -> None:
    check(span(layers, heads, rows, dim), pool(layers, reaches, heads * dim), data.draw(st.integers(0, rows)))


def test_tiles_and_layer_groups_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "TILE", 4)
    monkeypatch.setattr(distance, "ROWS", 8)
    for rows in (3, 8, 29):
        x, anchors = span(5, 2, rows, 8), pool(5, [(rows, 3), (max(0, rows - 6), 2), (rows, None)], 16)
        check(x, anchors, rows)
        check_span(x, anchors[:1] + anchors[2:])


def check_span(x: Tensor, anchors: list[Any]) -> None:
    off = differences(x, anchors, x.shape[2])
    assert relative(distance.span_l2(x, anchors), off.square().sum((1, 2, 3)).sqrt()) < 1e-4


@pytest.mark.parametrize("rows", [0, 1, 63, 600])
def test_span_distance_is_the_frobenius_norm(rows: int) -> None:
    check_span(span(3, 2, rows, 16), pool(3, [(rows + 9, 7), (rows, None), (rows, 20)], 32))


def test_distances_agree_with_each_other() -> None:
    x, anchors = span(3, 2, 50, 16), pool(3, [(50, 7), (60, 3)], 32)
    entries = 3 * 2 * 16
    whole = distance.span_l2(x, anchors)
    torch.testing.assert_close(whole.square(), distance.token_l2(x, anchors, 50).square().sum(1) * entries)
    torch.testing.assert_close(whole.square(), distance.channel_l2(x, anchors, 50).square().sum((1, 2, 3)))
    torch.testing.assert_close(distance.token_l1(x, anchors, 50).mean(1), distance.layer_l1(x, anchors, 50).mean(1))


def test_an_anchor_equal_to_the_span_is_at_distance_zero() -> None:
    x = span(2, 2, 40, 8)
    same = [(flat(x).float().contiguous(), None)]
    assert distance.token_l1(x, same, 40).max() == 0
    assert distance.span_l2(x, same).item() == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 6), st.floats(0.05, 20), st.data())
def test_softmax_weights(anchors: int, rows: int, temperature: float, data: st.DataObject) -> None:
    d = torch.rand(anchors, rows, generator=torch.Generator().manual_seed(0)) * 5
    far = torch.tensor(data.draw(st.lists(st.booleans(), min_size=anchors * rows, max_size=anchors * rows)))
    d[far.view(anchors, rows)] = torch.inf
    w = distance.softmax_weights(d, temperature)
    raised = torch.exp(-d.double() / temperature)
    total = raised.sum(0)
    expected = torch.where(total > 0, raised / total.clamp_min(1e-300), 0.0)
    torch.testing.assert_close(w.double(), expected, rtol=1e-4, atol=1e-6)
    assert (w[d.isinf()] == 0).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.zeros(3, 20, 16)}),
        ("x", {"x": torch.zeros(3, 2, 16, 20).mT}),
        ("cover", {"cover": 21}),
        ("cover", {"cover": -1}),
        (r"anchors\[0\] left", {"anchors": [(torch.zeros(2, 9, 4), torch.zeros(2, 4, 32))]}),
        (r"anchors\[0\] right", {"anchors": [(torch.zeros(3, 9, 4), torch.zeros(3, 4, 31))]}),
        (r"anchors\[0\] left", {"anchors": [(torch.zeros(3, 9, 4, dtype=torch.int8), torch.zeros(3, 4, 32))]}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"x": span(3, 2, 20, 16), "anchors": pool(3, [(9, 4)], 32), "cover": 20}
    for measure in (distance.token_l1, distance.token_l2, distance.layer_l1, distance.channel_l2):
        with pytest.raises(ValueError, match=f"^{name}"):
            measure(**{**good, **change})
    with pytest.raises(ValueError, match=r"^anchors\[0\] must have at least 20 rows"):
        distance.span_l2(good["x"], good["anchors"])
    with pytest.raises(ValueError, match=r"^temperature"):
        distance.softmax_weights(torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match=r"^distance"):
        distance.softmax_weights(torch.zeros(2, dtype=torch.float64), 1.0)
