"""The transformers engine: one mixed forward over stock decoder layers serves every method.

At each layer some rows of the prompt run fresh; all other rows are already in the cache, reused. Fresh rows
are projected, rotated at their own positions, written over whatever the cache held, and attend to every
earlier row under the explicit mask ``kv_pos <= q_pos``. With all rows fresh this is an ordinary prefill and
takes the same attention kernel, so a dense hop equals the stock model bit for bit.

It does not batch sequences and does not sample: one request at a time, greedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.backends.hf_attention import install
from harness.backends.hf_cache import RowCache
from harness.backends.hf_facts import ModelSource, choose_device
from harness.backends.hf_place import Place
from harness.backends.hf_rope import shape_of
from harness.backends.hf_run import Decoding, Run
from harness.backends.hf_vision import Eye, MediaReader
from harness.clock import Clock, Stopwatch
from harness.fit import check_kernels, check_method
from harness.media import Media
from harness.records import MediaRecord
from harness.service import Served, Service
from kernels.dispatch import Implementation, using
from methods.ability import Ability
from methods.base import KV, Dense, FreshRows, Method, Plan, Reuse, RowView, Shape
from methods.segment import Prompt


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
    model: Any = field(default=None, init=False, repr=False, compare=False)
    eye: Eye | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.block < 1:
            raise ValueError(f"chunk and block must be at least 1, got {self.chunk} and {self.block}")
        if self.kernels not in tuple(Implementation):
            raise ValueError(f"kernels must be one of {', '.join(Implementation)}, got {self.kernels!r}")

    def attach(self, model: Any, shape: Shape, reader: MediaReader | None = None) -> HF:
        """Take a loaded causal language model, with the reader of its media if it sees; returns self. The model is put
        into eval mode."""
        self.model = model.eval()
        self.shape = shape
        self.clock = Clock(shape.device)
        install(model)
        inner = model.model
        self.decoder = getattr(inner, "language_model", inner)
        self.eye = None if reader is None else Eye(self.model, reader, self.clock)
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
        from harness.backends.hf_service import HFService  # which runs hops on this engine

        loaded = source.load()
        self.attach(loaded.model, shape_of(loaded.model), loaded.reader)
        with using(self.kernels):
            yield HFService(self, loaded, method, seed)

    @torch.no_grad()
    def encode(self, ids: Sequence[int]) -> KV:
        """Context-free keys and values of ``ids`` at positions 0, 1, ...; no logits are computed."""
        cache = RowCache(self.shape, len(ids), poison=self.poison)
        self._prefill_all(cache, self._ids(ids), {})
        return KV(cache.keys, cache.values, 0)

    @torch.no_grad()
    def run(self, prompt: Prompt, plan: Plan, decoding: Decoding, captures: frozenset[int] = frozenset()) -> Run:
        """Prefill ``prompt`` as ``plan`` says, then decode greedily.

        Raises:
            ValueError: if the plan's rows do not fit the prompt.
        """
        watch, count = Stopwatch(self.clock), len(prompt)
        ids = self._ids(prompt.ids)
        size = (count + decoding.max_new_tokens, self.shape.hidden)
        hiddens = {
            layer: torch.full(size, torch.nan, dtype=self.shape.dtype, device=self.shape.device) for layer in captures
        }
        with watch.phase("assemble"):
            cache = RowCache(self.shape, count + decoding.max_new_tokens, poison=self.poison)
            view = self._place(cache, prompt, plan) if isinstance(plan, Reuse) else None
        with watch.phase("prefill"):
            if view is None:
                last, fresh = self._prefill_all(cache, ids, hiddens), [count] * self.shape.layers
            else:
                assert isinstance(plan, Reuse)
                last, fresh = self._prefill_mixed(cache, ids, plan, view, hiddens)
            logits = self._logits(last)
            first = int(logits.argmax())
        first_token_at = self.clock.now()
        with watch.phase("decode"):
            output, choices = self._decode(cache, first, count, decoding, hiddens)
        exact = isinstance(plan, Dense) or plan.exact
        replay = partial(self._attention, self._ids((*prompt.ids, *output)))
        ids_out, own = tuple(output), tuple(choices)
        return Run(count, ids_out, own, tuple(fresh), exact, logits, cache, hiddens, watch, first_token_at, replay)

    def _embed(self, ids: Tensor) -> Tensor:
        """``[R]`` ids -> ``[1, R, hidden]``, what their rows enter layer 0 with."""
        words = self.decoder.embed_tokens
        rows: Tensor = words(ids) if self.eye is None else self.eye.embed(ids, words)
        return rows[None]

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.shape.device)

    def _place(self, cache: RowCache, prompt: Prompt, plan: Reuse) -> RowView:
        """Write the reused rows; say which rows are left to compute."""
        covered = torch.zeros(len(prompt), dtype=torch.bool)
        reused: dict[int, Tensor] = {}
        for index, rows in plan.rows.items():
            at = prompt.placed[index]
            if len(rows) != len(at):
                raise ValueError(f"plan has {len(rows)} rows for segment {index}, which has {len(at)} tokens")
            if not len(at):
                continue
            rows.write(
                cache.keys[:, :, at.start : at.stop], cache.values[:, :, at.start : at.stop], at.start, self.shape.rope
            )
            covered[at.start : at.stop] = True
            reused[index] = torch.arange(at.start, at.stop, device=self.shape.device)
        covered[-1] = False  # the last row always runs: it gives the logits
        fresh = (~covered).nonzero()[:, 0].to(self.shape.device)
        return RowView(fresh, reused, len(prompt))

    def _prefill_all(self, cache: RowCache, ids: Tensor, hiddens: dict[int, Tensor]) -> Tensor:
        """Every row at every layer, in chunks; returns the final hidden state of the last row ``[hidden]``."""
        everything = torch.arange(len(ids), device=ids.device)
        return self._prefill_fresh(cache, ids, everything, self.chunk, hiddens)

    def _prefill_fresh(
        self, cache: RowCache, ids: Tensor, rows: Tensor, size: int, hiddens: dict[int, Tensor]
    ) -> Tensor:
        """Sorted ``rows`` through all layers, in blocks: a block sees what earlier blocks wrote."""
        for begin in range(0, len(rows), size):
            block = rows[begin : begin + size]
            hidden = self._embed(ids[block])
            place = Place(self.decoder, self.shape, cache, block, int(block[-1]) + 1, hidden)
            for layer in range(self.shape.layers):
                if layer in hiddens:
                    hiddens[layer][block] = hidden[0]
                hidden = place.through(layer, hidden)
        last: Tensor = hidden[0, -1]
        return last

    def _prefill_mixed(
        self, cache: RowCache, ids: Tensor, plan: Reuse, view: RowView, hiddens: dict[int, Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Rows run as the schedule says; returns the last row's final hidden state and rows run per layer."""
        schedule = plan.schedule
        if isinstance(schedule, FreshRows):
            last = self._prefill_fresh(cache, ids, view.fresh, self.block, hiddens)
            return last, [len(view.fresh)] * self.shape.layers
        rows = _union(schedule.first_rows(view), view.fresh)
        hidden = self._embed(ids[rows])
        place = Place(self.decoder, self.shape, cache, rows, view.total, hidden)
        counts: list[int] = []
        for layer in range(self.shape.layers):
            probe = place.probe(layer, hidden) if schedule.probes(layer) else None
            chosen = schedule.select(layer, view, rows, probe)
            if chosen.shift is not None:
                cache.add(layer, chosen.shift)
            if probe is not None and chosen.write is not None:
                place.write_back(probe, chosen.write)
            kept = _union(chosen.keep, view.fresh)
            if chosen.enter is not None:
                rows, hidden = _merge(rows, hidden, *chosen.enter)
            if not torch.equal(kept, rows):
                index = torch.searchsorted(rows, kept)
                if not torch.equal(rows[index.clamp(max=len(rows) - 1)], kept):
                    raise ValueError(f"the schedule keeps rows at layer {layer} that carry no hidden state")
                rows, hidden = kept, hidden[:, index]
            if rows is not place.rows:
                place = Place(self.decoder, self.shape, cache, rows, view.total, hidden)
            if layer in hiddens:
                hiddens[layer][rows] = hidden[0]
            counts.append(len(rows))
            hidden = place.through(layer, hidden)
        return hidden[0, -1], counts

    def _logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits ``[V]`` of one final hidden state ``[hidden]``."""
        out: Tensor = self.model.lm_head(self.decoder.norm(hidden[None, None]))[0, 0]
        return out.float()

    def _decode(
        self, cache: RowCache, first: int, start: int, decoding: Decoding, hiddens: dict[int, Tensor]
    ) -> tuple[list[int], list[int]]:
        """Ids fed, and the model's own choices, which are the same unless decoding is forced."""
        forced, choices = decoding.forced, [first]
        output = [first if forced is None else forced[0]]
        limit = decoding.max_new_tokens if forced is None else len(forced)
        while len(output) < limit and not (forced is None and output[-1] in decoding.stop_ids):
            row = torch.tensor([start + len(output) - 1], device=self.shape.device)
            hidden = self.decoder.embed_tokens(self._ids(output[-1:]))[None]
            place = Place(self.decoder, self.shape, cache, row, int(row) + 1, hidden)
            for layer in range(self.shape.layers):
                if layer in hiddens:
                    hiddens[layer][row] = hidden[0]
                hidden = place.through(layer, hidden)
            choices.append(int(self._logits(hidden[0, -1]).argmax()))
            output.append(choices[-1] if forced is None else forced[len(output)])
        return output, choices

    @torch.no_grad()
    def _attention(self, ids: Tensor, cache: RowCache, start: int, stop: int, layers: Collection[int]) -> Tensor:
        """:meth:`methods.base.Executed.attention` of a finished hop whose prompt and output are ``ids``."""
        received = torch.zeros(stop, dtype=torch.float32, device=self.shape.device)
        if start == stop or not layers:
            return received
        rows, own = torch.arange(start, stop, device=self.shape.device), cache.kv(start, stop)
        hidden = self._embed(ids[start:stop])
        place = Place(self.decoder, self.shape, cache, rows, stop, hidden)
        for layer in range(max(layers) + 1):
            if layer in layers:
                received += place.attention(layer, hidden)
            if layer < max(layers):
                hidden = place.through(layer, hidden)
        cache.keys[:, :, start:stop], cache.values[:, :, start:stop] = own.k, own.v
        return received


def _union(a: Tensor, b: Tensor) -> Tensor:
    """Sorted union of two sorted index tensors; ``a`` itself when it already contains ``b``."""
    both: Tensor = torch.unique(torch.cat((a, b)))  # sorted
    return a if len(both) == len(a) else both


def _merge(rows: Tensor, hidden: Tensor, new_rows: Tensor, new_hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Insert rows with hidden states ``[R, hidden]``; a row already present keeps its current state."""
    absent = ~torch.isin(new_rows, rows)
    rows = torch.cat((rows, new_rows[absent]))
    order = rows.argsort()
    hidden = torch.cat((hidden, new_hidden[absent][None].to(hidden.dtype)), dim=1)
    return rows[order], hidden[:, order]
