"""Inside a sandbox of its own: runs a benchmark's tests on a program that lives in another sandbox.

The tests see the program's functions as :class:`Remote` ones: arguments and results are plain values. So the
program cannot reach the tests, their expected values or this process's verdict; whatever it does to its own
interpreter, it can only answer calls. The verdict goes to a pipe that the program's sandbox does not have, with a token
that it was never told.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from wire import Opaque, Unsendable, decode, encode, receive, send  # type: ignore[import-not-found]

LONGEST = 1 << 27


class ProgramRaised(Exception):
    """The program raised an exception whose type is no built-in one."""


class ProgramGone(BaseException):
    """The program's process ended; no ``except Exception`` of a test may swallow that."""


class Program:
    """The other side of the channel.

    Attributes:
        raised: the last exception that stands for one of the program's, and the name of that one's type.
        calls: how often its functions were called.
        gone: it ended, or stopped answering in form.
    """

    def __init__(self, channel: int) -> None:
        self.reader, self.writer = os.fdopen(channel, "rb"), os.fdopen(os.dup(channel), "wb")
        self.raised: tuple[BaseException | None, str, str] = (None, "", "")
        self.calls = 0
        self.gone = False

    def ask(self, request: dict[str, Any] | None) -> tuple[dict[str, Any], Any]:
        """The answer and its value, if it has one. Raises what the program raised; ProgramGone if nobody answers."""
        try:
            if request is not None:
                send(self.writer, request)
            answer = receive(self.reader, LONGEST)
            if "raised" not in answer:
                return answer, decode(answer.get("value"))
            kind, text = (str(part) for part in answer["raised"])
        except (EOFError, OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise self.left() from error
        self.raised = (_exception(kind, text), kind, text)
        raise self.raised[0]

    def left(self) -> ProgramGone:
        self.gone = True
        return ProgramGone("the program ended before its tests did")

    def fault(self, error: BaseException) -> tuple[str, str]:
        """Type and text of ``error``, as the program raised it."""
        own, kind, text = self.raised
        return (kind, text) if own is error else (type(error).__name__, str(error))


class Remote:
    """A function of the program."""

    def __init__(self, program: Program, name: str) -> None:
        self._program, self.__name__ = program, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._program.calls += 1
        sent = [encode(a, strict=True) for a in args]
        named = encode(list(kwargs.items()), strict=True)
        answer, value = self._program.ask({"call": self.__name__, "args": sent, "kwargs": named})
        try:
            for index, new in answer.get("changed", ()):
                _overwrite(args[index], decode(new))
        except (LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise self._program.left() from error
        return value


def main(channel: int, report: int) -> None:
    """Read the job from stdin, run it on the program behind ``channel``, write lines to ``report``."""
    out = os.fdopen(report, "wb")
    job = receive(sys.stdin.buffer, 1 << 30)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.set_int_max_str_digits(0)
    program = Program(channel)
    verdict = {"token": job["token"], **_judge(program, job, out)}
    send(out, verdict)


def _judge(program: Program, job: dict[str, Any], out: BinaryIO) -> dict[str, Any]:
    try:
        program.ask(None)
        send(out, {"started": True})
        answer, _ = program.ask({"load": job["program"]})
        _run(program, job, [str(n) for n in answer.get("names", [])], out)
    except Unsendable as error:
        return {"outcome": "unsupported", "message": str(error)}
    except BaseException as error:
        return _failure(program, error)
    if program.gone:  # and a test hid it
        return _failure(program, program.left())
    return {"outcome": "passed", "message": ""}


def _failure(program: Program, error: BaseException) -> dict[str, Any]:
    kind, text = program.fault(error)
    if program.gone:
        return {"outcome": "exited", "message": "the program ended before its tests did"}
    if isinstance(error, AssertionError) and program.raised[0] is not error:
        return {"outcome": "failed", "message": f"a test failed{': ' + text[:200] if text else ''}"}
    outcome = {"MemoryError": "memory", "SystemExit": "exited"}.get(kind, "raised")
    return {"outcome": outcome, "message": f"{kind}: {text[:200]}"}


def _run(program: Program, job: dict[str, Any], names: Iterable[str], out: BinaryIO) -> None:
    match job:
        case {"want": name}:
            _, value = program.ask({"get": name})
            send(out, {"value": None if value is None else str(value)[:1000]})
        case {"examples": examples, "entry_point": entry}:
            space = _space(program, job["trusted"], "\n".join(call for call, _ in examples), names)
            space[entry] = Remote(program, entry)
            for call, expected in examples:
                send(out, {"example": call, "expected": expected, "got": _example(program, call, expected, space)})
        case {"tests": tests, "entry_point": entry}:
            space = _space(program, job["trusted"], tests, names)
            space[entry] = Remote(program, entry)
            exec(compile(tests, "<tests>", "exec"), space)
            if callable(space.get("check")):
                space["check"](space[entry])
            if not program.calls:
                raise Unsendable("the tests never called the program")


def _example(program: Program, call: str, expected: str, space: dict[str, Any]) -> str | None:
    """What came out instead of ``expected``, None if it is equal."""
    try:
        found = eval(call, space)
        if found == eval(expected, space):
            return None
        return repr(found)[:200]
    except Exception as error:  # whatever the program raises is what is wrong with it
        kind, text = program.fault(error)
        return f"{kind}: {text[:150]}"


def _space(program: Program, trusted: str, tests: str, names: Iterable[str]) -> dict[str, Any]:
    """Names that the tests may use: those of the benchmark's own text, and functions of the program beside them."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(trusted, "<benchmark>", "exec"), space)
    used = {node.id for node in _walk(tests) if isinstance(node, ast.Name)}
    for name in used & set(names) - set(space) - set(dir(builtins)):
        space[name] = Remote(program, name)
    return space


def _walk(source: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(source))


def _exception(kind: str, text: str) -> BaseException:
    """The exception that the program raised, if it is a built-in one that tests may expect."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(text)
        except TypeError:  # UnicodeDecodeError and the like want more than a text
            return ProgramRaised(f"{kind}: {text}")
    return ProgramRaised(f"{kind}: {text}")


def _overwrite(mine: Any, new: Any) -> None:
    """Give a list, bytearray, set or dict of the tests the contents that the program left in it."""
    if isinstance(new, Opaque) or type(mine) is not type(new):
        return
    if isinstance(mine, list | bytearray):
        mine[:] = new
    elif isinstance(mine, set | dict):
        mine.clear()
        mine.update(new)
