"""What methods share that place upstream caches and mend some of their rows: sources, role prompts, the way in.

A mended row joins the forward at a layer, from its embedding (layer 0) or from the layer input that the source's hop
computed for it, and its fresh keys and values replace the relayed ones from that layer on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Executed, Hop, RowView, Selection, Shape, Snapshot, Source, StateBytes
from methods.prefix import RolePrefixes
from methods.recompute import union


@dataclass(frozen=True, eq=False)
class Entry:
    """Where rows of relayed spans join.

    Attributes:
        layer: 0 takes embeddings.
        segments: indices of the relayed spans, in prompt order; n is the number of their rows.
        hidden: the layer's input for these rows, ``[n, hidden]``; None at layer 0.
        chosen: bool ``[n]``, the rows that join; None for all.
    """

    layer: int
    segments: tuple[int, ...]
    hidden: Tensor | None
    chosen: Tensor | None = None

    @classmethod
    def of(cls, layer: int, sources: Mapping[int, Source], chosen: Tensor | None = None) -> Entry:
        """The entry of spans given by segment index.

        Raises:
            ValueError: if a source carries no hidden states of ``layer``.
        """
        order = tuple(sorted(sources))
        if layer == 0:
            return cls(layer, order, None, chosen)
        for index in order:
            if layer not in sources[index].hidden:
                raise ValueError(f"the cache of segment {index} comes without hidden states of layer {layer}")
        return cls(layer, order, torch.cat([sources[i].hidden[layer] for i in order]), chosen)

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states that were shipped."""
        if self.hidden is None:
            return 0
        rows = len(self.hidden) if self.chosen is None else int(self.chosen.sum())
        return rows * self.hidden.shape[1] * self.hidden.element_size()

    def spans(self, view: RowView) -> Tensor:
        """All rows of the spans, int64 ``[n]``."""
        return torch.cat([view.reused[i] for i in self.segments])

    def first_rows(self, view: RowView) -> Tensor:
        """Rows that run layer 0."""
        return view.fresh if self.layer else union(view.fresh, self._joining(view))

    def selection(self, view: RowView, current: Tensor) -> Selection:
        """What runs the entry layer: the current rows and those that join."""
        if self.hidden is None:
            return Selection(current)
        rows = self._joining(view)
        return Selection(union(current, rows), enter=(rows, self._picked(self.hidden)))

    def _joining(self, view: RowView) -> Tensor:
        return self._picked(self.spans(view))

    def _picked(self, rows: Tensor) -> Tensor:
        return rows if self.chosen is None else rows[self.chosen]


class Relayed:
    """Role prompts, and whatever else such methods do alike; they keep nothing else between requests."""

    role_cache: bool
    _prefixes: RolePrefixes

    def bind(self, shape: Shape, seed: int) -> None:
        self._prefixes = RolePrefixes(device=shape.device)

    def relayed(self, hop: Hop, sources: Mapping[str, Source]) -> dict[int, Source]:
        """By segment index, where each shared span of the hop comes from; spans nobody holds are absent."""
        places = [(p.index, p.span.id) for p in hop.prompt.shared() if p.span is not None]
        return {index: sources[name] for index, name in places if name in sources}

    def observe(self, hop: Hop, executed: Executed) -> None:
        if self.role_cache:
            self._prefixes.learn(hop, executed)

    def end(self, trajectory: str) -> None:
        self._prefixes.end(trajectory)

    def state_bytes(self) -> StateBytes:
        return StateBytes(base=self._prefixes.nbytes)

    def snapshot(self) -> Snapshot | None:
        return self._prefixes.dump() if self.role_cache else None

    def restore(self, snapshot: Snapshot) -> None:
        self._prefixes.load(snapshot)
