"""Random operands at the sizes of real models, and the operations that the bench and the GPU check run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.distance import span_l2, token_l1, token_l2
from kernels.factor import factorise
from kernels.lowrank import correct
from kernels.operand import Matrix
from kernels.rope import rotate


@dataclass(frozen=True)
class Model:
    """Sizes of a key-value cache."""

    layers: int
    heads: int
    dim: int

    @property
    def width(self) -> int:
        return self.heads * self.dim


MODELS = {"smollm2": Model(30, 3, 64), "llama31_8b": Model(32, 8, 128), "tiny": Model(3, 2, 16)}


@dataclass(frozen=True)
class Point:
    """One point of the sweep; ``dtype`` is that of the span and the cache, ``factor_dtype`` that of the anchors."""

    model: str
    tokens: int
    anchors: int
    rank: int
    dtype: str
    factor_dtype: str


@dataclass(frozen=True)
class Work:
    """An operation ready to run, with the bytes it must move and the FLOPs it must do."""

    name: str
    run: Callable[[], object]
    bytes_moved: int
    flops: int


@dataclass(frozen=True, eq=False)
class Span:
    """Random operands of one point."""

    keys: Tensor
    values: Tensor
    target: Tensor
    anchors_k: list[Matrix]
    anchors_v: list[Matrix]
    weights: Tensor
    inv_freq: Tensor


def operands(point: Point, device: torch.device) -> Span:
    model, data, factors = MODELS[point.model], getattr(torch, point.dtype), getattr(torch, point.factor_dtype)
    draw = torch.Generator(device).manual_seed(0)

    def random(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=draw, device=device, dtype=torch.float32).to(dtype)

    def pool() -> list[Matrix]:
        return [
            (
                random(model.layers, point.tokens, point.rank, dtype=factors),
                random(model.layers, point.rank, model.width, dtype=factors),
            )
            for _ in range(point.anchors)
        ]

    shape = (model.layers, model.heads, point.tokens, model.dim)
    return Span(
        random(*shape, dtype=data),
        random(*shape, dtype=data),
        torch.zeros(2, *shape, dtype=data, device=device),
        pool(),
        pool(),
        torch.softmax(random(point.anchors, point.tokens, dtype=torch.float32), 0),
        1e4 ** (-torch.arange(model.dim // 2, device=device) / (model.dim // 2)),
    )


def works(point: Point, span: Span) -> Iterator[Work]:
    """The operations of a point; matching means keys and values together."""
    model = MODELS[point.model]
    cells = model.layers * point.tokens * model.width
    data, factor = span.keys.element_size(), span.anchors_k[0][0].element_size()
    stored = model.layers * point.anchors * point.rank * (point.tokens + model.width) * factor
    products = 2 * cells * point.anchors * point.rank
    sketch = min(point.rank + 8, point.tokens, model.width)

    def drop(pool: list[Matrix]) -> list[Matrix]:
        return [(left[1:], None if right is None else right[1:]) for left, right in pool]

    deltas_k, deltas_v = drop(span.anchors_k), drop(span.anchors_v)
    positions = torch.arange(point.tokens, device=span.keys.device)

    def correction() -> None:
        correct(
            span.target[0], span.target[1], span.keys, span.values, deltas_k, deltas_v, span.weights, span.weights,
            start=17, inv_freq=span.inv_freq,
        )  # fmt: skip

    def both(measure: Callable[[Tensor, Sequence[Matrix], int], Tensor]) -> Callable[[], object]:
        return lambda: (
            measure(span.keys, span.anchors_k, point.tokens),
            measure(span.values, span.anchors_v, point.tokens),
        )

    share = (model.layers - 1) / model.layers
    flat = span.keys.transpose(1, 2).flatten(2)
    yield Work("rotate", lambda: rotate(span.keys, positions, span.inv_freq), 2 * cells * data, 6 * cells)
    yield Work("correct", correction, int(4 * cells * data + 2 * share * stored), int(2 * share * products))
    yield Work("token_l1", both(token_l1), 2 * (cells * data + stored), 2 * products)
    yield Work("token_l2", both(token_l2), 2 * (cells * data + stored), 2 * products)
    yield Work("span_l2", lambda: span_l2(span.values, span.anchors_v), cells * data + stored, products)
    yield Work("factorise", lambda: factorise(flat, point.rank, seed=0), 6 * cells * data, 12 * cells * sketch)


def bare(point: Point, device: torch.device) -> Work:
    """The matrix products of a correction: one per corrected layer for keys and for values, operands in place."""
    model = MODELS[point.model]
    dtype = torch.float32 if device.type == "cpu" else getattr(torch, point.factor_dtype)
    inner, count = point.anchors * point.rank, 2 * (model.layers - 1)
    left = torch.randn(point.tokens, inner, device=device).to(dtype)
    right = torch.randn(inner, model.width, device=device).to(dtype)
    out = torch.empty(point.tokens, model.width, device=device, dtype=dtype)

    def run() -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    return Work("products", run, 0, 2 * count * point.tokens * inner * model.width)
