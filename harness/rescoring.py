"""Scores of a complete run, made again from its raw answers; see :mod:`harness.rescore`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from rich.text import Text
from yaml import YAMLError

from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, ROWS, SUMMARY, read_provenance, read_rows, read_summary
from harness.hint import nearest
from harness.judged import judged
from harness.metrics import accuracy
from harness.provenance import DataFacts, Provenance, collect, utc_now
from harness.records import Row, Status
from harness.script import Verdict, judge
from harness.store import rewrite
from harness.summarise import Heading, summarise
from harness.summary import Rescored, Summary
from harness.tasks.base import Item, Task

OURS = "harness.tasks."  # a configuration is code: only the project's own tasks are made from a folder's
SHOWN = 20


@dataclass(frozen=True)
class Finished:
    """A complete run as its folder holds it."""

    folder: Path
    config: DictConfig
    provenance: Provenance
    rows: tuple[Row, ...]
    summary: Summary


def rescore(folder: Path, options: Sequence[str], write: bool, words: Sequence[str]) -> None:
    """Score the run in ``folder`` again, print what changes, and replace it if ``write``.

    Args:
        options: of the task, as ``task.<option>=<value>``.
        words: the command line, for the provenance.

    Raises:
        UserError: if the folder holds no complete run, or its task or data cannot be had.
    """
    run = read(folder)
    task = task_of(run, options)
    items = items_of(run, task)
    rows = tuple(scored_again(row, task, items) for row in run.rows)
    changed = [(old, new) for old, new in zip(run.rows, rows, strict=True) if old != new]
    session = collect(argv=words, module="harness.rescore")
    note = Rescored(
        utc=utc_now(),
        git=session.git,
        command=session.command,
        changed=len(changed),
        accuracy_before=accuracy(run.rows),
    )
    kept = run.summary.warnings
    summary = msgspec.structs.replace(summarise(rows, heading_of(run.summary)), rescored=note, warnings=kept)
    show(run, rows, summary, changed)
    if write:
        prompts = run.provenance.sessions[-1].prompt_sha256 if run.provenance.sessions else None
        session = msgspec.structs.replace(session, data=data_of(run), prompt_sha256=prompts)
        rewrite(folder, run.rows, rows, summary, session)
        print(f"written: {folder / ROWS} and {folder / SUMMARY}")
    elif changed:
        print("nothing was written; add --write to replace rows and summary")


def read(folder: Path) -> Finished:
    """The run in ``folder``. Raises UserError, in one sentence, unless it is complete and untouched."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is no run folder: it has no {CONFIG}")
    provenance = read_provenance(folder)
    if provenance is None:
        raise UserError(f"{folder} has no {PROVENANCE}, so its data cannot be checked; run its configuration again")
    if provenance.config_sha256 != hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest():
        raise UserError(f"{folder / CONFIG} was edited after the run began; undo that to score the run again")
    found, summary = read_rows(folder), read_summary(folder)
    again = provenance.sessions[-1].command if provenance.sessions else "the same command"
    if found.torn:
        raise UserError(f"{folder / ROWS} ends in the middle of a row; complete the run first: {again}")
    if not found.rows:
        raise UserError(f"{folder} has no rows to score; run it first: {again}")
    if summary is None:
        raise UserError(f"the run in {folder} is not complete ({len(found.rows)} rows); complete it first: {again}")
    if summary.n != len(found.rows):
        raise UserError(
            f"{folder / ROWS} has {len(found.rows)} rows but the summary counts {summary.n}; delete {SUMMARY} and "
            f"complete the run again: {again}"
        )
    try:
        config = OmegaConf.load(folder / CONFIG)
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{folder / CONFIG} cannot be read: {str(error).splitlines()[0]}") from error
    assert isinstance(config, DictConfig)
    return Finished(folder, config, provenance, found.rows, summary)


