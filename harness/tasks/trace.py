"""Open-loop load from a trace: what users of a busy server wait for.

Calls come when the trace says, whether or not the server keeps up; a call that reads another's answer is due when that
has ended. Every repeat starts cold. The first trajectories fill the pools: they run one after another before the clock
starts, dense, and are in no number. There are no answers to score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TraceTask:
    """Options beside the trace itself (group ``trace``).

    Attributes:
        source: text behind the trace's names: ``sample`` (sentences of the embedded GSM8K sample), ``random`` (uniform
            ids, as the paper's trace has), or a text file.
        warmup: trajectories, of every repeat, that fill pools.
        slo_ttft_s: a trajectory counts towards the goodput if none of its calls waits longer for its first token.
        tau, tau_distance: of the gates of methods that have one; as in the paper's efficiency runs the entropy gate
            never refuses.
    """

    name: str = "trace"
    source: str = "sample"
    warmup: int = 4
    slo_ttft_s: float = 1.0
    tau: float = 2.0
    tau_distance: float | None = None
    sample: ClassVar[str] = "gsm8k_sample.jsonl"

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if not (self.slo_ttft_s > 0 and math.isfinite(self.slo_ttft_s)):
            raise ValueError(f"slo_ttft_s must be positive, got {self.slo_ttft_s}")
