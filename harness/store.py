"""A run folder: rows as they come, everything else by atomic replace, one process at a time.

``config.yaml`` and ``provenance.json`` come first, ``rows.jsonl`` grows by a line per sample, ``summary.json`` is
written last: its existence means that the run is complete. Killing the process at any moment loses at most the
sample in flight. This is no shared store: a lock lets one process in, and others are told who holds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness import atomic
from harness.claim import claim, held
from harness.codes import mixture
from harness.errors import UserError
from harness.folder import PROVENANCE, ROWS, STATE, SUMMARY, read_provenance, read_rows, read_summary
from harness.provenance import Provenance, Session, utc_now
from harness.records import Row
from harness.summary import Summary

if TYPE_CHECKING:
    from harness.state import StateFolder
    from methods.base import Snapshot


@dataclass(frozen=True, eq=False)
class Resumed:
    """Where a stateful method goes on: its state after the kept rows, or None to begin afresh, and what the user
    should hear about it."""

    snapshot: Snapshot | None
    warning: str | None = None


class RunFolder:
    """An opened run folder; :meth:`open` makes one."""

    def __init__(self, path: Path, provenance: Provenance, rows: tuple[Row, ...], complete: bool) -> None:
        self.path = path
        self._provenance = provenance
        self._rows = list(rows)
        self._keys = {row.key for row in rows}
        self._complete = complete
        self._begun = False
        self._state: StateFolder | None = None

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, config_yaml: str, session: Session | None = None, identity: str | None = None
    ) -> Iterator[RunFolder]:
        """Hold the folder, which is made if need be, for the length of a ``with`` block.

        Args:
            config_yaml: the resolved configuration. A folder keeps the text that made it.
            session: provenance of this process; if it is only known later, see :meth:`begin`.
            identity: what the run id is made of, the configuration less what does not change results (paths,
                tracking, verbosity); the configuration itself if not given. A folder belongs to one identity.

        Raises:
            UserError: if another process holds the folder, if it belongs to another identity or schema version,
                if its configuration was edited, or if a file in it is damaged.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror}; choose another place") from error
        with held(path):
            atomic.sweep(path)
            provenance = claim(path, config_yaml, config_yaml if identity is None else identity)
            found, summary = read_rows(path), read_summary(path)
            if summary is not None and (found.torn or summary.n != len(found.rows)):
                raise UserError(
                    f"{path / ROWS} has {len(found.rows)} whole rows but the summary counts {summary.n}; "
                    f"delete {SUMMARY} to complete the run again"
                )
            folder = cls(path, provenance, found.rows, summary is not None)
            if summary is not None:
                folder._states().remove()  # a kill may have come between the summary and this
            elif found.torn:
                folder._keep(len(found.rows))
            if session is not None and summary is None:
                folder.begin(session)
            try:
                yield folder
            finally:
                folder._end()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Finished rows, in the order they were written."""
        return tuple(self._rows)

    @property
    def complete(self) -> bool:
        return self._complete

    def __contains__(self, key: tuple[str, int]) -> bool:
        """Whether the row of ``(sample_id, repeat)`` is finished."""
        return key in self._keys

    def begin(self, session: Session) -> None:
        """Add this process to the provenance, once, before it works on the run."""
        session = msgspec.structs.replace(session, rows=len(self._rows))
        self._provenance = msgspec.structs.replace(self._provenance, sessions=[*self._provenance.sessions, session])
        atomic.replace_json(self.path / PROVENANCE, self._provenance)
        self._begun = True

    @property
    def warnings(self) -> list[str]:
        """What a reader of this run's numbers has to know, once its session has begun; the summary keeps it."""
        said = mixture(self._provenance.sessions) if self._begun else None
        return [] if said is None else [said]

    def warn(self) -> None:
        """Print the warnings, with what to do about them."""
        for warning in self.warnings:
            remedy = "to start anew, delete that folder or set another results_dir"
            print(f"warning: {self.path}: {warning}; {remedy}", file=sys.stderr)

    def check_prompts(self, sha256: str) -> None:
        """Rows of one run are made from the same prompts.

        Raises:
            UserError: the finished rows were made from others, by files that have changed since.
        """
        before = self._provenance.sessions[-1].prompt_sha256 if self._provenance.sessions else None
        if self._rows and before is not None and before != sha256:
            raise UserError(
                f"{self.path}: the inputs have changed since its {len(self._rows)} finished rows were written "
                "(pictures or clips were added or replaced, or the tokenizer is another); remove the folder to run it "
                "again"
            )

    def append(self, row: Row) -> None:
        """Add a finished row; it is on the disk when this returns.

        Raises:
            ValueError: if the run is complete or has this ``(sample_id, repeat)`` already.
        """
        if self._complete:
            raise ValueError(f"{self.path} is complete; no row can be added")
        if row.key in self._keys:
            raise ValueError(f"{self.path} has sample {row.sample_id} repeat {row.repeat} already")
        line = msgspec.json.encode(row) + b"\n"
        file = self.path / ROWS
        new = not file.exists()
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(handle).st_size
            try:
                atomic.write(handle, line)
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, size)  # a full disk must not leave half a line for the next row to follow
                raise
        finally:
            os.close(handle)
        if new:
            atomic.sync_folder(self.path)
        self._rows.append(row)
        self._keys.add(row.key)

    def keep(self, n: int) -> None:
        """Drop all rows but the first ``n``, byte for byte, for what can only be run again as a whole.

        Raises:
            ValueError: if the run is complete, or has fewer.
        """
        if self._complete or n > len(self._rows):
            raise ValueError(f"{self.path} has {len(self._rows)} rows and cannot be cut back to {n}")
        self._keep(n)

    def save_state(self, snapshot: Snapshot) -> None:
        """Keep the state of a stateful method as of the rows written so far: after each :meth:`append`."""
        self._states().save(len(self._rows), snapshot)

    def resume_state(self) -> Resumed:
        """Take a stateful method back to its last saved state; for methods that have one, before their first row.

        Rows written after that state are dropped, since their samples will run again from it. Without a usable
        state the run starts over, and its rows move to ``rows.jsonl.bak-N``.

        Raises:
            ValueError: if the run is complete.
        """
        if self._complete:
            raise ValueError(f"{self.path} is complete; there is nothing to resume")
        from harness.state import StateUnreadable

        try:
            state = self._states().load()
        except StateUnreadable as error:
            return self._start_over(str(error))
        if state is None:
            if len(self._rows) > 1:
                return self._start_over("there is none")
            self._keep(0)  # a kill came before the state of the first row
            self._anew()
            return Resumed(None)
        if len(self._rows) < state.rows_done:
            return self._start_over(f"it is that after row {state.rows_done}, but {len(self._rows)} rows are left")
        self._keep(state.rows_done)
        return Resumed(state.snapshot)

    def finish(self, summary: Summary) -> None:
        """Complete the run: write the summary, then drop the state, which nobody needs any more.

        Raises:
            ValueError: if the summary does not count the rows of this folder.
        """
        if summary.n != len(self._rows):
            raise ValueError(f"the summary counts {summary.n} rows, {self.path} has {len(self._rows)}")
        atomic.replace_json(self.path / SUMMARY, msgspec.structs.replace(summary, warnings=self.warnings))
        self._complete = True
        self._states().remove()

    def _start_over(self, why: str) -> Resumed:
        rows, kept = len(self._rows), ""
        if rows:
            backup = _spare(self.path)
            os.rename(self.path / ROWS, backup)
            atomic.sync_folder(self.path)
            kept = f"; its {rows} rows are kept in {backup.name}"
        self._rows, self._keys = [], set()
        self._states().remove()
        self._anew()
        return Resumed(None, f"{self.path} starts over, since the method's saved state cannot be used ({why}){kept}")

    def _anew(self) -> None:
        """Nothing is left of what earlier sessions wrote."""
        if self._begun and self._provenance.sessions[-1].rows:
            *before, last = self._provenance.sessions
            sessions = [*before, msgspec.structs.replace(last, rows=0)]
            self._provenance = msgspec.structs.replace(self._provenance, sessions=sessions)
            atomic.replace_json(self.path / PROVENANCE, self._provenance)

    def _keep(self, n: int) -> None:
        """Cut the rows file back to its first ``n`` lines, byte for byte."""
        file = self.path / ROWS
        data = file.read_bytes() if file.exists() else b""
        whole = b"".join(line + b"\n" for line in data.split(b"\n")[:n])
        if whole != data:
            atomic.replace(file, whole)
        self._rows = self._rows[:n]
        self._keys = {row.key for row in self._rows}

    def _states(self) -> StateFolder:
        if self._state is None:
            from harness.state import StateFolder  # loads torch, which a look into a finished folder can do without

            self._state = StateFolder(self.path / STATE)
        return self._state

    def _end(self) -> None:
        if self._begun:
            *before, last = self._provenance.sessions
            ended = [*before, msgspec.structs.replace(last, end_utc=utc_now())]
            atomic.replace_json(self.path / PROVENANCE, msgspec.structs.replace(self._provenance, sessions=ended))