def task_of(run: Finished, options: Sequence[str]) -> Task:
    """The task of the run, with ``options`` changed. Raises UserError for a task that is not ours or has no answers."""
    target = str(OmegaConf.select(run.config, "task._target_"))
    if not target.startswith(OURS):
        raise UserError(
            f"{run.folder / CONFIG} names the task {target}; only tasks below {OURS} are made from a results folder, "
            "since a configuration is code"
        )
    try:
        known = [f"task.{key}" for key in run.config.task if not str(key).startswith("_")]
        for option in options:
            name = option.partition("=")[0]
            if ".".join(name.split(".")[:2]).partition("[")[0] not in known:
                raise UserError(f"{option}: there is no option {name}, {nearest(name, known)}")
        changes = OmegaConf.from_dotlist(list(options))
        node = OmegaConf.merge(run.config, changes).task
        task: Task = instantiate(node, _convert_="all")
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__
        said = cause if isinstance(cause, UserError) else str(error).splitlines()[0]
        raise UserError(f"task of {run.folder}: {said}") from error
    if not hasattr(task, "extract"):
        raise UserError(f"task={run.summary.task} has no answers, so there is nothing to score")
    return task


def items_of(run: Finished, task: Task) -> dict[str, Item]:
    """The task's items by id. Raises UserError unless they are the data of the run."""
    recorded = data_of(run)
    dataset = task.load()
    manifest = dataset.manifest
    if recorded is not None and recorded.sha256 != manifest.sha256:
        raise UserError(
            f"task.source={task.source} holds other data than the run used ({manifest.rows} rows, hash "
            f"{manifest.sha256[:12]}; the run had {recorded.rows} rows of {recorded.source}, hash "
            f"{recorded.sha256[:12]}); give the same data with task.source=<path>"
        )
    return {item.id: item for item in dataset.items}


def data_of(run: Finished) -> DataFacts | None:
    return next((s.data for s in run.provenance.sessions if s.data is not None), None)


def scored_again(row: Row, task: Task, items: Mapping[str, Item]) -> Row:
    """The row with its verdict made anew; one whose hops did not all run stays as it is."""
    if not row.hops:
        return row
    item = items.get(row.sample_id.partition("~dup")[0])
    if item is None:
        raise UserError(f"sample {row.sample_id} is not among the data of task={task.name}")
    return with_verdict(row, judge(task, row.raw, item))


def with_verdict(row: Row, verdict: Verdict) -> Row:
    status, program, message = judged(verdict)
    return msgspec.structs.replace(
        row,
        status=status,
        prediction=verdict.prediction,
        correct=verdict.correct and status is Status.ok,
        program=program,
        message=message,
    )


def heading_of(summary: Summary) -> Heading:
    """What a summary says that its rows do not."""
    known = {f.name: getattr(summary, f.name) for f in fields(Heading) if f.name != "early"}
    return Heading(**known, early=summary.early.limit if summary.early else 0)


def show(run: Finished, rows: Sequence[Row], summary: Summary, changed: Sequence[tuple[Row, Row]]) -> None:
    """Print old and new counts and the first rows that change."""
    console = Console()
    old = run.summary
    console.print(Text(f"\n{old.method} on {old.task}, model {old.model}: {len(rows)} rows, {len(changed)} change\n"))
    table = Table("", "old", "new", box=None, pad_edge=False)
    before, after = Counter(row.status for row in run.rows), Counter(row.status for row in rows)
    right = (sum(row.correct for row in run.rows), sum(row.correct for row in rows))
    table.add_row("correct", *(str(count) for count in right))
    for status in Status:
        if before[status] or after[status]:
            table.add_row(status.value, str(before[status]), str(after[status]))
    table.add_row(
        "accuracy", *("-" if a is None else f"{100 * a:.2f} %" for a in (accuracy(run.rows), summary.accuracy))
    )
    console.print(table)
    console.print()
    for before_row, after_row in changed[:SHOWN]:
        console.print(Text(f"{before_row.sample_id}: {_said(before_row)} -> {_said(after_row)}"), soft_wrap=True)
    if len(changed) > SHOWN:
        console.print(Text(f"and {len(changed) - SHOWN} more"))


def _said(row: Row) -> str:
    if row.prediction is None:
        return row.status.value
    first = (row.prediction.splitlines() or [""])[0]
    return f"{first[:60]!r} ({'right' if row.correct else 'wrong'})"
