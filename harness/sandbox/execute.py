"""Programs judged by tests, by examples, or asked for a value."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.sandbox.base import Example, Execution, Level, Limits, Outcome
from harness.sandbox.confined import FAILED, Confined

_LOOK_S = 0.05  # between looks at memory and processes
_LONGEST = 1 << 24
_TESTER_SHARE = 4  # the tester may use so many times the program's limits


def tests(program: str, tests: str, entry_point: str, trusted: str, level: Level, limits: Limits) -> Execution:
    """Run a benchmark's ``tests`` on ``program``.

    Args:
        tests: defines ``check(candidate)``, or calls ``entry_point`` itself.
        trusted: text of the benchmark whose names the tests use (the prompt with its helper functions).
    """
    return _run({"tests": tests, "entry_point": entry_point, "trusted": trusted}, program, level, limits)


def examples(
    program: str, found: Sequence[tuple[str, str]], entry_point: str, trusted: str, level: Level, limits: Limits
) -> Execution:
    """Evaluate calls against the values that the benchmark's text promises; passed if all ran, whatever came out."""
    job = {"examples": [list(pair) for pair in found], "entry_point": entry_point, "trusted": trusted}
    return _run(job, program, level, limits)


def value(program: str, name: str, level: Level, limits: Limits) -> Execution:
    """The value of a global variable after the program has run; ``Execution.value`` is None without one."""
    return _run({"want": name}, program, level, limits)


def _run(job: dict[str, Any], program: str, level: Level, limits: Limits) -> Execution:
    """The verdict of a tester on a solver, both fresh."""
    token = secrets.token_hex(16)
    theirs, ours = socket.socketpair()
    inlet, outlet = os.pipe()
    patient = replace(limits, seconds=_TESTER_SHARE * limits.seconds, memory_bytes=_TESTER_SHARE * limits.memory_bytes)
    with tempfile.TemporaryFile() as stdin, theirs, ours, os.fdopen(inlet, "rb", buffering=0) as report:
        stdin.write(json.dumps({"token": token, "program": program, **job}).encode("utf-8", "surrogatepass") + b"\n")
        stdin.seek(0)
        with (
            Confined("solver", level, limits, [theirs.fileno()]) as solver,
            Confined("tester", level, patient, [ours.fileno(), outlet], stdin) as tester,
        ):
            os.close(outlet)
            theirs.close()
            ours.close()
            watch = _Watch(solver, tester, report.fileno(), token)
            outcome, message = watch.verdict()
    return Execution(outcome, message, level, watch.value, tuple(watch.examples))


class _Watch:
    """Reads the report and keeps both sides within their limits."""

    def __init__(self, solver: Confined, tester: Confined, report: int, token: str) -> None:
        self.solver, self.tester, self.report, self.token = solver, tester, report, token
        self.text, self.started, self.value = b"", False, None
        self.examples: list[Example] = []
        self.end: dict[str, Any] | None = None
        self.deadline = time.monotonic() + solver.limits.start_s

    def verdict(self) -> tuple[Outcome, str]:
        limits, looked = self.solver.limits, 0.0
        with selectors.DefaultSelector() as ready:
            for source in (self.report, self.solver.pipe.fileno(), self.tester.pipe.fileno()):
                ready.register(source, selectors.EVENT_READ)
            while self.end is None:
                now = time.monotonic()
                if now > self.deadline:
                    if self.started:
                        return Outcome.timeout, f"not done after {limits.patience * limits.seconds:g} s"
                    return Outcome.broken, f"its interpreter did not start within {limits.start_s:g} s"
                for key, _ in ready.select(min(_LOOK_S, self.deadline - now)):
                    if key.fd == self.report and not self._read():
                        return self._without_report()
                if not self.solver.drain():
                    return Outcome.output, f"more than {limits.output_bytes} bytes of output"
                self.tester.drain()
                if time.monotonic() - looked > _LOOK_S:
                    looked = time.monotonic()
                    resident, count = self.solver.usage()
                    if resident > limits.memory_bytes:
                        return Outcome.memory, f"more than {limits.memory_bytes} bytes of memory in all processes"
                    if count > 2 * limits.processes:
                        return Outcome.processes, f"more than {limits.processes} processes"
        return self._ended(self.end)

    def _read(self) -> bool:
        """Take lines of the report; whether there may be more."""
        block = os.read(self.report, 1 << 16)
        self.text += block
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"started": True}:
                    limits = self.solver.limits
                    self.started, self.deadline = True, time.monotonic() + limits.patience * limits.seconds
                case {"example": call, "expected": expected, "got": got}:
                    self.examples.append(Example(call, expected, got))
                case {"value": value}:
                    self.value = value
                case {"token": self.token} as end:
                    self.end = end
        return (bool(block) and len(self.text) < _LONGEST) or self.end is not None

    def _ended(self, end: dict[str, Any]) -> tuple[Outcome, str]:
        outcome, message = Outcome(end["outcome"]), str(end["message"])
        if outcome is not Outcome.exited:
            return outcome, message
        if not self.solver.drain():
            return Outcome.output, f"more than {self.solver.limits.output_bytes} bytes of output"
        code = self._code(self.solver)
        if code == FAILED and not self.started:
            return Outcome.broken, _words(self.solver)
        if code == 128 + 24:  # SIGXCPU
            return Outcome.timeout, f"not done after {self.solver.limits.seconds:g} s of CPU"
        if code is not None and code > 128:
            return Outcome.crashed, f"signal {code - 128} ended it"
        return outcome, message

    def _without_report(self) -> tuple[Outcome, str]:
        """The tester is gone without a verdict: over its own limits, or the sandbox does not work here."""
        self._code(self.tester)
        self.tester.drain()
        if not self.started:
            return Outcome.broken, _words(self.tester)
        return Outcome.unsupported, "the tests did not come to an end"

    @staticmethod
    def _code(side: Confined) -> int | None:
        try:
            return side.process.wait(2.0)
        except subprocess.TimeoutExpired:
            return None


def _words(side: Confined) -> str:
    """The last line that a sandbox printed when it could not start."""
    lines = side.output.decode(errors="replace").strip().splitlines()
    return f"the sandbox did not start ({lines[-1][:200] if lines else 'no reason given'})"
