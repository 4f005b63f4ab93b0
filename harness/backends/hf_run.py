"""A hop of the transformers engine: how it decodes, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import Tensor

from harness.backends.hf_cache import RowCache
from harness.clock import Stopwatch
from methods.base import KV


@dataclass(frozen=True, eq=False)
class Run:
    """What one hop did; see :class:`methods.base.Executed`.

    Attributes:
        choices: the model's own greedy choice at every step; other than ``output_ids`` where those were forced.
        seconds: duration of ``assemble``, ``prefill`` and ``decode``.
        first_token_at: reading of the clock when the first token was known.
    """

    prompt_tokens: int
    output_ids: tuple[int, ...]
    choices: tuple[int, ...]
    fresh_rows: tuple[int, ...]
    dense: bool
    logits: Tensor
    cache: RowCache
    hiddens: dict[int, Tensor]
    seconds: Stopwatch
    first_token_at: float
    replay: Callable[[RowCache, int, int, Collection[int]], Tensor]

    @property
    def held(self) -> int:
        """Rows in the cache: the prompt's and all generated ones but the last, which was never fed back."""
        return self.prompt_tokens + max(len(self.output_ids) - 1, 0)

    def kv(self, start: int, stop: int) -> KV:
        self._check(start, stop)
        return self.cache.kv(start, stop)

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        self._check(start, stop)
        return self.hiddens[layer][start:stop].clone()

    def attention(self, start: int, stop: int, layers: Collection[int]) -> Tensor:
        self._check(start, stop)
        return self.replay(self.cache, start, stop, layers)

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.held:
            raise ValueError(f"rows [{start}, {stop}) are not held: the cache has {self.held} rows")


@dataclass(frozen=True)
class Decoding:
    """Greedy decoding: stop after ``max_new_tokens`` or at one of ``stop_ids`` (kept in the output).

    Attributes:
        forced: when given, these ids are fed instead of the model's own choices (teacher forcing).
    """

    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    forced: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.forced is not None and not 0 < len(self.forced) <= self.max_new_tokens:
            raise ValueError(f"forced must hold 1 to {self.max_new_tokens} ids, got {len(self.forced)}")
