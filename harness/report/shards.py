"""Runs that were split with ``shard=3/8``, put together again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.errors import UserError
from harness.folder import read_rows
from harness.report.run import Problem, Run, options
from harness.summarise import Heading, summarise

NOTE = "a pool for each shard"


def merged(runs: Sequence[Run]) -> tuple[list[Run], list[Problem]]:
    """Every run, those whose shards are all there as one; shards of others stay as they are, with a problem."""
    whole = [run for run in runs if not run.option("shard")]
    parts: dict[str, dict[str, Run]] = {}
    for run in runs:
        if run.option("shard"):
            key = json.dumps(options(run, ("shard",)), sort_keys=True, default=str)
            parts.setdefault(key, {}).setdefault(str(run.option("shard")), run)
    problems = list[Problem]()
    for found in parts.values():
        by_count: dict[int, list[Run]] = {}
        for shard, run in found.items():
            by_count.setdefault(int(shard.partition("/")[2]), []).append(run)
        for count, shards in by_count.items():
            made, problem = _put_together(count, sorted(shards, key=_number))
            whole += made
            problems += problem
    return sorted(whole, key=lambda run: run.folder), problems


def _put_together(count: int, shards: list[Run]) -> tuple[list[Run], list[Problem]]:
    first = shards[0]
    missing = sorted(set(range(1, count + 1)) - {_number(run) for run in shards})
    if missing:
        own = f"shard={first.option('shard')}"
        words = " ".join(word for word in first.summary.command.split() if not word.startswith("shard="))
        rest = ", ".join(f"shard={number}/{count}" for number in missing)
        problem = Problem(first.folder, f"{own} is here, {rest} {'is' if len(missing) == 1 else 'are'} not",
                          f"run the rest: {words} shard={missing[0]}/{count}")  # fmt: skip
        return [replace(run, notes=(*run.notes, f"shard {run.option('shard')} alone")) for run in shards], [problem]
    if damaged := [run.folder for run in shards if run.doubts]:
        what = f"its shards cannot be put together, since {' and '.join(damaged)} cannot be believed"
        return shards, [Problem(first.folder, what, "mend that first, as its own line says")]
    try:
        rows = [row for run in shards for row in read_rows(run.path).rows]
    except UserError as error:
        return shards, [Problem(first.folder, f"its shards cannot be put together ({error})", "see its rows")]
    s = first.summary
    heading = Heading(
        task=s.task, method=s.method, model=s.model, backend=s.backend, layers=s.layers, command=_command(s.command),
        programs=s.programs, verified=_all(run.summary.verified for run in shards), built_from=s.built_from,
        glue=s.glue, teacher_forcing=s.teacher_forcing, early=0,
    )  # fmt: skip
    learns = any(row.state_bytes is not None and row.state_bytes.correction for row in rows)
    made = Run(
        folder=f"{first.folder} and {count - 1} more" if count > 1 else first.folder,
        config={k: v for k, v in first.config.items() if k != "shard"},
        summary=summarise(rows, heading),
        rows=tuple(row for run in shards for row in run.rows),
        path=first.path,
        sessions=tuple(session for run in shards for session in run.sessions),
        identity=f"shards of {first.identity}",
        shards=count,
        conflict=tuple(dict.fromkeys(folder for run in shards for folder in run.conflict)),
        notes=(*(note for run in shards for note in run.notes), *([NOTE] if learns and count > 1 else [])),
    )
    return [made], []


def _command(command: str) -> str:
    """All shards one after the other."""
    words = [word for word in command.split() if not word.startswith("shard=")]
    return " ".join(words)


def _number(run: Run) -> int:
    return int(str(run.option("shard")).partition("/")[0])


def _all(values: Any) -> bool | None:
    found = list(values)
    return False if False in found else None if None in found else True
