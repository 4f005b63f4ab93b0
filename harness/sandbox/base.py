"""What is asked of the sandbox and what it says: levels, limits, outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How well a program is shut in, strongest first; the package's docstring says what each covers."""

    isolated = "isolated"
    namespaced = "namespaced"
    limited = "limited"

    def meets(self, least: Level) -> bool:
        order = list(Level)
        return order.index(self) <= order.index(least)


class Outcome(StrEnum):
    """How a program ended. Everything but ``passed`` is a failure; the last two are not the program's.

    Attributes:
        failed: a test's assertion did.
        raised: an exception, while it was loaded or called.
        exited: its process ended before the tests did.
        crashed: a signal ended its process.
        timeout, memory, output, processes: it went over that limit.
        unsupported: the tests need more than plain data, or never call the program.
        broken: the sandbox itself failed.
    """

    passed = "passed"
    failed = "failed"
    raised = "raised"
    exited = "exited"
    crashed = "crashed"
    timeout = "timeout"
    memory = "memory"
    output = "output"
    processes = "processes"
    unsupported = "unsupported"
    broken = "broken"


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of CPU, for each process; on a busy machine the clock on the wall says nothing about a program.
        patience: so many times ``seconds`` on the wall, counted from the moment its interpreter is up.
        memory_bytes: address space of each process, and resident memory of all.
        processes: processes and threads, the program's own included.
        file_bytes: of each file, and of all files where the level has a tree of its own.
        output_bytes: on stdout and stderr together.
        start_s: wall clock until the interpreter is up, which is the machine's doing.
    """

    seconds: float = 10.0
    patience: float = 3.0
    memory_bytes: int = 1 << 30
    processes: int = 32
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    start_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("seconds", "patience", "memory_bytes", "processes", "file_bytes", "output_bytes", "start_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True)
class Example:
    """One interactive example: what was called, what was expected, what came instead (None if as expected)."""

    call: str
    expected: str
    got: str | None


@dataclass(frozen=True)
class Execution:
    """A program's run.

    Attributes:
        message: why it did not pass; one sentence, without anything that differs from run to run.
        level: how well it was shut in.
        value: what :func:`harness.sandbox.execute.value` asked for, as text.
        examples: results of :func:`harness.sandbox.execute.examples`, as far as they ran.
    """

    outcome: Outcome
    message: str
    level: Level
    value: str | None = None
    examples: tuple[Example, ...] = ()

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.passed
