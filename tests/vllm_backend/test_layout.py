"""Where rows lie in a block, found by probing, against rows that were written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.vllm_layout import Layout, write

HEADS, DIM, BLOCK = 3, 32, 64


class Transposed:
    """Keys as ``[D, B]``, values as ``[B, D]``, as vLLM packs them on a CPU."""

    def do_kv_cache_update(self, layer: Any, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        block = cache.shape[2]
        for row, slot in enumerate(slots.tolist()):
            at = cache[slot // block].view(HEADS, 2, -1)
            at[:, 0].view(HEADS, DIM, block)[:, :, slot % block] = keys[row]
            at[:, 1].view(HEADS, block, DIM)[:, slot % block] = values[row]


class Shuffled(Transposed):
    """No strides can say where the rows are."""

    def do_kv_cache_update(self, layer: Any, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        order = torch.randperm(cache[0].numel(), generator=torch.Generator().manual_seed(1))
        plain = torch.empty_like(cache)
        plain.view(len(cache), -1)[:, order] = cache.view(len(cache), -1)
        super().do_kv_cache_update(layer, keys, values, plain, slots)
        cache.view(len(cache), -1)[:] = plain.view(len(cache), -1)[:, order]


class Lossy(Transposed):
    """Forgets the values."""

    def do_kv_cache_update(self, layer: Any, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().do_kv_cache_update(layer, keys, torch.zeros_like(values), cache, slots)


@pytest.mark.parametrize("backend", [Transposed(), Shuffled()], ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("start", "stop"), [(0, 5), (60, 70), (64, 128), (63, 191), (100, 100)])
def test_rows_are_read_where_they_were_written(backend: Any, dtype: torch.dtype, start: int, stop: int) -> None:
    cache = torch.full((6, HEADS, BLOCK, 2 * DIM), torch.nan, dtype=dtype)
    layer = SimpleNamespace(impl=backend)
    layout = Layout.probe(layer, cache, HEADS, DIM)
    assert (layout.block, (layout.keys.affine is None)) == (BLOCK, isinstance(backend, Shuffled))
    assert bool(cache.isnan().all()), "probing must not touch the cache"
    keys, values = (torch.randn(HEADS, stop - start, DIM, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    blocks = [4, 1, 5]
    write(layer, cache, layout.slots(blocks, start, stop, cache.device), keys, values)
    found = layout.read(cache, blocks, start, stop)
    assert torch.equal(found[0], keys.to(dtype))
    assert torch.equal(found[1], values.to(dtype))
    assert int((~cache.isnan()).sum()) == 2 * keys.numel(), "nothing else may be written"


def test_a_backend_that_loses_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="elements of a block as they are written"):
        Layout.probe(SimpleNamespace(impl=Lossy()), torch.zeros(3, HEADS, BLOCK, 2 * DIM), HEADS, DIM)


def test_a_cache_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        Layout.probe(SimpleNamespace(impl=Transposed()), torch.zeros(3, 5, 7), HEADS, DIM)
