"""The paged cache of one rank as rows of keys and values, and a finished request as methods see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.backends.vllm_layout import Layout, write
from methods.base import KV, Shape


@dataclass(eq=False)
class Pages:
    """All layers' caches, in the model's order.

    Attributes:
        layers: vLLM's attention layers; caches: their cache tensors, the first axis counts blocks.
    """

    shape: Shape
    layers: Sequence[Any]
    caches: Sequence[Tensor]
    _layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """Found at first use: a backend may choose its kernels after the caches are there.

        Raises:
            ValueError: see :meth:`harness.backends.vllm_layout.Layout.probe`.
        """
        if self._layout is None:
            self._layout = Layout.probe(self.layers[0], self.caches[0], self.shape.kv_heads, self.shape.head_dim)
        return self._layout

    @torch.no_grad()
    def read(self, blocks: Sequence[int], start: int, stop: int) -> KV:
        """A copy of rows ``[start, stop)`` of the request that holds ``blocks`` (``KV.start`` set)."""
        size = (self.shape.layers, self.shape.kv_heads, stop - start, self.shape.head_dim)
        keys, values = (torch.empty(size, dtype=self.shape.dtype, device=self.shape.device) for _ in range(2))
        if stop > start:
            for layer, cache in enumerate(self.caches):
                keys[layer], values[layer] = self.layout.read(cache, blocks, start, stop)
        return KV(keys, values, start)

    @torch.no_grad()
    def write(self, blocks: Sequence[int], start: int, keys: Tensor, values: Tensor) -> None:
        """Write ``[L, H, T, D]`` (keys rotated to their positions) as rows start, start+1, ..."""
        slots = self.layout.slots(blocks, start, start + keys.shape[2], self.shape.device)
        for layer, cache, k, v in zip(self.layers, self.caches, keys, values, strict=True):
            write(layer, cache, slots, k, v)


@dataclass(frozen=True, eq=False)
class Ended:
    """A request that has ended while its blocks are still there; :class:`methods.base.Executed`, read when asked.

    Attributes:
        held: rows in its blocks: the prompt's, and all generated ones but the last.
    """

    pages: Pages
    blocks: Sequence[int]
    prompt_tokens: int
    output_ids: tuple[int, ...]
    held: int
    fresh_rows: tuple[int, ...]
    dense: bool

    def kv(self, start: int, stop: int) -> KV:
        if not 0 <= start <= stop <= self.held:
            raise ValueError(f"rows [{start}, {stop}) are not held: the request has {self.held} rows")
        return self.pages.read(self.blocks, start, stop)

    @property
    def logits(self) -> Tensor:
        raise ValueError("vLLM shows no logits to a method")

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        raise ValueError("vLLM captures no hidden states")

    def attention(self, start: int, stop: int, layers: Collection[int]) -> Tensor:
        raise ValueError("vLLM shows no attention")
