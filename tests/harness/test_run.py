"""Whole runs through the command line on a tiny model: folders, resume after kill -9, sweeps, bad input."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.sandbox.level import best
from tests.harness.forked import command

COMMON = ["model=tiny", "task=gsm8k", "workflow.max_new_tokens=8", "tracking=none"]
TIMES = ("_s", "peak_bytes")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Harness = Callable[..., Done]


@pytest.fixture
def harness(capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command line in this process: importing torch and transformers anew takes seconds."""

    def run(folder: Path, *overrides: str) -> Done:
        code = main([*COMMON, *overrides, f"results_dir={folder}"])
        return Done(code, *capsys.readouterr())

    return run


def begin(folder: Path, *overrides: str, rows: int) -> ForkServerProcess:
    """A run in a process of its own, which has written at least ``rows`` rows."""
    process = command(*COMMON, *overrides, f"results_dir={folder}")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.is_alive():
        files = list(folder.glob("*/*/rows.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= rows:
            return process
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"no {rows} rows came: {process.exitcode}")


def only_run(folder: Path) -> Path:
    (found,) = folder.glob("*/*/config.yaml")
    return found.parent


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]


def timeless(value: Any) -> Any:
    """A record without what differs from run to run: seconds and memory peaks."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not (k.endswith(TIMES) or k in ("phases", "command", "speedup"))}
        return {k: timeless(v) for k, v in kept.items()}
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("method", ["dense", "full_reuse", "kvcmas"])
@pytest.mark.parametrize("task", ["gsm8k", "mmlu"])
def test_a_run_leaves_a_complete_folder(harness: Harness, tmp_path: Path, method: str, task: str) -> None:
    done = harness(tmp_path, f"method={method}", f"task={task}", "limit=4", "shadow=true")
    assert done.code == 0, done.err
    run = only_run(tmp_path)
    assert run.parent.name == task
    assert run.name.startswith(f"{method}-")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["n"] == 4
    assert summary["method"] == method
    assert summary["statuses"]["error"] == 0
    assert not (run / "state").exists()
    found = rows(run)
    assert len({row["sample_id"] for row in found}) == 4
    for row in found:
        assert [hop["index"] for hop in row["hops"]] == [0, 1, 2, 3]
        assert row["hops"][0]["route"] == "dense"
    if method == "dense":
        assert summary["reuse_ratio"] == 0.0
        assert summary["fresh_share"] == 1.0
    else:
        assert summary["reuse_ratio"] > 0
        assert 0 < summary["fresh_share"] < 1
        assert summary["fidelity"]["kv_error_v"] > 0
    again = harness(tmp_path, f"method={method}", f"task={task}", "limit=4", "shadow=true")
    assert again.code == 0
    assert "complete already" in again.out


def test_programs_run_only_when_told(harness: Harness, tmp_path: Path) -> None:
    refused = harness(tmp_path, "task=humaneval", "limit=2")
    assert refused.code == 2
    assert "task.execute=true" in refused.err
    assert not list(tmp_path.glob("*/*/rows.jsonl"))
    if best()[0] is None:
        pytest.skip("no level of isolation works on this machine")
    done = harness(tmp_path, "task=humaneval", "task.execute=true", "method=kvcmas", "limit=2", "repeats=2")
    assert done.code == 0, done.err
    assert "pass@2" in done.out
    run = only_run(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["pass_at_k"] == {"1": summary["accuracy"], "2": summary["accuracy"]}
    assert summary["programs"] is True
    for row in rows(run):
        assert (row["program"] is None) == (row["status"] == "invalid")
        assert row["hops"][0]["tool"]
        assert not row["hops"][1]["tool"]


REPEATED = ("method=kvcmas", "method.pool=3", "limit=8", "shadow=true", "repeats=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*COMMON, *REPEATED, f"results_dir={folder}"]) == 0
    return folder


@pytest.mark.parametrize("kill_after", [1, 4])
def test_kill_and_resume_equals_an_uninterrupted_run(
    harness: Harness, whole: Path, tmp_path: Path, kill_after: int
) -> None:
    broken = tmp_path / "broken"
    process = begin(broken, *REPEATED, rows=kill_after)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    interrupted = only_run(broken)
    assert kill_after <= len((interrupted / "rows.jsonl").read_bytes().splitlines()) <= 16
    assert not (interrupted / "summary.json").exists()
    resumed = harness(broken, *REPEATED)
    assert resumed.code == 0, resumed.err
    assert timeless(rows(interrupted)) == timeless(rows(only_run(whole)))
    first, second = (json.loads((only_run(f) / "summary.json").read_text()) for f in (whole, broken))
    assert timeless(first) == timeless(second)
    sessions = json.loads((interrupted / "provenance.json").read_text())["sessions"]
    assert len(sessions) == 2


def test_sweep_makes_a_folder_per_value(harness: Harness, tmp_path: Path) -> None:
    done = harness(tmp_path, "-m", "method=kvcmas", "method.rank=8,16,32,64", "limit=1")
    assert done.code == 0, done.err
    assert len(list(tmp_path.glob("gsm8k/kvcmas-*/summary.json"))) == 4
    assert "method.rank=64" in done.out


def test_single_stream_measures_against_dense(harness: Harness, tmp_path: Path) -> None:
    lengths = [f"task.{k}={v}" for k, v in (("shared_tokens", 300), ("system_tokens", 40), ("private_tokens", 9))]
    done = harness(tmp_path, "method=kvcmas", "task=single_stream", "workflow.max_new_tokens=256", *lengths,
                   "task.output_tokens=5", "task.warmup=3", "task.samples=2")  # fmt: skip
    assert done.code == 0, done.err
    run = only_run(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["hops"]["warmup"] == 9
    assert summary["hops"]["reuse"] == 4
    assert summary["speedup"]["n"] == 4
    assert summary["accuracy"] is None
    for row in rows(run):
        assert [hop["output_tokens"] for hop in row["hops"]] == [5, 5, 5]
        assert row["hops"][0]["prompt_tokens"] == 40 + 300 + 9 + 8


LINE = '{"question": "1+1?", "answer": "2 #### 2"}\n'


def bad_file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["method=kvcmass"], ["kvcmass", "kvcmas"]),
        (["method.rnak=8"], ["rnak", "rank"]),
        (["method.rank=0"], ["method.rank=0"]),
        (["method.rank=-4"], ["method.rank=-4"]),
        (["method.rank=abc"], ["method.rank", "abc"]),
        (["task.source=missing.jsonl"], ["missing.jsonl"]),
        (["limit=0"], ["limit"]),
        (["model=llama31_8b", "model.path={tmp}"], ["model.path"]),
        (["task.source={broken}"], ["broken.jsonl:2"]),
        (["task.source={columns}"], ["question"]),
        (["task.source={long}"], ["context", "sample"]),
        (["workflow.graph=ring"], ["workflow.graph"]),
        (["method=cacheblend", "method.check_layer=9"], ["cacheblend", "tiny", "check_layer"]),
        (["method=droidspeak", "method.group=[5,9]"], ["droidspeak", "group"]),
        (["backend.kernels=triton", "model.device=cpu"], ["backend.kernels=triton", "auto"]),
        (["method.tau=nan"], ["method.tau=nan"]),
        (["task.source={twice}"], ["twice.csv:1", "answer"]),
        (["task.source={parquet}"], ["broken.parquet"]),
        (["task=single_stream", "workflow=loop"], ["workflow"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    harness: Harness, tmp_path: Path, overrides: list[str], said: list[str]
) -> None:
    files = {
        "tmp": tmp_path,
        "broken": bad_file(tmp_path, "broken.jsonl", LINE + "{nonsense\n"),
        "columns": bad_file(tmp_path, "columns.jsonl", '{"query": "1+1?", "reply": "2"}\n'),
        "twice": bad_file(tmp_path, "twice.csv", "question,answer,answer\n1+1?,#### 2,#### 3\n"),
        "parquet": bad_file(tmp_path, "broken.parquet", "no parquet at all"),
        "long": bad_file(tmp_path, "long.jsonl", json.dumps({"question": "word " * 4000, "answer": "#### 2"}) + "\n"),
    }
    done = harness(tmp_path / "results", *(o.format(**files) for o in overrides))
    assert done.code == 2, done.err
    message = done.err.strip()
    assert message.startswith("error: ")
    assert "\n" not in message
    assert "Traceback" not in message
    for part in said:
        assert part in message
    assert not list((tmp_path / "results").glob("*/*/rows.jsonl"))


def test_a_held_folder_is_refused(harness: Harness, tmp_path: Path) -> None:
    options = ["method=dense", "limit=40"]
    process = begin(tmp_path, *options, rows=1)
    try:
        done = harness(tmp_path, *options)
        assert done.code == 2
        assert str(process.pid) in done.err
    finally:
        process.kill()
        process.join()
