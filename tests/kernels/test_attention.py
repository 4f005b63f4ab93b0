from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import attention
from kernels.attention import Positions, attend
from tests.kernels.operands import TOLERANCE, generator, relative


def one_by_one(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
    """Every query row alone over exactly the keys it may see, in fp64: no mask at all."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    groups = q.shape[0] // k.shape[0]
    for head in range(q.shape[0]):
        for row, position in enumerate(q_pos.tolist()):
            keys, values = (x[head // groups, : position + 1].double() for x in (k, v))
            out[head, row] = torch.softmax(keys @ q[head, row].double() * scale, 0) @ values
    return out


def operands(rows: int, keys: int, dim: int, groups: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    draw = generator(rows + dim)
    q = torch.randn(2 * groups, rows, dim, generator=draw).to(dtype)
    k, v = (torch.randn(2, keys, dim, generator=draw).to(dtype) for _ in range(2))
    return q, k, v, torch.randint(0, keys, (rows,), generator=draw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize(("rows", "dim"), [(0, 64), (1, 64), (63, 80), (21, 128)])
def test_scattered_rows(rows: int, dim: int, groups: int, dtype: torch.dtype) -> None:
    q, k, v, at = operands(rows, 97, dim, groups, dtype)
    assert relative(attend(q, k, v, at, dim**-0.5), one_by_one(q, k, v, at, dim**-0.5)) < TOLERANCE[dtype]


def test_a_row_never_sees_a_later_key() -> None:
    q, k, v, at = operands(30, 60, 16, 2, torch.float32)
    before = attend(q, k, v, at, 0.25)
    for row in range(30):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[:, at[row] + 1 :] = 1e4
        changed_v[:, at[row] + 1 :] = -1e4
        assert torch.equal(attend(q, changed_k, changed_v, at, 0.25)[:, row], before[:, row])


@pytest.mark.parametrize("few", [0, 8])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_blocks_of_rows_meet_without_a_seam(
    ordered: bool, groups: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK", 8)
    monkeypatch.setattr(attention, "FEW", few)
    for rows in (7, 8, 29):
        q, k, v, at = operands(rows, 60, 16, groups, torch.float32)
        at = at.sort().values if ordered else at
        assert relative(attend(q, k, v, at, 0.25), one_by_one(q, k, v, at, 0.25)) < TOLERANCE[torch.float32]


def test_layers_of_any_dtype_share_the_masks() -> None:
    q, k, v, at = operands(21, 60, 16, 2, torch.float32)
    shared = Positions(at)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        half = [x.to(dtype) for x in (q, k, v)]
        assert torch.equal(attend(*half, shared, 0.25), attend(*half, at, 0.25))
    assert shared.blocks(torch.float32) is shared.blocks(torch.float32)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"q": torch.zeros(3, 5, 16)}),
        ("q", {"q": torch.zeros(4, 5, 8)}),
        ("k", {"k": torch.zeros(2, 9, 16, dtype=torch.float16)}),
        ("v", {"v": torch.zeros(2, 8, 16)}),
        ("q_pos", {"q_pos": torch.arange(4)}),
        ("q_pos", {"q_pos": torch.arange(5).int()}),
    ],
)
def test_names_the_argument_that_does_not_fit(name: str, change: dict[str, Tensor]) -> None:
    good = {
        "q": torch.zeros(4, 5, 16),
        "k": torch.zeros(2, 9, 16),
        "v": torch.zeros(2, 9, 16),
        "q_pos": torch.arange(5),
    }
    with pytest.raises(ValueError, match=f"^{name}"):
        attend(**{**good, **change}, scale=1.0)
