"""A run of a stateful method that is killed again and again, for test_store.py; each run is a forked child.

``python killed_run.py points FOLDER`` kills a run at every single system call that changes the folder and lets it
finish; ``python killed_run.py moments FOLDER`` kills runs at random moments until they get through;
``python killed_run.py whole FOLDER`` kills nothing.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.records import Row, Status
from harness.store import RunFolder
from harness.summarise import Heading, summarise
from methods.base import Snapshot

SAMPLES = 4
HEADING = Heading("task", "learner", "none", "none", 1, "python -m harness")
CHANGES = ("write", "fsync", "replace", "rename", "unlink", "ftruncate")


class Learner:
    """Answers depend on everything seen before, and its blobs come and go as anchors in a pool do."""

    def __init__(self) -> None:
        self.seen = "0"
        self.pool: dict[str, torch.Tensor] = {}

    def answer(self, sample: int) -> str:
        content = "".join(hashlib.sha256(t.view(torch.int16).numpy().tobytes()).hexdigest() for t in self.pool.values())
        self.seen = hashlib.sha256(f"{self.seen}{sample}{content}".encode()).hexdigest()
        noise = torch.Generator().manual_seed(int(self.seen[:8], 16))
        self.pool[f"anchor {sample}"] = torch.randn(3, 5, generator=noise).to(torch.bfloat16)
        self.pool = dict(list(self.pool.items())[-2:])
        return self.seen

    def snapshot(self) -> Snapshot:
        return Snapshot({"seen": self.seen, "pool": list(self.pool)}, {n: {"k": t} for n, t in self.pool.items()})

    def restore(self, snapshot: Snapshot) -> None:
        self.seen = snapshot.meta["seen"]
        self.pool = {name: snapshot.blobs[name]["k"] for name in snapshot.meta["pool"]}


def run(path: Path) -> None:
    """What the harness does, less the model."""
    learner = Learner()
    with RunFolder.open(path, "method: learner\n") as folder:
        if folder.complete:
            return
        resumed = folder.resume_state()
        assert resumed.warning is None, resumed.warning
        if resumed.snapshot is not None:
            learner.restore(resumed.snapshot)
        for sample in range(len(folder.rows), SAMPLES):
            answer = learner.answer(sample)
            folder.append(Row(sample_id=str(sample), status=Status.ok, prediction=answer))
            folder.save_state(learner.snapshot())
        folder.finish(summarise(folder.rows, HEADING))


def forked(work: Callable[[], None]) -> int:
    """Run ``work`` in a child and return its pid."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying(path: Path, at: int) -> None:
    """Run, and die before the change number ``at``; a write dies half way."""
    count = 0

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                if name == "write":
                    original(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **named)

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name, getattr(os, name)))
    run(path)


def points(path: Path) -> None:
    at, died = 0, True
    while died:
        at += 1
        shutil.rmtree(path, ignore_errors=True)
        died = waited(forked(partial(dying, path, at))) == -signal.SIGKILL
        if waited(forked(partial(run, path))) != 0:
            sys.exit(f"killed at change {at}, the run does not resume")
        report(path)


def moments(path: Path) -> None:
    for seed in range(2):
        shutil.rmtree(path, ignore_errors=True)
        chance, patience_s, code = random.Random(seed), 0.02, -signal.SIGKILL
        while code == -signal.SIGKILL:
            child = forked(partial(run, path))
            time.sleep(chance.uniform(0.0, patience_s))
            os.kill(child, signal.SIGKILL)
            code = waited(child)
            patience_s *= 1.1  # however slow the machine, the run gets through in the end
        if code != 0:
            sys.exit(f"killed at moments of seed {seed}, the run does not resume")
        report(path)


def whole(path: Path) -> None:
    run(path)
    report(path)


def report(path: Path) -> None:
    """One line per finished run: the hash of its rows and summary, and what else lies in the folder."""
    digest = hashlib.sha256((path / "rows.jsonl").read_bytes() + (path / "summary.json").read_bytes()).hexdigest()
    print(digest, *sorted(p.name for p in path.iterdir()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # killing a process loses nothing that a disk has not seen yet
    {"points": points, "moments": moments, "whole": whole}[sys.argv[1]](Path(sys.argv[2]))
