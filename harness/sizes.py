"""How large a model is: from its own files where they are, else from what its publisher says."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec
import torch

from harness.errors import UserError
from harness.footprint import sizes_only
from methods.base import Shape


class ModelSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes L, H, D and the model width, and the number of weights (0 if unknown)."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    parameters: int

    def shape(self, dtype: torch.dtype) -> Shape:
        return sizes_only(self.layers, self.kv_heads, self.head_dim, self.hidden, dtype)

    def weight_bytes(self, dtype: torch.dtype) -> int:
        return self.parameters * dtype.itemsize


def published() -> dict[str, ModelSize]:
    """By name in ``conf/model``, the sizes of models whose files nobody needs for a calculation."""
    data = (resources.files("harness") / "data" / "model_sizes.json").read_bytes()
    return {size.name: size for size in msgspec.json.decode(data, type=list[ModelSize])}


def size_of(source: Any, name: str) -> ModelSize:
    """The size of the model source ``source``, which ``conf/model`` calls ``name``.

    Raises:
        UserError: as the source does, if neither its files nor published sizes are there.
    """
    known = published()
    try:
        facts = source.facts()
    except UserError:
        if name not in known:
            raise
        return known[name]
    sizes = (facts.layers, facts.kv_heads, facts.head_dim, facts.hidden)
    weights = sum(p.numel() for p in source.load().model.parameters())
    return ModelSize(name, *sizes, weights)
