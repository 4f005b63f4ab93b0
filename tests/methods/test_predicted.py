"""Corrected rows in chunks of layers are the correction written out."""

from __future__ import annotations

import pytest
import torch
from tiny import relative, rope
from torch import Tensor

from methods import predicted
from methods.base import KV
from methods.predicted import Predicted


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("at_once", [1, 20, 25, 10**6])
@pytest.mark.parametrize("start", [None, 0, 31])
@pytest.mark.parametrize("layers", [1, 5])
def test_rows_are_the_source_plus_the_product(
    monkeypatch: pytest.MonkeyPatch, at_once: int, start: int | None, layers: int
) -> None:
    monkeypatch.setattr(predicted, "AT_ONCE", at_once)
    heads, rows, dim, rank, turn = 2, 10, 8, 3, rope(8, 1.3)
    source = KV(draw(layers, heads, rows, dim, seed=0), draw(layers, heads, rows, dim, seed=1), start)
    left = draw(rows, rank, seed=2)
    right = [draw(layers - 1, rank, heads * dim, seed=3 + i) for i in range(2)]
    keys, values = torch.full_like(source.k, torch.nan), torch.full_like(source.v, torch.nan)
    Predicted(source, left, *right).write(keys, values, 17, turn)
    flat = source.derotated(turn)
    for written, base, factor in ((keys, flat.k, right[0]), (values, flat.v, right[1])):
        true = base.clone()
        true[1:] += (left @ factor).view(layers - 1, rows, heads, dim).transpose(1, 2)
        if written is keys:
            true = turn.apply(true, torch.arange(17, 17 + rows))
        assert relative(written, true) < 1e-5