def rewrite(path: Path, before: Sequence[Row], rows: Sequence[Row], summary: Summary, session: Session) -> None:
    """Replace rows and summary of a complete run, and add the session that did it to the provenance.

    Rows that differ from those ``before`` are set aside first, in ``rows.jsonl.bak-N``. Each file is replaced whole; a
    kill in between leaves new rows beside the old summary, and the same call again mends that.

    Raises:
        UserError: if another process holds the folder, or has changed its rows meanwhile.
        ValueError: if the summary does not count the rows.
    """
    if summary.n != len(rows):
        raise ValueError(f"the summary counts {summary.n} rows, there are {len(rows)}")
    with held(path):
        atomic.sweep(path)
        provenance = read_provenance(path)
        if provenance is None or read_rows(path).rows != tuple(before):
            raise UserError(f"the rows of {path} have changed meanwhile; try again")
        if tuple(rows) != tuple(before):
            atomic.replace(_spare(path), (path / ROWS).read_bytes())
        ended = msgspec.structs.replace(session, end_utc=utc_now())
        atomic.replace_json(
            path / PROVENANCE, msgspec.structs.replace(provenance, sessions=[*provenance.sessions, ended])
        )
        atomic.replace(path / ROWS, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        atomic.replace_json(path / SUMMARY, summary)


def _spare(path: Path) -> Path:
    """The next free name for rows that are set aside."""
    return next(p for n in range(1, 1_000_000) if not (p := path / f"{ROWS}.bak-{n}").exists())
