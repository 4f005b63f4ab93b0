"""Which implementation of a kernel runs: the torch reference or the Triton kernel.

A run opens its choice once, with :func:`using`; every public function of the package asks :func:`chosen`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
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


def describe(device: torch.device) -> str:
    """What runs for tensors on ``device`` with its version, for the record of a run: ``torch 2.13.0+cpu``."""
    name = chosen(device).value
    return f"{name} {torch.__version__ if name == 'torch' else version(name)}"
