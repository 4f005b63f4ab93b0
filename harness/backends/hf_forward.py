"""Rows of a prompt through stock decoder layers: all of them, the fresh ones, or as a schedule says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.backends.hf_attention import install
from harness.backends.hf_cache import RowCache
from harness.backends.hf_place import Place
from harness.backends.hf_run import Decoding
from harness.backends.hf_vision import Eye
from methods.base import FreshRows, Reuse, RowView, Shape
from methods.segment import Prompt


@dataclass(frozen=True)
class Forward:
    """Forward passes of one model, whose attention is replaced by :func:`harness.backends.hf_attention.rows_attention`.

    Attributes:
        model: a causal language model of transformers.
        eye: what its pictures and clips enter layer 0 with; None if it reads text only.
        chunk, block: most rows of one forward, without and with an explicit mask.
    """

    model: Any
    shape: Shape
    eye: Eye | None
    chunk: int
    block: int

    def __post_init__(self) -> None:
        install(self.model)

    @cached_property
    def decoder(self) -> Any:
        """The part of the model that reads text."""
        inner = self.model.model
        return getattr(inner, "language_model", inner)

    def _embed(self, ids: Tensor) -> Tensor:
        """``[R]`` ids -> ``[1, R, hidden]``, what their rows enter layer 0 with."""
        words = self.decoder.embed_tokens
        rows: Tensor = words(ids) if self.eye is None else self.eye.embed(ids, words)
        return rows[None]

    def ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.shape.device)

    def write(self, cache: RowCache, prompt: Prompt, plan: Reuse) -> RowView:
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

    def whole(self, cache: RowCache, ids: Tensor, hiddens: dict[int, Tensor]) -> Tensor:
        """Every row at every layer, in chunks; returns the final hidden state of the last row ``[hidden]``."""
        everything = torch.arange(len(ids), device=ids.device)
        return self._fresh(cache, ids, everything, self.chunk, hiddens)

    def _fresh(self, cache: RowCache, ids: Tensor, rows: Tensor, size: int, hiddens: dict[int, Tensor]) -> Tensor:
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

    def mixed(
        self, cache: RowCache, ids: Tensor, plan: Reuse, view: RowView, hiddens: dict[int, Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Rows run as the schedule says; returns the last row's final hidden state and rows run per layer."""
        schedule = plan.schedule
        if isinstance(schedule, FreshRows):
            last = self._fresh(cache, ids, view.fresh, self.block, hiddens)
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

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits ``[V]`` of one final hidden state ``[hidden]``."""
        out: Tensor = self.model.lm_head(self.decoder.norm(hidden[None, None]))[0, 0]
        return out.float()

    def decode(
        self, cache: RowCache, first: int, start: int, decoding: Decoding, hiddens: dict[int, Tensor]
    ) -> tuple[list[int], list[int]]:
        """Ids fed, and the model's own choices, which are the same unless decoding is forced."""
        forced, choices = decoding.forced, [first]
        output = [first if forced is None else forced[0]]
        limit = decoding.max_new_tokens if forced is None else len(forced)
        while len(output) < limit and not (forced is None and output[-1] in decoding.stop_ids):
            row = torch.tensor([start + len(output) - 1], device=self.shape.device)
            hidden = self.decoder.embed_tokens(self.ids(output[-1:]))[None]
            place = Place(self.decoder, self.shape, cache, row, int(row) + 1, hidden)
            for layer in range(self.shape.layers):
                if layer in hiddens:
                    hiddens[layer][row] = hidden[0]
                hidden = place.through(layer, hidden)
            choices.append(int(self.logits(hidden[0, -1]).argmax()))
            output.append(choices[-1] if forced is None else forced[len(output)])
        return output, choices

    @torch.no_grad()
    def attention(self, ids: Tensor, cache: RowCache, start: int, stop: int, layers: Collection[int]) -> Tensor:
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
