"""The engine's running totals as Prometheus metrics, next to vLLM's own at ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from harness.backends.vllm_figures import Figures

HELP: Mapping[str, str] = {
    "hops": "Agent calls answered.",
    "reuse_hops": "Agent calls that reused rows.",
    "corrections": "Reuse hops whose rows got a learned correction.",
    "fallbacks": "Hops that ran dense although they could have reused: a gate, a missing cache, a fault.",
    "failures": "Those fallbacks that were not the gate's choice.",
    "reused_tokens": "Prompt tokens whose rows were loaded.",
    "corrected_tokens": "Prompt tokens whose rows got a learned correction before they were loaded.",
    "computed_tokens": "Prompt tokens of hops that were computed.",
    "match_s": "Seconds spent planning.",
    "load_s": "Seconds spent reconstructing and writing rows.",
    "learn_s": "Seconds spent learning, outside any time to first token.",
    "base_bytes": "Bytes of reference caches that the method holds.",
    "correction_bytes": "Bytes of corrections that the method holds.",
}


def metric(name: str) -> str:
    """Prometheus's name of a figure."""
    return "kvcmas:" + (name[:-2] + "_seconds" if name.endswith("_s") else name)


@dataclass
class FiguresStats(KVConnectorStats):
    """What was added since the last step, and what the method holds."""

    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def between(cls, before: Figures, now: Figures) -> FiguresStats:
        old, new = asdict(before), asdict(now)
        return cls({k: v if k.endswith("_bytes") else v - old[k] for k, v in new.items()} if old != new else {})

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = value if name.endswith("_bytes") else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class FiguresProm(KVConnectorPromMetrics):
    """A counter for every total, a gauge for every size."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.metrics = dict[tuple[str, int], Any]()
        for found in fields(Figures):
            kind = self._gauge_cls if found.name.endswith("_bytes") else self._counter_cls
            made = kind(name=metric(found.name), documentation=HELP[found.name], labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self.metrics[found.name, engine] = made.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            found = self.metrics[name, engine_idx]
            if name.endswith("_bytes"):
                found.set(value)
            else:
                found.inc(value)
