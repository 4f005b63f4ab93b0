"""What is damaged, missing or mistyped stops no report, is told in a line, and supports no verdict."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from report_runs import write_experiment, write_run

from harness.folder import ROWS, SUMMARY, read_summary
from harness.report.__main__ import main
from harness.report.block import blocks
from harness.report.collect import Collected, collect
from harness.report.evidence import Evidence
from harness.report.exhibit import Point, exhibits
from harness.report.paired import main as paired
from harness.report.ridge import main as ridge
from harness.report.run import Run
from harness.report.shards import merged
from harness.report.tables import all_runs, marks
from harness.report.verdict import verdicts
from harness.reported import read_reported

KVCMAS = Point(("method=kvcmas",))
Damage = Callable[[Path], None]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs", KVCMAS, n=4)
    return tmp_path / "runs"


def other(runs: Path, seed: int = 1) -> Path:
    """Another run, of four samples."""
    return write_run(runs, KVCMAS, n=4, seed=seed)


def told(found: Collected) -> list[str]:
    return [f"{p.folder}: {p.what}; {p.remedy}" for p in found.problems]


def run_of(found: Collected, folder: Path) -> Run:
    (run,) = (run for run in found.runs if run.path == folder)
    return run


def wrong(folder: Path) -> None:
    """A summary from before a rescore that was killed between the rows and it: all of them are right by now."""
    file = folder / ROWS
    file.write_bytes(file.read_bytes().replace(b'"correct":false', b'"correct":true'))
    rows, summary = file.read_bytes(), folder / SUMMARY
    assert b'"correct":true' in rows
    text = summary.read_text()
    begin = text.index('"accuracy":') + len('"accuracy":')
    summary.write_text(text[:begin] + "0.0" + text[text.index(",", begin) :])


def fewer(folder: Path) -> None:
    file = folder / ROWS
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:2]))


def none(folder: Path) -> None:
    (folder / ROWS).unlink()


def absurd(folder: Path) -> None:
    file = folder / ROWS
    file.write_bytes(file.read_bytes().replace(b'"first_token_kl":', b'"first_token_kl":1e308,"was":'))


def endless(folder: Path) -> None:
    file = folder / ROWS
    file.write_bytes(file.read_bytes().replace(b'"e2e_s":', b'"e2e_s":NaN,"was":', 1))


DAMAGE: dict[Damage, tuple[str, str]] = {
    wrong: ("summary contradicts its rows", "summary.json has an accuracy of 0 %, in rows.jsonl 4 of 4 scored rows"),
    fewer: ("2 of 4 rows", "rows.jsonl has 2 readable rows, summary.json counts 4"),
    none: ("0 of 4 rows", "rows.jsonl has 0 readable rows, summary.json counts 4"),
    absurd: ("rows damaged", "is no row (Expected `float` <= "),
    endless: ("rows damaged", "line 1 of rows.jsonl is no row (JSON is malformed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_that_cannot_be_believed_is_told_in_one_line_and_marked(runs: Path, damage: Damage) -> None:
    folder = other(runs)
    damage(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's, of numbers that overflow
        found = collect([runs])
        run = run_of(found, folder)
        grid = all_runs(found.runs, frozenset())
    mark, said = DAMAGE[damage]
    assert marks(run).text == mark
    assert marks(run).mark == "bad"
    assert mark in [row[grid.heads.index("marks")].text for row in grid.rows]
    assert len(told(found)) == 1
    assert said in told(found)[0]
    assert not any("nan" in cell.text for row in grid.rows for cell in row)
    assert [len(r.rows) for r in found.runs if r is not run] == [4]


def test_an_interrupted_rescore_has_its_remedy(runs: Path) -> None:
    folder = other(runs)
    wrong(folder)
    (line,) = told(collect([runs]))
    assert f"python -m harness.rescore {'/'.join(folder.parts[-3:])} --write" in line


def test_what_a_run_says_of_itself_is_told(runs: Path) -> None:
    (folder,) = (runs / "gsm8k").iterdir()
    summary = read_summary(folder)
    assert summary is not None
    said = msgspec.structs.replace(summary, warnings=["two codes wrote its rows"])
    (folder / SUMMARY).write_bytes(msgspec.json.encode(said))
    assert any("two codes wrote its rows" in line for line in told(collect([runs])))


def test_how_rows_ended_is_counted_again(runs: Path) -> None:
    file = other(runs) / SUMMARY
    file.write_bytes(file.read_bytes().replace(b'"ok":4', b'"ok":3').replace(b'"oom":0', b'"oom":1'))
    (line,) = told(collect([runs]))
    assert "summary.json counts 3 ok, 1 oom, rows.jsonl has 4 ok" in line


@pytest.mark.parametrize("damage", [None, wrong, fewer, none])
def test_no_verdict_rests_on_such_a_run(tmp_path: Path, damage: Damage | None) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "reference")
    words = ("method=kvcmas", "method.reference=upstream", "task=mmlu", "model=llama31_8b")
    folder = write_run(tmp_path, Point(words), exhibit.command, n=1531)
    if damage is not None:
        damage(folder)
    placed = {"reference": blocks(exhibit, collect([tmp_path]).runs), "accuracy": []}
    found = {v.reported.id: v for v in verdicts(read_reported(), Evidence(placed))}
    assert (found["chain_mmlu_on"].verdict in ("reproduced", "differs")) is (damage is None)
    assert (found["n_mmlu"].verdict == "reproduced") is (damage is None)


def test_an_impossible_number_of_a_summary(runs: Path) -> None:
    folder = other(runs)
    file = folder / SUMMARY
    file.write_bytes(file.read_bytes().replace(b'"learn_s":0.0', b'"learn_s":1e308'))
    found = collect([runs])
    assert len(found.runs) == 1
    assert "summary.json has a number that nothing can have measured (1e+308)" in told(found)[0]


@pytest.mark.parametrize("name", [SUMMARY, ROWS, "config.yaml", "provenance.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_should_be_a_file_and_is_none_stops_nothing(runs: Path, name: str, make: Damage) -> None:
    folder = other(runs)
    (folder / name).unlink()
    make(folder / name)
    found = collect([runs])
    (line,) = told(found)
    assert f"{name} is {'a folder' if make is Path.mkdir else 'no regular file'}; remove it" in line
    assert len(found.runs) == 1


def test_names_that_cannot_be_shown_are_escaped(runs: Path) -> None:
    folder = other(runs)
    shutil.copytree(folder, folder.with_name(os.fsdecode(b"x\xff")))
    odd = other(runs, 2)
    odd.rename(odd.with_name("two\nlines"))
    out = runs.parent / "out"
    (folder / SUMMARY).unlink()
    assert main([str(runs), "--out", str(out)]) == 0
    table = (out / "tables" / "runs.md").read_text()
    assert r"gsm8k/x\xff |" in table
    assert r"gsm8k/two\nlines |" in table
    assert len(table.splitlines()) == 5
    assert all(line.startswith("| ") for line in table.splitlines())
    assert r"gsm8k/x\xff" in (out / "report.html").read_text()


class TestCopies:
    @pytest.fixture(params=["a", "z"])
    def copy(self, runs: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
        """A run and its copy, whose folder comes before or after it."""
        folder = other(runs)
        return folder, shutil.copytree(folder, runs / str(request.param) / folder.name)

    @pytest.mark.parametrize("harm", ["options", "torn", "summary", "rows"])
    def test_the_sound_one_counts(self, runs: Path, copy: tuple[Path, Path], harm: str) -> None:
        sound, damaged = copy
        rows = damaged / ROWS
        if harm == "options":
            (damaged / "config.yaml").write_text("[]")
        elif harm == "torn":
            rows.write_bytes(rows.read_bytes() + b'{"sample')
        elif harm == "summary":
            wrong(damaged)
        else:
            rows.write_bytes(rows.read_bytes().replace(b'"status":"ok"', b'"status":"odd"', 1))
        found = collect([runs])
        assert {run.path for run in found.runs} >= {sound}
        assert len(found.runs) == 2
        assert all(run.sound for run in found.runs)
        where = "/".join(damaged.parts[-3:])
        assert any(line.startswith(f"{where}: damaged, so that") or "a copy of" in line for line in told(found))

    def test_one_whose_provenance_is_lost_gives_way_to_a_sound_one(self, tmp_path: Path) -> None:
        (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
        sound = write_experiment(tmp_path, "ablate_rank", n=4)[0]
        damaged = shutil.copytree(sound, tmp_path / "a" / sound.name)
        (damaged / "provenance.json").unlink()
        fewer(damaged)
        found = collect([tmp_path])
        assert not run_of(found, damaged).sound
        (block,) = blocks(exhibit, found.runs)
        assert sound in [placed.run.path for placed in block.each]
        assert damaged not in [placed.run.path for placed in block.each]

    def test_damaged_shards_are_not_put_together(self, tmp_path: Path) -> None:
        folders = [write_run(tmp_path, KVCMAS, n=4, shard=shard) for shard in ("1/2", "2/2")]
        fewer(folders[1])
        made, problems = merged(collect([tmp_path]).runs)
        assert {run.path for run in made} == set(folders)
        assert "cannot be put together" in problems[0].what


class TestCommandLine:
    @pytest.fixture
    def old(self, runs: Path) -> Path:
        out = runs.parent / "out"
        assert main([str(runs), "--out", str(out)]) == 0
        return out

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["EMPTY"], "there is no run folder in "),
            ([""], "a folder is empty, as the value of a shell variable that is not set"),
            (["RUNS", ""], "a folder is empty"),
            (["RUNS", "--out", ""], "--out is empty"),
            (["RUNS", "--analyses", ""], "--analyses is empty"),
            (["RUNS", "--analyses", "/nothere"], "--analyses /nothere is no folder"),
        ],
    )
    def test_what_names_nothing_is_refused_and_the_old_page_stays(
        self,
        old: Path,
        words: list[str],
        said: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        empty = old.parent / "empty"
        empty.mkdir()
        monkeypatch.chdir(old.parent)
        before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
        named = [{"EMPTY": str(empty), "RUNS": str(old.parent / "runs")}.get(word, word) for word in words]
        assert main(["--out", str(old), *named]) == 2
        assert capsys.readouterr().err.startswith(f"error: {said}")
        assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before
        assert not list(empty.iterdir())
        assert not (old.parent / "report.html").exists()

    def test_an_empty_folder_beside_others_has_a_line(self, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (empty := old.parent / "empty").mkdir()
        assert main([str(old.parent / "runs"), str(empty), "--out", str(old)]) == 0
        assert "empty: there is no run folder in it; give run folders" in capsys.readouterr().err

    def test_the_default_folder_of_analyses_need_not_be_there(self, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(old.parent)
        assert main([str(old.parent / "runs"), "--out", str(old)]) == 0

    def test_a_figure_s_ending_is_one_of_those_that_are_drawn(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert ridge([str(tmp_path / "x.json"), "--out", str(tmp_path / "r.abc")]) == 2
        assert "a figure is one of .png, .pdf, .svg" in capsys.readouterr().err

    @pytest.mark.parametrize("place", ["own", "over"])
    def test_pairs_need_all_rows(self, runs: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
        whole, part = other(runs), other(runs, 2)
        assert paired([str(part), "--over", str(whole)]) == 0
        fewer(part)
        capsys.readouterr()
        words = [part, "--over", whole] if place == "own" else [whole, "--over", part]
        assert paired(list(map(str, words))) == 2
        assert f"{part} has 2 whole rows but its summary counts 4" in capsys.readouterr().err
