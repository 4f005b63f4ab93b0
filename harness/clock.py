"""One clock for every measurement: wall time, with the device drained first where there is one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Clock:
    """Seconds on the performance counter; ``device`` is synchronised before each reading."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass
class Stopwatch:
    """Adds up named phases of one hop, in seconds."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.clock.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock.now() - begin

    def get(self, name: str) -> float:
        return self.seconds.get(name, 0.0)
