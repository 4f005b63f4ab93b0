"""Which implementation of a kernel runs: the torch reference or the Triton kernel.

A run opens its choice once, with :func:`using`; every public function of the package asks :func:`chosen`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import torch


class Implementation(StrEnum):
    """``auto`` is Triton for tensors on a CUDA device where Triton is installed, torch everywhere else."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


_choice: ContextVar[Implementation] = ContextVar("implementation", default=Implementation.AUTO)


@contextmanager
def using(name: str) -> Iterator[Implementation]:
    """Choose ``auto``, ``torch`` or ``triton`` for everything inside the block (of this thread or task).

    Raises:
        ValueError: for another name, or ``triton`` where it is not installed.
    """
    if name not in tuple(Implementation):
        raise ValueError(f"the implementation must be one of {', '.join(Implementation)}, got {name!r}")
    wanted = Implementation(name)
    if wanted is Implementation.TRITON and find_spec("triton") is None:
        raise ValueError("the implementation 'triton' needs the package triton, which is not installed")
    token = _choice.set(wanted)
    try:
        yield wanted
    finally:
        _choice.reset(token)


def chosen(device: torch.device) -> Implementation:
    """What runs for tensors on ``device``: never ``auto``. This is what a run records."""
    wanted = _choice.get()
    if wanted is not Implementation.AUTO:
        return wanted
    if device.type == "cuda" and find_spec("triton") is not None:
        return Implementation.TRITON
    return Implementation.TORCH


@cache
def bf16_units() -> bool:
    """Whether this processor multiplies bf16 with fp32 sums in hardware (AMX, AVX512-BF16, Arm's BF16 extension)."""
    found = torch.cpu.get_capabilities()
    return any(bool(found.get(name, False)) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def narrow(*operands: torch.Tensor) -> bool:
    """Whether the torch reference multiplies these operands as they are: all bf16, on a processor with units for it.

    Anything else is widened to fp32 first. Either way sums are fp32; a narrow product is rounded once, to bf16.
    """
    return all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in operands) and bf16_units()


def describe(device: torch.device) -> str:
    """What runs for tensors on ``device`` with its version, for the record of a run: ``torch 2.13.0+cpu``, and
    ``, bf16 units`` where a CPU's results are rounded as :func:`narrow` says."""
    name = chosen(device).value
    units = ", bf16 units" if name == "torch" and device.type == "cpu" and bf16_units() else ""
    return f"{name} {torch.__version__ if name == 'torch' else version(name)}{units}"
