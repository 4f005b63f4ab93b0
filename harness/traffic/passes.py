"""The repeats of a trace's replay, each recorded when it has ended.

Every repeat begins with cold caches and empty pools, and what is due in it depends on what was served before. One that
was interrupted therefore starts again: its rows are dropped, with a line that says so.
"""

from __future__ import annotations

import sys

import msgspec

from harness import atomic
from harness.errors import UserError
from harness.progress import counted
from harness.service import Service
from harness.serving import Repeat
from harness.store import RunFolder
from harness.traffic.plan import Plan
from harness.traffic.replay import Outcome, Replay
from harness.traffic.rows import Decode, row, wrong_length
from harness.traffic.text import Text

REPEATS = "repeats.json"


class Passes:
    """The repeats of a run, of which some may be finished."""

    def __init__(self, store: RunFolder, planned: Plan, words: Text, service: Service, decode: Decode) -> None:
        self.store, self.planned, self.words, self.service, self.decode = store, planned, words, service, decode
        self.file = store.path / REPEATS
        self.finished = self._read()
        whole = sum(r.rows for r in self.finished)
        self.dropped = len(store.rows) - whole
        store.keep(whole)

    def run(self, repeats: int, title: str) -> None:
        per_repeat = len(self.planned.measured)
        if self.dropped:
            print(
                f"repeat {len(self.finished)} was interrupted and runs again from its start, where caches have to be "
                f"cold; its {self.dropped} finished rows in {self.store.path} are dropped",
                file=sys.stderr,
            )
        with counted(title, repeats * per_repeat, len(self.finished) * per_repeat) as advance:
            for repeat in range(len(self.finished), repeats):
                self.service.reset(repeat)
                passing = Replay(self.planned, self.words, self.service)
                warm = list(passing.warm_up())
                warmup_s, rows, wrong = self.service.now(), 0, 0
                for outcome in passing.measured():
                    self._log(repeat, outcome)
                    self.store.append(row(outcome, repeat, self.service, self.decode))
                    rows, wrong = rows + 1, wrong + sum(map(wrong_length, outcome.done))
                    advance()
                for outcome in warm:
                    self._log(repeat, outcome)
                done = Repeat(
                    repeat=repeat,
                    rows=rows,
                    warmup_calls=sum(len(outcome.done) for outcome in warm),
                    warmup_failed=sum(len(outcome.failures) for outcome in warm),
                    warmup_s=warmup_s,
                    wrong_lengths=wrong,
                    engine=self.service.figures(),
                )
                self.finished.append(done)
                atomic.replace_json(self.file, self.finished)

    def _read(self) -> list[Repeat]:
        """Finished repeats whose rows are there."""
        if not self.file.exists():
            return []
        try:
            found = msgspec.json.decode(self.file.read_bytes(), type=list[Repeat])
        except msgspec.DecodeError as error:
            raise UserError(f"{self.file} is damaged ({error}); remove the folder to run it again") from error
        while sum(r.rows for r in found) > len(self.store.rows):
            found.pop()
        return found

    def _log(self, repeat: int, outcome: Outcome) -> None:
        for failed in outcome.failures:
            if failed.traceback:
                with (self.store.path / "errors.log").open("a", encoding="utf-8") as log:
                    log.write(f"repeat {repeat}, request {failed.id}\n{failed.traceback}\n")
