"""Profile of layers by how far relayed rows are from a reader's own (RelayCaching, arXiv 2603.13289).

The paper measures, per layer, the similarity between decode-phase caches and a full prefill, and how well one layer's
ranking of tokens by deviation predicts the others'. The thresholds that turn it into layers are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from methods.base import Executed, Hop, Plan, Shape
from methods.profile import Findings, Trial
from methods.relaycaching import deviation

SIMILAR = 0.98
"""A layer whose mean value cosine is below this is recomputed."""
MEANINGFUL = 3
"""Fewest tokens that have a ranking."""


class RangeProfiler:
    """Compares the relayed rows of every span with the dense rows of the reader, keys de-rotated."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._tokens = 0
        self._values = np.zeros(shape.layers)
        self._keys = np.zeros(shape.layers)
        self._correlations: list[NDArray[np.float64]] = []

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    def look(self, hop: Hop, dense: Executed, attempt: Callable[[Plan], Trial]) -> None:
        for place in hop.prompt.shared():
            if place.span is None or place.span.id not in hop.sources:
                continue
            relayed = hop.sources[place.span.id].kv.derotated(self.shape.rope)
            true = dense.kv(place.start, place.stop).derotated(self.shape.rope)
            values = deviation(relayed.v, true.v).double().cpu().numpy()  # [L, T]
            self._tokens += len(place)
            self._values += values.sum(1)
            self._keys += deviation(relayed.k, true.k).double().cpu().numpy().sum(1)
            if len(place) >= MEANINGFUL:
                self._correlations.append(spearman(values))

    def findings(self) -> Findings:
        """start is the first layer whose mean value cosine is below 0.98, end the last such; detect is the layer after
        start, within the first third of the range, whose ranking correlates best with deeper layers of the range. If
        no layer is below, the least similar one stands for the range.
        """
        if not self._tokens:
            raise ValueError("no hop read the cache of an earlier one, so that there is nothing to profile")
        cosine_v, cosine_k = 1 - self._values / self._tokens, 1 - self._keys / self._tokens
        size = (self.shape.layers, self.shape.layers)
        correlation = np.mean(self._correlations, axis=0) if self._correlations else np.zeros(size)
        low = np.flatnonzero(cosine_v < SIMILAR)
        start, end = (int(low[0]), int(low[-1])) if len(low) else (int(cosine_v.argmin()),) * 2
        detect = detection(correlation, start, end)
        points = tuple(
            {
                "layer": layer,
                "cosine_v": float(cosine_v[layer]),
                "cosine_k": float(cosine_k[layer]),
                "correlation": [float(x) for x in correlation[layer]],
            }
            for layer in range(self.shape.layers)
        )
        picks = {"range": {"start_layer": start, "detect_layer": detect, "end_layer": end}}
        return Findings(points, (), picks)


def detection(correlation: NDArray[np.float64], start: int, end: int) -> int:
    """The detection layer of a range; ``correlation [L, L]``. At ``start`` the deviation is zero by construction."""
    third = math.ceil((end - start + 1) / 3)
    candidates = range(start + 1, min(max(start + 1, start + third - 1), end) + 1)
    deeper = {layer: correlation[layer, layer + 1 : end + 1] for layer in candidates}
    return max(deeper, key=lambda layer: float(deeper[layer].mean()) if len(deeper[layer]) else -2.0, default=start)


def spearman(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank correlations ``[L, L]`` of the rows of ``[L, T]``; 0 where a row is constant."""
    ranks = rankdata(values, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: NDArray[np.float64] = np.nan_to_num(np.corrcoef(ranks))
    return found
