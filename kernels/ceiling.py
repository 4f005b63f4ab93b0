"""What the machine can do: rates of a copy and of a matrix product, times and peak memory of a call."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Ceiling:
    copy_bytes_per_s: float
    product_flops_per_s: float

    def least_s(self, bytes_moved: int, flops: int) -> float:
        """No implementation can be faster on this machine."""
        return max(bytes_moved / self.copy_bytes_per_s, flops / self.product_flops_per_s)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def ceiling(device: torch.device, dtype: torch.dtype, rounds: int, size: int = 2048) -> Ceiling:
    """Rates of a copy far larger than any cache (read and write counted) and of a square matrix product."""
    source = torch.zeros((1 << 26) if device.type == "cuda" else (1 << 24), device=device)
    target = torch.empty_like(source)
    wide = dtype if device.type == "cuda" else torch.float32
    a = torch.randn(size, size, device=device).to(wide)
    copy = min(seconds(lambda: target.copy_(source), device) for _ in range(rounds + 1))
    product = min(seconds(lambda: a @ a, device) for _ in range(rounds + 1))
    return Ceiling(2 * source.nbytes / copy, 2 * size**3 / product)


def peak_extra(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that a call holds beyond what was there before, at its worst moment; -1 where the system cannot tell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    reset = Path("/proc/self/clear_refs")
    if sys.platform != "linux" or not reset.exists():
        return -1
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
