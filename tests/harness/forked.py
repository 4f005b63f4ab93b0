"""Work in a process of its own that starts in a moment: forked from one that has imported the model libraries already,
which alone takes seconds. One such parent serves all tests of a pytest process; it has run nothing, so that a child
starts as a fresh process does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "harness.run",
        "harness.backends.hf_service",
        "harness.backends.hf_forward",
        "transformers.models.auto.modeling_auto",
    ]
)


def forked(work: Callable[[], int | None], said: Path | None = None) -> ForkServerProcess:
    """``work`` (picklable; its result is the exit code) on its way; stdout and stderr go to ``said`` or nowhere."""
    process = SERVER.Process(target=_quietly, args=(work, os.devnull if said is None else str(said)), daemon=True)
    process.start()
    return process


def command(*words: str) -> ForkServerProcess:
    """``python -m harness`` with ``words`` on its way."""
    return forked(partial(_main, words))


def _main(words: tuple[str, ...]) -> int:
    from harness.cli import main

    return main(words)


def _quietly(work: Callable[[], int | None], said: str) -> None:
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(work())
