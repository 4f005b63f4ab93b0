"""The transformers engine: one mixed forward over stock decoder layers serves every method.

At each layer some rows of the prompt run fresh; all other rows are already in the cache, reused. Fresh rows
are projected, rotated at their own positions, written over whatever the cache held, and attend to every
earlier row under the explicit mask ``kv_pos <= q_pos``. With all rows fresh this is an ordinary prefill and
takes the same attention kernel, so a dense hop equals the stock model bit for bit.

It does not batch sequences and does not sample: one request at a time, greedy.

What needs transformers is imported once a model is there: checking a configuration must not cost its loading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from harness.backends.hf_cache import RowCache
from harness.backends.hf_facts import ModelSource, choose_device
from harness.backends.hf_run import Decoding, Run
from harness.backends.hf_vision import Eye, MediaReader
from harness.clock import Clock, Stopwatch
from harness.fit import check_kernels, check_method
from harness.media import Media
from harness.records import MediaRecord
from harness.service import Served, Service
from kernels.dispatch import Implementation, using
from methods.ability import Ability
from methods.base import KV, Dense, Method, Plan, Reuse, Shape
from methods.segment import Prompt

if TYPE_CHECKING:
    from harness.backends.hf_forward import Forward


@dataclass
class HF:
    """Engine settings (its YAML) and, once a model is attached, the engine itself.

    Attributes:
        chunk: most rows of one forward; a longer dense prefill runs in chunks.
        block: most rows of one forward under an explicit mask, which cannot skip masked keys.
        kernels: implementation of the kernels, ``auto`` (Triton on CUDA, else torch), ``torch`` or ``triton``.
        poison: fill fresh caches with NaN, so that a read of an unset row shows (tests).
    """

    name: str = "hf"
    chunk: int = 4096
    block: int = 1024
    kernels: str = "auto"
    poison: bool = False
    offers: ClassVar[frozenset[Ability]] = frozenset(Ability)
    forward: Forward = field(init=False, repr=False, compare=False)
    eye: Eye | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.block < 1:
            raise ValueError(f"chunk and block must be at least 1, got {self.chunk} and {self.block}")
        if self.kernels not in tuple(Implementation):
            raise ValueError(f"kernels must be one of {', '.join(Implementation)}, got {self.kernels!r}")

    def attach(self, model: Any, shape: Shape, reader: MediaReader | None = None) -> HF:
        """Take a loaded causal language model, with the reader of its media if it sees; returns self. The model is put
        into eval mode."""
        from harness.backends.hf_forward import Forward

        self.shape = shape
        self.clock = Clock(shape.device)
        self.eye = None if reader is None else Eye(model, reader, self.clock)
        self.forward = Forward(model.eval(), shape, self.eye, self.chunk, self.block)
        return self

    @contextmanager
    def showing(self, media: Sequence[Media]) -> Iterator[list[MediaRecord]]:
        """Inside, prompts may hold rows of ``media``, which are decoded here and seen when a row is first needed.

        Raises:
            ValueError: the model reads text only.
            UserError: a medium cannot be decoded.
        """
        if self.eye is None:
            if media:
                raise ValueError("the model reads text only, it cannot be shown pictures or clips")
            yield []
        else:
            with self.eye.showing(media) as records:
                yield records

    def check(self, source: ModelSource, method: Method, label: str, seed: int) -> Served:
        """See :class:`harness.service.Server`: every method runs here, if its options fit the model."""
        facts = source.facts()
        check_kernels(self.kernels, choose_device(source.device))
        check_method(method, label, source.name, facts, seed)
        return Served(facts.context, facts.vocab, source.tokenizer())

    @contextmanager
    def serve(self, source: ModelSource, method: Method, label: str, seed: int) -> Iterator[Service]:
        """One call at a time, see :class:`harness.backends.hf_service.HFService`."""
        from harness.backends.hf_rope import shape_of
        from harness.backends.hf_service import HFService  # which runs hops on this engine

        loaded = source.load()
        self.attach(loaded.model, shape_of(loaded.model), loaded.reader)
        with using(self.kernels):
            yield HFService(self, loaded, method, seed)

    @torch.no_grad()
    def encode(self, ids: Sequence[int]) -> KV:
        """Context-free keys and values of ``ids`` at positions 0, 1, ...; no logits are computed."""
        cache = RowCache(self.shape, len(ids), poison=self.poison)
        self.forward.whole(cache, self.forward.ids(ids), {})
        return KV(cache.keys, cache.values, 0)

    @torch.no_grad()
    def run(self, prompt: Prompt, plan: Plan, decoding: Decoding, captures: frozenset[int] = frozenset()) -> Run:
        """Prefill ``prompt`` as ``plan`` says, then decode greedily.

        Raises:
            ValueError: if the plan's rows do not fit the prompt.
        """
        watch, count = Stopwatch(self.clock), len(prompt)
        ids = self.forward.ids(prompt.ids)
        size = (count + decoding.max_new_tokens, self.shape.hidden)
        hiddens = {
            layer: torch.full(size, torch.nan, dtype=self.shape.dtype, device=self.shape.device) for layer in captures
        }
        with watch.phase("assemble"):
            cache = RowCache(self.shape, count + decoding.max_new_tokens, poison=self.poison)
            view = self.forward.write(cache, prompt, plan) if isinstance(plan, Reuse) else None
        with watch.phase("prefill"):
            if view is None:
                last, fresh = self.forward.whole(cache, ids, hiddens), [count] * self.shape.layers
            else:
                assert isinstance(plan, Reuse)
                last, fresh = self.forward.mixed(cache, ids, plan, view, hiddens)
            logits = self.forward.logits(last)
            first = int(logits.argmax())
        first_token_at = self.clock.now()
        with watch.phase("decode"):
            output, choices = self.forward.decode(cache, first, count, decoding, hiddens)
        exact = isinstance(plan, Dense) or plan.exact
        replay = partial(self.forward.attention, self.forward.ids((*prompt.ids, *output)))
        ids_out, own = tuple(output), tuple(choices)
        return Run(count, ids_out, own, tuple(fresh), exact, logits, cache, hiddens, watch, first_token_at, replay)
