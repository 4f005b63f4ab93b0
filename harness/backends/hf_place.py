"""A set of prompt rows on their way through stock decoder layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.backends.hf_attention import mass
from harness.backends.hf_cache import RowCache, as_slice
from kernels.attention import Positions
from methods.base import Probe, Shape


class Place:
    """Where a set of rows stands: positions and rotary tables, shared by all layers they run.

    Args:
        decoder: the stock decoder whose layers run.
        rows: int64 ``[R]``, sorted absolute rows.
        stop: rows ``[0, stop)`` of the cache are visible.
        hidden: any hidden states of the model; only dtype and device are read.
    """

    def __init__(self, decoder: Any, shape: Shape, cache: RowCache, rows: Tensor, stop: int, hidden: Tensor) -> None:
        self.decoder, self.shape, self.cache, self.rows, self.stop = decoder, shape, cache, rows, stop
        self.position_ids = rows[None]
        self.rotary = decoder.rotary_emb(hidden, position_ids=self.position_ids)
        self.where = as_slice(rows)
        leading = self.where == slice(0, stop)
        single = len(rows) == 1 and int(rows[0]) == stop - 1
        # Where the kernel's own causal flag is exact it is also faster; anywhere else it would be wrong.
        self.q_pos = None if leading or single else Positions(rows)

    def through(self, layer: int, hidden: Tensor) -> Tensor:
        """One stock decoder layer on ``[1, R, hidden]``."""
        self.cache.select(self.rows if self.where is None else self.where, self.stop)
        forward: Callable[..., Tensor] = self.decoder.layers[layer]
        return forward(
            hidden,
            attention_mask=None,
            position_ids=self.position_ids,
            past_key_values=self.cache,
            use_cache=True,
            position_embeddings=self.rotary,
            q_pos=self.q_pos,
        )

    def probe(self, layer: int, hidden: Tensor) -> Probe:
        """Fresh keys and values of the rows at a layer before it runs, beside what the cache holds there."""
        block = self.decoder.layers[layer]
        attention, normed = block.self_attn, block.input_layernorm(hidden[0])
        fresh_k = self._turned(attention, "k", normed, self.rows)
        fresh_v = self._heads(attention.v_proj(normed))
        held_k, held_v = self.cache.keys[layer], self.cache.values[layer]

        def received(rows: Tensor) -> Tensor:
            queries = self._turned(attention, "q", normed[torch.searchsorted(self.rows, rows)], rows)
            keys = held_k[:, : self.stop].index_copy(1, self.rows, fresh_k.to(held_k.dtype))
            return mass(queries, keys, rows, float(attention.scaling))

        return Probe(layer, self.rows, fresh_k, fresh_v, held_k[:, self.rows], held_v[:, self.rows], received)

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        """Attention that rows ``[0, stop)`` of the cache as it is held get from all these rows, fp32 ``[stop]``."""
        block = self.decoder.layers[layer]
        queries = self._turned(block.self_attn, "q", block.input_layernorm(hidden[0]), self.rows)
        return mass(queries, self.cache.keys[layer][:, : self.stop], self.rows, float(block.self_attn.scaling))

    def write_back(self, probe: Probe, rows: Tensor) -> None:
        """Replace the reused keys and values of probed ``rows`` at the probe's layer by the fresh ones."""
        index = torch.searchsorted(probe.rows, rows)
        self.cache.keys[probe.layer].index_copy_(1, rows, probe.fresh_k[:, index].to(self.cache.keys.dtype))
        self.cache.values[probe.layer].index_copy_(1, rows, probe.fresh_v[:, index].to(self.cache.values.dtype))

    def _turned(self, attention: Any, kind: str, normed: Tensor, rows: Tensor) -> Tensor:
        """Queries ``[Hq, R, D]`` or keys ``[H, R, D]`` of ``normed [R, hidden]``, rotated at ``rows``."""
        heads = self._heads(getattr(attention, f"{kind}_proj")(normed))
        if hasattr(attention, f"{kind}_norm"):
            heads = getattr(attention, f"{kind}_norm")(heads)
        return self.shape.rope.apply(heads, rows)

    def _heads(self, projected: Tensor) -> Tensor:
        """``[R, heads * D] -> [heads, R, D]``."""
        return projected.view(len(projected), -1, self.shape.head_dim).transpose(0, 1)
