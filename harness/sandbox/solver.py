"""Inside the sandbox: holds the untrusted program, and answers calls of its functions with plain values.

It runs in the very process of the program, so nothing it says can be trusted; whoever asks (``tester.py``) sits in
another sandbox and believes only values.
"""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO

from wire import decode, encode, receive, send  # type: ignore[import-not-found]

LONGEST = 1 << 27


def main(channel: int) -> None:
    """Answer requests on file descriptor ``channel`` until the other side goes away."""
    sys.argv, sys.stdin = ["program"], open(os.devnull)  # noqa: SIM115
    sys.set_int_max_str_digits(0)
    os.environ.clear()  # where the interpreter has put its locale
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    reader, writer = os.fdopen(channel, "rb"), os.fdopen(os.dup(channel), "wb")
    send(writer, {"ready": True})
    while True:
        try:
            request = receive(reader, LONGEST)
        except EOFError:
            return
        _reply(writer, request, names)


def _reply(writer: BinaryIO, request: dict[str, Any], names: dict[str, Any]) -> None:
    try:
        answer = _answer(request, names)
    except BaseException as error:
        answer = {"raised": [type(error).__name__, _text(error)]}
    send(writer, answer)


def _answer(request: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    match request:
        case {"load": source}:
            exec(compile(source, "<program>", "exec"), names)
            return {"names": [str(n) for n, value in names.items() if callable(value)]}
        case {"get": name}:
            return {"value": encode(names[name])}
        case {"call": name, "args": sent, "kwargs": named}:
            args = decode(sent)
            before = [encode(a) for a in args]
            value = encode(names[name](*args, **dict(decode(named))))
            after = [encode(a) for a in args]
            # Lists and the like that the function changed in place: the caller's change with them.
            changed = [[n, new] for n, (old, new) in enumerate(zip(before, after, strict=True)) if new != old]
            return {"value": value, "changed": changed}
    raise ValueError("no such request")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:
        return ""
