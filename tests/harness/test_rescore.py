"""Scores made again from stored answers: what changes, what stays, and everything that stands in the way."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from harness.cli import main as run
from harness.folder import read_provenance, read_rows, read_summary
from harness.records import Status
from harness.rescore import main

QUESTIONS = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(1, 5)]
RAW = ["So, the answer is 2.", "The answer is 99.", "I do not know.", "It is 8"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data file and a complete run, whose rows then get answers that a model could give and verdicts
    that an older code could have given."""
    place = tmp_path_factory.mktemp("made")
    data = place / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    words = ["model=tiny", "method=full_reuse", "task=gsm8k", f"task.source={data}", "workflow.max_new_tokens=4"]
    assert run([*words, "tracking=none", f"results_dir={place}"]) == 0
    (config,) = place.glob("*/*/config.yaml")
    folder = config.parent
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for row, raw in zip(rows, RAW, strict=True):
        row |= {"raw": raw, "prediction": "7", "status": "ok", "correct": False, "message": ""}
    rows[3] |= {"prediction": None, "status": "error", "message": "it broke", "hops": []}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.rename(place / "run")
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(place: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Rescore the copied run, whose data lies elsewhere now; returns exit code, stdout and stderr."""

    def call(*words: str, source: Path | None = None, folder: Path | None = None) -> tuple[int, str, str]:
        where = source or place / "data.jsonl"
        code = main([str(folder or place / "run"), f"task.source={where}", *words])
        return (code, *capsys.readouterr())

    return call


def contents(folder: Path) -> dict[str, bytes]:
    kept = (f for f in folder.rglob("*") if f.is_file() and f.name != ".lock")
    return {str(f.relative_to(folder)): f.read_bytes() for f in kept}


def test_what_changes_is_shown_and_nothing_is_written(place: Path, told: Told) -> None:
    before = contents(place / "run")
    code, out, err = told()
    assert (code, err) == (0, "")
    assert contents(place / "run") == before
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert lines["correct"] == ["0", "1"]
    assert lines["ok"] == ["3", "2"]
    assert lines["invalid"] == ["0", "1"]
    assert lines["error"] == ["1", "1"]
    assert "'7' (wrong) -> '2' (right)" in out
    assert "'7' (wrong) -> invalid" in out
    assert "4 rows, 3 change" in out


def test_rows_and_summary_are_replaced_and_the_rest_stays(place: Path, told: Told) -> None:
    run_folder = place / "run"
    old, before = read_rows(run_folder).rows, contents(run_folder)
    assert told("--write")[0] == 0
    new, summary, provenance = read_rows(run_folder).rows, read_summary(run_folder), read_provenance(run_folder)
    assert summary is not None
    assert provenance is not None
    assert [(r.prediction, r.status, r.correct) for r in new] == [
        ("2", Status.ok, True),
        ("99", Status.ok, False),
        (None, Status.invalid, False),
        (None, Status.error, False),
    ]
    for one, other in zip(old, new, strict=True):
        assert (one.hops, one.raw, one.e2e_s, one.target, one.state_bytes) == (
            *(other.hops, other.raw, other.e2e_s, other.target, other.state_bytes),
        )
    assert new[3] == old[3]
    assert summary.accuracy == 0.25
    assert summary.rescored is not None
    assert (summary.rescored.changed, summary.rescored.accuracy_before) == (3, 0.0)
    assert provenance.sessions[-1].command.startswith("python -m harness.rescore")
    assert provenance.sessions[-1].data == provenance.sessions[0].data
    after = contents(run_folder)
    assert after["rows.jsonl.bak-1"] == before["rows.jsonl"]
    assert after["config.yaml"] == before["config.yaml"]
    # Once more: nothing changes, and no further copy is made.
    code, out, _ = told("--write")
    assert (code, "4 rows, 0 change" in out) == (0, True)
    assert read_rows(run_folder).rows == new
    assert "rows.jsonl.bak-2" not in contents(run_folder)


def test_a_kill_between_the_two_files_is_mended(place: Path, told: Told) -> None:
    stale = (place / "run" / "summary.json").read_bytes()
    told("--write")
    (place / "run" / "summary.json").write_bytes(stale)
    assert told("--write")[0] == 0
    summary = read_summary(place / "run")
    assert summary is not None
    assert summary.accuracy == 0.25


def test_a_fresh_run_scores_as_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", "method=dense", "task=mmlu", "limit=2", "duplicates=0.5", "workflow.max_new_tokens=4"]
    assert run([*words, "tracking=none", f"results_dir={tmp_path}"]) == 0
    (config,) = tmp_path.glob("*/*/config.yaml")
    capsys.readouterr()
    assert main([str(config.parent)]) == 0
    assert " 0 change" in capsys.readouterr().out
    assert main([str(config.parent), "task.extractor=substring"]) == 0


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), "is no run folder: it has no config.yaml"),
    "no config": (lambda f: (f / "config.yaml").unlink(), "is no run folder: it has no config.yaml"),
    "no provenance": (lambda f: (f / "provenance.json").unlink(), "has no provenance.json"),
    "edited config": (lambda f: edit(f / "config.yaml", lambda b: b + b"# me\n"), "was edited after the run began"),
    "no rows": (lambda f: (f / "rows.jsonl").unlink(), "has no rows to score; run it first: python -m harness"),
    "no bytes": (lambda f: (f / "rows.jsonl").write_bytes(b""), "has no rows to score"),
    "torn": (lambda f: edit(f / "rows.jsonl", lambda b: b[:-9]), "ends in the middle of a row; complete the run"),
    "broken": (lambda f: edit(f / "rows.jsonl", lambda b: b[9:]), "rows.jsonl:1 is no row of this run"),
    "lost row": (lambda f: edit(f / "rows.jsonl", lambda b: b.split(b"\n", 1)[1]), "3 rows but the summary counts 4"),
    "incomplete": (lambda f: (f / "summary.json").unlink(), r"is not complete \(4 rows\); complete it first: python"),
    "damaged": (lambda f: (f / "summary.json").write_bytes(b"{"), "summary.json is damaged"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_folder_that_cannot_be_scored_is_one_sentence(harm: str, place: Path, told: Told) -> None:
    spoil, message = HARM[harm]
    spoil(place / "run")
    refused(told, message)
    if (place / "run").exists():
        assert not list((place / "run").glob("*.bak*"))


def refused(told: Told, message: str, *words: str, **where: Path) -> None:
    code, _, err = told("--write", *words, **where)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err


def test_other_data_isrefused(place: Path, told: Told) -> None:
    other = place / "other.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS[::-1]))
    refused(told, "holds other data than the run used .* give the same data with task.source=", source=other)


def test_lost_data_isrefused(place: Path, told: Told) -> None:
    refused(told, "is no file", source=place / "gone.jsonl")


def test_the_same_data_under_another_name_will_do(place: Path, told: Told) -> None:
    (place / "data.jsonl").rename(place / "moved.jsonl")
    assert told(source=place / "moved.jsonl")[0] == 0


def test_options_are_checked(told: Told) -> None:
    refused(told, "task.extractor and --write do not go together", "task.extractor=substring")
    refused(told, "task.sauce=1: there is no option task.sauce, did you mean task.source?", "task.sauce=1")
    refused(told, "tsk.execute=true: there is no option tsk.execute, did you mean task.execute?", "tsk.execute=true")
    refused(told, "extractor=model: there is no option extractor, did you mean task.extractor?", "extractor=model")
    refused(told, "--wirte: there is no such flag, did you mean --write?", "--wirte")
    refused(told, "expected one run folder", "another")
    refused(told, "task.tau must be a finite number", "task.tau=-1")


def test_a_task_from_elsewhere_is_not_made(place: Path, told: Told) -> None:
    """A configuration is code, and a results folder may come from anybody."""
    config, provenance = place / "run" / "config.yaml", place / "run" / "provenance.json"
    edit(config, lambda b: b.replace(b"harness.tasks.gsm8k.Gsm8k", b"subprocess.Popen"))
    facts = json.loads(provenance.read_text())
    facts["config_sha256"] = hashlib.sha256(config.read_bytes()).hexdigest()
    provenance.write_text(json.dumps(facts))
    refused(told, "names the task subprocess.Popen; only tasks below harness.tasks. are made")


def test_a_held_folder_is_left_alone(place: Path, told: Told) -> None:
    before = contents(place / "run")
    with FileLock(place / "run" / ".lock"):
        refused(told, "is held by another process")
    assert contents(place / "run") == before


def test_no_model_library_is_loaded(place: Path) -> None:
    code = (
        "import sys; from harness.rescore import main; "
        f"main([r'{place / 'run'}', r'task.source={place / 'data.jsonl'}']); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_programs_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "model=tiny",
        "method=dense",
        "task=humaneval",
        "task.execute=true",
        "limit=2",
        "workflow.max_new_tokens=4",
    ]
    assert run([*words, "tracking=none", f"results_dir={tmp_path}"]) == 0
    (config,) = tmp_path.glob("*/*/config.yaml")
    folder = config.parent
    target = read_rows(folder).rows[0].target
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    rows[0]["raw"] = f"```python\n{target}\n```"  # what a model that knows the answer would have written
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert main([str(folder), "--write"]) == 0
    first, second = read_rows(folder).rows
    assert first.correct
    assert first.program is not None
    assert not second.correct
    assert main([str(folder), "task.execute=false"]) == 2
    assert "task.execute=true" in capsys.readouterr().err


def test_what_the_model_extracted_is_kept_and_scored_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", "method=full_reuse", "task=gsm8k", "limit=2", "workflow.max_new_tokens=4", "tracking=none"]
    assert run([*words, "task.extractor=model", f"results_dir={tmp_path}"]) == 0
    assert run([*words, f"results_dir={tmp_path}"]) == 0
    folders = {
        "model" in (f / "config.yaml").read_text().split("extractor: ")[1].split()[0]: f for f in tmp_path.glob("*/*")
    }
    asked, ruled = (read_rows(folders[key]).rows for key in (True, False))
    for one, other in zip(asked, ruled, strict=True):
        answer, mark, _ = one.raw.partition("\n\nExtracted: ")
        assert mark
        assert answer == other.raw
        assert [h.output_ids for h in one.hops] == [h.output_ids for h in other.hops]
    capsys.readouterr()
    assert main([str(folders[True])]) == 0
    assert " 0 change" in capsys.readouterr().out
