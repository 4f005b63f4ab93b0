"""A decoder with random weights: the least model that turns a cache into a first token.

It answers one question, what a correction is worth in time, with the kernels alone. One layer's weights serve all
layers, which saves memory and changes no FLOP. Its outputs mean nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from kernels.attention import attend
from kernels.distance import softmax_weights, token_l1
from kernels.lowrank import correct
from kernels.operand import Matrix
from kernels.rope import rotate
from kernels.workload import Model


class Decoder:
    """Llama's layer: grouped-query attention and a gated MLP of 3.5 times the hidden size."""

    def __init__(self, model: Model, groups: int, dtype: torch.dtype, device: torch.device) -> None:
        draw = torch.Generator(device).manual_seed(0)
        self.model = model
        self.hidden = groups * model.width
        inner = int(3.5 * self.hidden)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=draw, device=device) / math.sqrt(rows)).to(dtype)

        self._q, self._o = weight(self.hidden, self.hidden), weight(self.hidden, self.hidden)
        self._kv = weight(self.hidden, 2 * model.width)
        self._up, self._down = weight(self.hidden, 2 * inner), weight(inner, self.hidden)
        self.inv_freq = 5e5 ** (-torch.arange(model.dim // 2, device=device) / (model.dim // 2))

    def run(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Run rows ``x [R, hidden]`` at ``positions`` through all layers and return the last row.

        Their keys and values enter the caches ``[L, H, N, D]``, over which they attend.
        """
        model = self.model

        def split(rows: Tensor) -> Tensor:
            return rows.view(rows.shape[0], -1, model.dim).transpose(0, 1)

        for layer in range(model.layers):
            normed = rms_norm(x, (self.hidden,))
            k, v = (normed @ self._kv).chunk(2, 1)
            keys[layer][:, positions] = rotate(split(k), positions, self.inv_freq)
            values[layer][:, positions] = split(v)
            q = rotate(split(normed @ self._q), positions, self.inv_freq)
            mixed = attend(q, keys[layer], values[layer], positions, model.dim**-0.5)
            x = x + mixed.transpose(0, 1).flatten(1) @ self._o
            gate, up = (rms_norm(x, (self.hidden,)) @ self._up).chunk(2, 1)
            x = x + (silu(gate) * up) @ self._down
        return x[-1]


def reuse(
    base_k: Tensor,
    base_v: Tensor,
    anchors_k: list[Matrix],
    anchors_v: list[Matrix],
    keys: Tensor,
    values: Tensor,
    inv_freq: Tensor,
) -> None:
    """Match a span against its anchors and write its corrected rows: everything a reuse hop does before it prefills."""
    cover = base_k.shape[2]
    weights_k, weights_v = (
        softmax_weights(token_l1(base, anchors, cover), 1.0)
        for base, anchors in ((base_k, anchors_k), (base_v, anchors_v))
    )
    deltas_k, deltas_v = (
        [(left[1:], None if right is None else right[1:]) for left, right in anchors]
        for anchors in (anchors_k, anchors_v)
    )
    correct(
        keys[:, :, :cover], values[:, :, :cover], base_k, base_v, deltas_k, deltas_v, weights_k, weights_v,
        start=0, inv_freq=inv_freq,
    )  # fmt: skip
