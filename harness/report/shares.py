"""Work split over processes that share this one's memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


def shares(work: Callable[[int], T], count: int) -> list[T]:
    """``work(0)`` to ``work(count - 1)``, the first in this process and each other in a fork of it.

    A fork knows everything that this process knows, so that only results travel: a panel to draw holds all rows of its
    runs, which would take longer to copy than to draw. The garbage collector leaves alone what was there before, whose
    memory it would copy in every fork.

    Raises:
        Exception: what ``work`` raised in any of them.
        EOFError: if one of them was killed.
    """
    gc.freeze()
    try:
        return _shared(work, count)
    finally:
        gc.unfreeze()


def _shared(work: Callable[[int], T], count: int) -> list[T]:
    context = get_context("fork") if count > 1 else None
    started = []
    for at in range(1, count):
        assert context is not None
        result, into = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(work, at, into), daemon=True)
        process.start()
        into.close()  # the other end is the fork's alone, so that its death ends the wait for it
        started.append((process, result))
    found = [work(0)]
    for process, result in started:
        made = result.recv()
        process.join()
        if isinstance(made, Exception):
            raise made
        found.append(made)
    return found


@contextmanager
def collected_once() -> Iterator[None]:
    """A block whose garbage is collected at its end, not while it works: a figure and its fonts are so many objects
    that going through them time and again takes a fifth of the time to draw it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
            gc.collect()


def _send(work: Callable[[int], T], at: int, into: Connection) -> None:
    try:
        into.send(work(at))
    except Exception as error:  # whatever it is, the process that waits for the result raises it
        into.send(error)
