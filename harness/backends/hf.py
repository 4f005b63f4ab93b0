"""The transformers engine: one mixed forward over stock decoder layers serves every method.

At each layer some rows of the prompt run fresh; all other rows are already in the cache, reused. Fresh rows
are projected, rotated at their own positions, written over whatever the cache held, and attend to every
earlier row under the explicit mask ``kv_pos <= q_pos``. With all rows fresh this is an ordinary prefill and
takes the same attention kernel, so a dense hop equals the stock model bit for bit.

It does not batch sequences and does not sample: one request at a time, greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.backends.hf_attention import install
from harness.backends.hf_cache import RowCache, as_slice
from harness.clock import Clock, Stopwatch
from methods.base import KV, Dense, FreshRows, Plan, Probe, Reuse, RowView, Shape
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Run:
    """What one hop did; see :class:`methods.base.Executed`.

    Attributes:
        seconds: duration of ``assemble``, ``prefill`` and ``decode``.
        first_token_at: reading of the clock when the first token was known.
    """

    prompt_tokens: int
    output_ids: tuple[int, ...]
    fresh_rows: tuple[int, ...]
    dense: bool
    logits: Tensor
    cache: RowCache
    hiddens: dict[int, Tensor]
    seconds: Stopwatch
    first_token_at: float

    def kv(self, start: int, stop: int) -> KV:
        held = self.prompt_tokens + max(len(self.output_ids) - 1, 0)
        if not 0 <= start <= stop <= held:
            raise ValueError(f"rows [{start}, {stop}) are not held: the cache has {held} rows")
        return self.cache.kv(start, stop)

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        return self.hiddens[layer][start:stop]


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


@dataclass
class HF:
    """Engine settings (its YAML) and, once a model is attached, the engine itself.

    Attributes:
        chunk: most rows of one forward; a longer dense prefill runs in chunks.
        block: most rows of one forward under an explicit mask, which cannot skip masked keys.
        poison: fill fresh caches with NaN, so that a read of an unset row shows (tests).
    """

    name: str = "hf"
    chunk: int = 4096
    block: int = 1024
    poison: bool = False
    model: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.block < 1:
            raise ValueError(f"chunk and block must be at least 1, got {self.chunk} and {self.block}")

    def attach(self, model: Any, shape: Shape) -> HF:
        """Take a loaded causal language model; returns self. The model is put into eval mode."""
        self.model = model.eval()
        self.shape = shape
        self.clock = Clock(shape.device)
        install(model)
        inner = model.model
        self.decoder = getattr(inner, "language_model", inner)
        return self

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
        hiddens = {
            layer: torch.full((count, self.shape.hidden), torch.nan, dtype=self.shape.dtype, device=self.shape.device)
            for layer in captures
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
            token = self._pick(logits, decoding, 0)
        first_token_at = self.clock.now()
        with watch.phase("decode"):
            output = self._decode(cache, token, count, decoding)
        exact = isinstance(plan, Dense) or plan.exact
        return Run(count, tuple(output), tuple(fresh), exact, logits, cache, hiddens, watch, first_token_at)

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
            hidden = self.decoder.embed_tokens(ids[block])[None]
            place = _Place(self, cache, block, int(block[-1]) + 1, hidden)
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
        hidden = self.decoder.embed_tokens(ids[rows])[None]
        place = _Place(self, cache, rows, view.total, hidden)
        counts: list[int] = []
        for layer in range(self.shape.layers):
            probe = place.probe(layer, hidden) if schedule.probes(layer) else None
            chosen = schedule.select(layer, view, rows, probe)
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
                place = _Place(self, cache, rows, view.total, hidden)
            if layer in hiddens:
                hiddens[layer][rows] = hidden[0]
            counts.append(len(rows))
            hidden = place.through(layer, hidden)
        return hidden[0, -1], counts

    def _logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits ``[V]`` of one final hidden state ``[hidden]``."""
        out: Tensor = self.model.lm_head(self.decoder.norm(hidden[None, None]))[0, 0]
        return out.float()

    def _pick(self, logits: Tensor, decoding: Decoding, step: int) -> int:
        if decoding.forced is not None:
            return decoding.forced[step]
        return int(logits.argmax())

    def _decode(self, cache: RowCache, token: int, start: int, decoding: Decoding) -> list[int]:
        output = [token]
        limit = decoding.max_new_tokens if decoding.forced is None else len(decoding.forced)
        while len(output) < limit and not (decoding.forced is None and output[-1] in decoding.stop_ids):
            row = torch.tensor([start + len(output) - 1], device=self.shape.device)
            hidden = self.decoder.embed_tokens(self._ids(output[-1:]))[None]
            place = _Place(self, cache, row, int(row) + 1, hidden)
            for layer in range(self.shape.layers):
                hidden = place.through(layer, hidden)
            output.append(self._pick(self._logits(hidden[0, -1]), decoding, len(output)))
        return output


class _Place:
    """Where a set of rows stands: positions and rotary tables, shared by all layers they run."""

    def __init__(self, engine: HF, cache: RowCache, rows: Tensor, stop: int, hidden: Tensor) -> None:
        self.engine, self.cache, self.rows, self.stop = engine, cache, rows, stop
        self.position_ids = rows[None]
        self.rotary = engine.decoder.rotary_emb(hidden, position_ids=self.position_ids)
        self.where = as_slice(rows)
        leading = self.where == slice(0, stop)
        single = len(rows) == 1 and int(rows[0]) == stop - 1
        # Where the kernel's own causal flag is exact it is also faster; anywhere else it would be wrong.
        self.q_pos = None if leading or single else rows

    def through(self, layer: int, hidden: Tensor) -> Tensor:
        """One stock decoder layer on ``[1, R, hidden]``."""
        self.cache.select(self.rows if self.where is None else self.where, self.stop)
        forward: Callable[..., Tensor] = self.engine.decoder.layers[layer]
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
        shape, block = self.engine.shape, self.engine.decoder.layers[layer]
        attention, normed = block.self_attn, block.input_layernorm(hidden[0])
        size = (len(self.rows), shape.kv_heads, shape.head_dim)
        keys = attention.k_proj(normed).view(size)
        if hasattr(attention, "k_norm"):
            keys = attention.k_norm(keys)
        fresh_k = shape.rope.apply(keys.transpose(0, 1), self.rows)
        fresh_v = attention.v_proj(normed).view(size).transpose(0, 1)
        reused_k, reused_v = self.cache.keys[layer][:, self.rows], self.cache.values[layer][:, self.rows]
        return Probe(layer, self.rows, fresh_k, fresh_v, reused_k, reused_v)

    def write_back(self, probe: Probe, rows: Tensor) -> None:
        """Replace the reused keys and values of probed ``rows`` at the probe's layer by the fresh ones."""
        index = torch.searchsorted(probe.rows, rows)
        self.cache.keys[probe.layer].index_copy_(1, rows, probe.fresh_k[:, index].to(self.cache.keys.dtype))
        self.cache.values[probe.layer].index_copy_(1, rows, probe.fresh_v[:, index].to(self.cache.values.dtype))


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
