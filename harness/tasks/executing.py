"""What tasks have in common that run programs of a model."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from harness.errors import UserError
from harness.sandbox.base import Level, Limits
from harness.sandbox.level import best, require
from harness.tasks.base import Dataset
from harness.tasks.benchmark import Benchmark


@dataclass(frozen=True, kw_only=True)
class Executing(Benchmark):
    """Options of the sandbox; nothing is executed unless ``execute`` is true.

    Attributes:
        execute: allow programs that the model writes to be run, in a sandbox (:mod:`harness.sandbox`).
        sandbox: the weakest level of isolation that will do; the strongest that works here is used.
        timeout_s: CPU seconds per program, the same for answers and for tools; thrice as much on the wall.

    Raises:
        UserError: if a field cannot be used.
    """

    execute: bool = False
    sandbox: str = "limited"
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sandbox not in list(Level):
            raise UserError(f"task.sandbox must be one of {', '.join(Level)}, got {self.sandbox!r}")
        if isinstance(self.timeout_s, bool) or not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UserError(f"task.timeout_s must be a positive number of seconds, got {self.timeout_s!r}")

    def load(self) -> Dataset:
        """As every benchmark; where programs will run, the sandbox is tried first, and a weak one is told."""
        if self.execute and self.level is not Level.isolated:
            print(f"warning: programs run {self.level} only, since {best()[1]}", file=sys.stderr)
        return super().load()

    @property
    def level(self) -> Level:
        """The level at which programs run. Raises UserError if this machine does not reach ``sandbox``."""
        return require(self.sandbox, "task.sandbox")

    @property
    def limits(self) -> Limits:
        return Limits(seconds=self.timeout_s)
