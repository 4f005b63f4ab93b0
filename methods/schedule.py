"""Which rows of a prompt run fresh at which layer, for methods that recompute some of what they reuse.

Shapes: H key/value heads, D head dimension, N prompt tokens, R rows that are current.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RowView:
    """What a row schedule may look at; all index tensors are int64 ``[*]`` on the engine's device.

    Attributes:
        fresh: rows no reused segment covers (and always the last row).
        reused: by segment index, the rows of each reused segment.
        total: N.
    """

    fresh: Tensor
    reused: Mapping[int, Tensor]
    total: int


def _blind(rows: Tensor) -> Tensor:
    raise ValueError("this engine does not show attention")


@dataclass(frozen=True, eq=False)
class Probe:
    """Keys (rotated, at their positions) and values of one layer, ``[H, R, D]`` each, for the R current rows:
    as just computed (fresh) and as the cache held them before (reused; NaN where nothing was reused).

    Attributes:
        received: for some of the current rows (sorted, as queries), the attention that every row of the prompt
            gets from them at this layer: probabilities under the causal mask, summed over query heads and query
            rows, fp32 ``[N]``. Keys are the fresh ones of the current rows and the held ones elsewhere. Queries
            are projected when it is called, so that a schedule that does not ask pays nothing.
    """

    layer: int
    rows: Tensor
    fresh_k: Tensor
    fresh_v: Tensor
    reused_k: Tensor
    reused_v: Tensor
    received: Callable[[Tensor], Tensor] = _blind


@dataclass(frozen=True, eq=False)
class Shift:
    """What is added to reused rows at one layer: ``rows`` int64 ``[P]``, ``keys`` (rotated, at the rows' positions)
    and ``values`` ``[H, P, D]``."""

    rows: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Selection:
    """Which rows run a layer.

    Attributes:
        keep: sorted absolute rows that run attention and MLP of this layer; a subset of the current rows
            united with ``enter``. Fresh rows and the last row are added by the engine.
        write: rows, probed but not kept, whose fresh keys and values still replace the reused ones.
        enter: rows that join here with their hidden states ``[R, hidden]`` (the input of this layer).
        shift: added, before the layer runs, to the keys and values that reused rows hold at this layer; rows
            that are kept or written take their fresh ones instead.
    """

    keep: Tensor
    write: Tensor | None = None
    enter: tuple[Tensor, Tensor] | None = None
    shift: Shift | None = None


class RowSchedule(Protocol):
    """Which rows run fresh at which layer; a pure function of what the engine has shown it in this hop.

    The engine goes through the layers once, in order, so a schedule may remember what an earlier layer showed.
    """

    def first_rows(self, view: RowView) -> Tensor:
        """Rows that enter layer 0 from their embeddings."""

    def probes(self, layer: int) -> bool:
        """Whether :meth:`select` wants the current rows' fresh keys and values at this layer."""

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection: ...


@dataclass(frozen=True)
class FreshRows:
    """The trivial schedule: rows outside reused segments run all layers, nothing else runs at all."""

    def first_rows(self, view: RowView) -> Tensor:
        return view.fresh

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)
