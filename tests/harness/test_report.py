"""The report: nothing vanishes, equal folders give equal bytes, statistics are those of their definitions."""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import json
import os
import re
import shutil
import signal
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
import numpy as np
import pytest
from report_runs import LAYERS, write_experiment, write_run
from scipy.stats import binomtest

from harness.folder import ROWS, SUMMARY, read_rows
from harness.ladder import ladder
from harness.records import Status
from harness.report.__main__ import main
from harness.report.block import blocks
from harness.report.collect import collect
from harness.report.evidence import Evidence
from harness.report.exhibit import Point, exhibits
from harness.report.figure import panels, series, value
from harness.report.quantity import QUANTITIES, Quantity, quantity_of
from harness.report.ranks import read_ranks
from harness.report.relative import left_of
from harness.report.rows import RowLine
from harness.report.shards import NOTE, merged
from harness.report.staging import OWN, staged
from harness.report.style import METHODS, PALETTE, look
from harness.report.tables import block_grid, marks
from harness.report.value import number, ratio_of_sums
from harness.report.verdict import verdicts
from harness.report.versus import Paired, paired, repeats
from harness.reported import read_reported
from harness.summarise import Heading, summarise

SECONDS_A_RUN = 0.24  # 500 runs in 30 s on two cores are 0.12; neighbours on the same cores double it

KVCMAS = Point(("method=kvcmas",))


def report(folder: Path, *places: Path) -> tuple[int, Path]:
    out = folder / "out"
    (folder / "analysis").mkdir(exist_ok=True)
    words = [*map(str, places or (folder / "runs",)), "--out", str(out), "--analyses", str(folder / "analysis")]
    return main(words), out


def files(out: Path) -> dict[str, bytes]:
    """What a reader sees."""
    return {
        str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and OWN not in p.parts
    }


@pytest.fixture(scope="module")
def ranks_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    write_experiment(root / "runs", "ablate_rank", n=4)
    return root


def test_equal_folders_give_equal_bytes_and_all_forms(ranks_run: Path, tmp_path: Path) -> None:
    code, out = report(ranks_run)
    assert code == 0
    first = files(out)
    shutil.rmtree(out)
    report(ranks_run)
    assert files(out) == first
    names = {name.rpartition(".")[0] for name in first if name.startswith("tables/ablate_rank")}
    assert len(names) == 1
    (name,) = names
    assert {f"{name}.{kind}" for kind in ("md", "tex", "csv")} <= first.keys()
    figure = name.replace("tables", "figures")
    assert first[f"{figure}.pdf"].startswith(b"%PDF")
    assert first[f"{figure}.png"].startswith(b"\x89PNG")
    assert b"toprule" in first[f"{name}.tex"]
    rows = list(csv.DictReader(first[f"{name}.csv"].decode().splitlines()))
    assert {"run", "KL, nats", "KL, nats (low)", "KL, nats (high)", "state, MiB"} <= rows[0].keys()
    low, value, high = (float(rows[2][f"KL, nats{end}"]) for end in (" (low)", "", " (high)"))
    assert low <= value <= high
    page = first["report.html"].decode()
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert "python -m harness -m +experiment=accuracy" in page  # what is missing is named with its command


def test_what_no_exhibit_shows_any_more_is_removed_and_nothing_of_a_user(tmp_path: Path) -> None:
    folders = write_experiment(tmp_path / "runs", "ridge", n=3)
    _, out = report(tmp_path)
    first = set(files(out))
    (changed,) = out.glob("tables/ridge-*.md")
    changed.write_text("my own notes")
    for own in ("tables/mine.md", "figures/ridge-mine.png"):
        (out / own).write_text("of a user")
    outside = tmp_path / "outside.md"
    outside.write_text("of a user")
    listed = out / "tables" / "manifest.json"
    names = json.loads(listed.read_text())
    digest = hashlib.sha256(b"of a user").hexdigest()
    listed.write_text(json.dumps(names | {"../outside.md": digest, str(outside): digest}))
    for folder in folders:
        shutil.rmtree(folder)
    write_run(tmp_path / "runs", KVCMAS, n=3)
    report(tmp_path)
    left = set(files(out))
    gone = {name for name in first if "/ridge-" in name and name != changed.relative_to(out).as_posix()}
    assert len(gone) >= 3
    assert not gone & left
    assert left >= (first - gone) | {"tables/mine.md", "figures/ridge-mine.png"}
    assert changed.read_text() == "my own notes"
    assert outside.exists()


def killed(root: Path, where: str, name: str, calls: int) -> None:
    """A report whose process is killed at the given call of a function."""

    def work() -> None:
        module = importlib.import_module(where)
        counter, called = itertools.count(1), getattr(module, name)

        def counted(*given: Any) -> Any:
            if next(counter) == calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return called(*given)

        setattr(module, name, counted)
        report(root)

    process = get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("where", "name", "calls", "moved"),
    [
        ("harness.report.manifest", "record", 1, False),  # everything is made, nothing is listed
        ("harness.report.staging", "_move", 1, True),
        ("harness.report.staging", "_move", 5, True),
        ("harness.report.manifest", "stale", 1, True),  # everything but the list is moved
    ],
)
def test_a_killed_report_leaves_one_report(tmp_path: Path, where: str, name: str, calls: int, moved: bool) -> None:
    for folder in write_experiment(tmp_path / "runs", "ridge", n=3)[1:]:
        shutil.rmtree(folder)
    _, out = report(tmp_path)
    first = files(out)
    shutil.rmtree(tmp_path / "runs")
    write_run(tmp_path / "runs", KVCMAS, n=3)
    killed(tmp_path, where, name, calls)
    if not moved:
        assert files(out) == first
    assert report(tmp_path, tmp_path / "none")[0] == 2  # which begins with what the killed one had not finished
    after = files(out)
    assert {p.name for p in (out / OWN).iterdir()} == {".lock"}
    report(tmp_path)
    assert (after == files(out)) is moved
    assert (after == first) is not moved
    shutil.rmtree(out)
    last = files(report(tmp_path)[1])
    assert (last == after) is moved


def test_one_report_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", KVCMAS, n=3)
    with staged(tmp_path / "out"):
        assert report(tmp_path)[0] == 2
    assert "another report is being written" in capsys.readouterr().err
    assert report(tmp_path)[0] == 0


def test_a_run_is_placed_by_its_options_and_what_is_missing_is_named(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
    folders = write_experiment(tmp_path, "ablate_rank", n=3)
    shutil.rmtree(folders[3])
    write_run(tmp_path, Point(("method=kvcmas", "method.rank=8")), n=3)  # closed loop and another gate: no point of it
    (block,) = blocks(exhibit, collect([tmp_path]).runs)
    assert len(block.runs) == len(folders) - 1
    assert [p.label for p in block.missing] == [exhibit.points("laptop")[3].label]
    grid = block_grid(block)
    assert len(grid.rows) == len(block.runs)
    assert all(len(row) == len(grid.heads) for row in grid.rows)


def test_so_many_requests_may_fill_pools_as_a_user_likes_but_some_must(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
    for warmup in (2, 5, 0):
        write_experiment(tmp_path, "ablate_rank", n=3, warmup=warmup)
    found = blocks(exhibit, collect([tmp_path]).runs)
    assert {block.facts["warmup"] for block in found} == {"warmup=2", "warmup=5"}


def test_other_samples_are_another_block(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
    for limit in (3, 4):
        write_experiment(tmp_path, "ablate_rank", n=limit, limit=limit)
    found = blocks(exhibit, collect([tmp_path]).runs)
    assert len(found) == 2
    assert {block.facts["limit"] for block in found} == {"limit=3", "limit=4"}
    assert len({block.name for block in found}) == 2


def test_runs_that_differ_by_their_seed_are_one_line(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
    for seed in (0, 1, 2):
        write_experiment(tmp_path, "ablate_rank", n=4, seed=seed)
    (block,) = blocks(exhibit, collect([tmp_path]).runs)
    assert len(block.runs) == len(exhibit.points("laptop"))
    assert all([run.option("seed") for run in placed.runs] == [0, 1, 2] for placed in block.runs)
    placed = next(p for p in block.runs if p.run.method == "kvcmas")
    by_seed = [quantity_of(run, "kl") for run in placed.runs]
    numbers = [v.value for v in by_seed if v is not None]
    found = value(block, placed, "kl")
    assert found is not None
    assert found.value == pytest.approx(np.mean(numbers))
    assert (found.high or 0) - found.value == pytest.approx(np.std(numbers, ddof=1))
    grid = block_grid(block)
    row = next(r for r in grid.rows if r[0].text == placed.point.label)
    assert " ± " in row[grid.heads.index("KL, nats")].text
    assert row[-2].text == "3 × 4"
    assert row[-1].text == "over 3 seeds"
    assert any("standard deviation over 3 seeds" in note for note in grid.notes)


def test_a_seed_is_compared_with_dense_of_the_same_seed(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "accuracy")
    for seed in (0, 1):
        for method in ("dense", "kvcmas"):
            write_run(tmp_path, Point((f"method={method}", "task=gsm8k")), exhibit.command, n=6, seed=seed)
    (block,) = blocks(exhibit, collect([tmp_path]).runs)
    (dense,) = (p for p in block.runs if p.run.method == "dense")
    assert [block.baseline(run) for run in dense.runs] == list(dense.runs)
    (own,) = (p for p in block.runs if p.run.method == "kvcmas")
    points = [found.points for run, base in zip(own.runs, dense.runs, strict=True) if (found := paired(run, base))]
    (cell,) = (c for c in block_grid(block).rows[block.runs.index(own)] if c.title.count("p = ") == 2)
    assert cell.value is not None
    assert cell.value.value == pytest.approx(np.mean(points))


def test_every_method_keeps_its_colour_where_methods_are_the_axis(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ridge")
    write_experiment(tmp_path, "ridge", n=3)
    (block,) = blocks(exhibit, collect([tmp_path]).runs)
    (panel,) = (p for p in panels(block) if p.x == "method")
    assert {line.method for line in series(block, panel)} == {placed.run.method for placed in block.runs}


def test_a_figure_has_a_line_per_setting_a_level_for_what_has_no_rank(tmp_path: Path) -> None:
    (exhibit,) = (e for e in exhibits() if e.name == "ablate_rank")
    write_experiment(tmp_path, "ablate_rank", n=3)
    (block,) = blocks(exhibit, collect([tmp_path]).runs)
    panel = panels(block)[0]
    found = {line.label: line for line in series(block, panel)}
    assert found["full_reuse"].level
    swept = found["kvcmas gate=always"]
    assert swept.x == (2, 4, 8, 16, 32, 64)
    oracle = (p.run for p in block.runs if p.run.method == "oracle_delta")
    by_rank = {run.option("method.rank"): quantity_of(run, "kl") for run in oracle}
    assert found["oracle_delta"].y == tuple(by_rank[x] for x in (2, 4, 8, 16, 32, 64))
    assert all(v.low is not None and v.low <= v.value <= (v.high or 0) for v in swept.y)


def test_a_method_has_one_colour_everywhere() -> None:
    assert len({look(m)["color"] for m in METHODS[:8]}) == len(PALETTE)
    assert look("kvcmas")["color"] == look("kvcmas", variant=3)["color"]
    assert look("kvcmas") != look("kvcmas", variant=1)
    assert len({(look(m)["color"], look(m)["marker"]) for m in METHODS}) == len(METHODS)


@pytest.mark.parametrize("q", QUANTITIES.values(), ids=lambda q: q.name)
def test_a_definition_says_more_than_its_label(q: Quantity) -> None:
    said, label = (set(re.findall(r"\w+", text.lower())) for text in (q.meaning or q.axis, q.head))
    assert len(said - label) >= 2


class TestProblems:
    """Folders that are not simply a complete run are told, never dropped, and stop nothing."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        write_run(tmp_path / "runs", KVCMAS, n=3)
        return tmp_path

    def told(self, root: Path) -> str:
        return "\n".join(f"{p.folder}: {p.what}; {p.remedy}" for p in collect([root / "runs"]).problems)

    def broken(self, root: Path, seed: int = 1) -> Path:
        return write_run(root / "runs", KVCMAS, n=3, seed=seed)

    def test_a_torn_row(self, root: Path) -> None:
        rows = self.broken(root) / ROWS
        rows.write_bytes(rows.read_bytes()[:-30])
        said = self.told(root)
        assert "ends in the middle of a row, summary.json counts 3" in said
        found = collect([root / "runs"])
        assert len(found.runs) == 2  # its summary still counts
        assert sorted(len(run.rows) for run in found.runs) == [0, 3]

    def test_a_missing_summary(self, root: Path) -> None:
        (self.broken(root) / SUMMARY).unlink()
        assert "not complete: 3 rows and no summary.json; go on with it: python -m harness" in self.told(root)

    def test_an_unknown_schema(self, root: Path) -> None:
        path = self.broken(root) / SUMMARY
        path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":99'))
        assert "has schema version 99" in self.told(root)

    def test_a_line_that_is_no_row(self, root: Path) -> None:
        path = self.broken(root) / ROWS
        path.write_bytes(b"{}\n" + path.read_bytes())
        assert "line 1 of rows.jsonl is no row" in self.told(root)

    @pytest.mark.parametrize("name", ["config.yaml", "provenance.json"])
    def test_a_missing_or_damaged_file(self, root: Path, name: str) -> None:
        (self.broken(root, 1) / name).unlink()
        (self.broken(root, 2) / name).write_text("{]")
        said = self.told(root)
        assert f"there is no {name}" in said
        assert f"{name} cannot be read" in said or f"{name} is damaged" in said

    def copied(self, root: Path) -> tuple[Path, Path]:
        first = self.broken(root)
        return first, shutil.copytree(first, root / "runs" / "elsewhere" / first.name)

    def test_a_copy_is_one_run(self, root: Path) -> None:
        self.copied(root)
        assert "a copy of" in self.told(root)
        assert len(collect([root / "runs"]).runs) == 2

    @pytest.mark.parametrize("longer", ["first", "second"])
    def test_the_beginning_of_a_run_is_not_another(self, root: Path, longer: str) -> None:
        first, second = self.copied(root)
        short = second if longer == "first" else first
        for name, old, new in ((ROWS, None, None), (SUMMARY, b'"n":3', b'"n":2')):
            data = (short / name).read_bytes()
            (short / name).write_bytes(b"".join(data.splitlines(True)[:2]) if old is None else data.replace(old, new))
        assert "its 2 rows are the first of the 3 of" in self.told(root)
        assert sorted(len(run.rows) for run in collect([root / "runs"]).runs) == [3, 3]

    @pytest.mark.parametrize("name", [ROWS, SUMMARY])
    def test_both_sides_of_a_conflict_are_shown_and_marked(self, root: Path, name: str) -> None:
        _, second = self.copied(root)
        data = (second / name).read_bytes()
        (second / name).write_bytes(data.replace(b'"learn_s":0.0', b'"learn_s":1.0'))
        said = self.told(root)
        assert said.count("in conflict with") == 2
        runs = [run for run in collect([root / "runs"]).runs if run.conflict]
        assert len(runs) == 2
        for run, other in zip(runs, reversed(runs), strict=True):
            assert marks(run).text == f"in conflict with {other.folder}"
            assert marks(run).mark == "bad"
            assert f"{run.folder}: in conflict with {other.folder}" in said

    def test_what_is_unfinished_beside_a_complete_copy(self, root: Path) -> None:
        _, second = self.copied(root)
        (second / SUMMARY).unlink()
        assert "not complete, and its rows are those of" in self.told(root)
        (second / ROWS).write_bytes((second / ROWS).read_bytes().replace(b'"learn_s":0.0', b'"learn_s":1.0'))
        assert "not complete, and its rows are not those of" in self.told(root)
        assert len(collect([root / "runs"]).runs) == 2

    def test_failed_and_unverified_runs_are_marked(self, root: Path) -> None:
        folder = self.broken(root)
        rows = list(read_rows(folder).rows)
        rows[0] = msgspec.structs.replace(rows[0], status=Status.error, correct=False, prediction=None)
        heading = Heading("gsm8k", "kvcmas", "smollm2", "hf", LAYERS, "python -m harness", verified=None)
        (folder / ROWS).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        (folder / SUMMARY).write_bytes(msgspec.json.encode(summarise(rows, heading)))
        (run,) = (r for r in collect([root / "runs"]).runs if r.summary.verified is None)
        assert marks(run).text == "unverified, 1 of 3 failed"

    def test_all_are_on_the_page_and_on_stderr(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (self.broken(root, 1) / SUMMARY).unlink()
        (self.broken(root, 2) / ROWS).write_bytes(b"{}")
        shutil.copytree(self.broken(root, 3), root / "runs" / "copied")
        code, out = report(root)
        assert code == 0
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        page = (out / "report.html").read_text()
        assert len(said) == 3
        assert all(line.split(": ")[1] in page for line in said)

    def test_no_folder_at_all_is_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(tmp_path / "none")]) == 2
        assert "is no folder" in capsys.readouterr().err

    def test_an_analysis_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "rank-a-b.json").write_text('{"model": "a"}')
        found, problems = read_ranks(tmp_path)
        assert not found
        assert problems[0].what.startswith("no analysis of ranks")


class TestShards:
    def write(self, root: Path, *shards: str) -> None:
        for at, shard in enumerate(shards):
            folder = write_run(root, KVCMAS, n=2, shard=shard)
            path = folder / ROWS
            text = path.read_bytes().replace(b'"s0"', f'"{at}0"'.encode()).replace(b'"s1"', f'"{at}1"'.encode())
            path.write_bytes(text)

    def test_all_of_them_are_one_run(self, tmp_path: Path) -> None:
        self.write(tmp_path, "1/3", "2/3", "3/3")
        found = collect([tmp_path]).runs
        runs, problems = merged(found)
        assert not problems
        (run,) = runs
        assert (run.shards, run.summary.n, len(run.rows)) == (3, 6, 6)
        right = sum(f.summary.accuracy * f.summary.n for f in found if f.summary.accuracy is not None)
        assert run.summary.accuracy == pytest.approx(right / 6)
        assert NOTE in marks(run).text
        assert run.option("shard") is None

    def test_some_of_them_are_told_apart(self, tmp_path: Path) -> None:
        self.write(tmp_path, "1/3", "3/3")
        runs, (problem,) = merged(collect([tmp_path]).runs)
        assert {run.notes for run in runs} == {("shard 1/3 alone",), ("shard 3/3 alone",)}
        assert "shard=2/3 is not" in problem.what
        assert problem.remedy.endswith("shard=2/3")


class TestStatistics:
    @pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 1), (7, 7), (0, 12)])
    def test_mcnemar_is_the_exact_binomial_test(self, better: int, worse: int) -> None:
        expected = binomtest(better, better + worse, 0.5).pvalue if better + worse else 1.0
        assert Paired(20, better, worse, 0.0, 0.0).p == pytest.approx(expected)

    def test_pairs_are_the_same_samples(self, tmp_path: Path) -> None:
        for words in (("method=dense",), ("method=kvcmas",)):
            write_run(tmp_path, Point(words), n=6)
        dense, kvcmas = collect([tmp_path]).runs
        found = paired(kvcmas, dense)
        assert found is not None
        mine = [k.correct - d.correct for k, d in zip(kvcmas.rows, dense.rows, strict=True)]
        assert (found.n, found.better, found.worse) == (6, mine.count(1), mine.count(-1))
        assert found.points == pytest.approx(100 * sum(mine) / 6)
        assert found.low <= found.points <= found.high
        assert paired(kvcmas, kvcmas) == Paired(6, 0, 0, 0.0, 0.0)

    def test_repeats_have_mean_and_deviation(self, tmp_path: Path) -> None:
        write_run(tmp_path, KVCMAS, n=10, repeats=3)
        (run,) = collect([tmp_path]).runs
        found = repeats(run)
        assert found is not None
        by = [100 * np.mean([r.correct for r in run.rows if r.repeat == n]) for n in range(3)]
        assert (found.n, found.mean, found.sd) == (3, pytest.approx(np.mean(by)), pytest.approx(np.std(by, ddof=1)))

    def test_a_bootstrap_keeps_a_sample_together(self) -> None:
        alike = ratio_of_sums([(2.0, 1.0)] * 9)
        assert alike is not None
        assert (alike.value, alike.low, alike.high) == (2.0, 2.0, 2.0)
        assert ratio_of_sums([]) is None
        spread = ratio_of_sums([(0.0, 1.0), (1.0, 1.0)] * 20)
        assert spread is not None
        assert spread.value == 0.5
        assert 0.3 < (spread.low or 0) < 0.45 < 0.55 < (spread.high or 0) < 0.7

    def test_what_recomputation_leaves_is_of_plain_reuse(self, tmp_path: Path) -> None:
        (exhibit,) = (e for e in exhibits() if e.name == "outside")
        write_experiment(tmp_path, "outside", n=4)
        (block,) = blocks(exhibit, collect([tmp_path]).runs)
        by_method = {p.run.method: p.run for p in block.runs}
        whole = left_of(block, by_method["full_reuse"], "left_k")
        assert whole is not None
        assert whole.value == pytest.approx(100.0)
        part = left_of(block, by_method["cacheblend"], "left_k")
        k = {m: quantity_of(by_method[m], "k_error") for m in ("cacheblend", "full_reuse")}
        assert part is not None
        assert part.value == pytest.approx(100 * k["cacheblend"].value / k["full_reuse"].value)  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.0, "0"), (12.345, "12.3"), (0.01234, "0.0123"), (1234567.0, "1.23e+06"), (1e-7, "1.00e-07")],
    )
    def test_numbers_have_significant_digits(self, value: float, text: str) -> None:
        assert number(value) == text


class TestVerdicts:
    def test_without_runs_only_what_is_calculated_has_a_verdict(self) -> None:
        found = {v.reported.id: v for v in verdicts(read_reported(), Evidence())}
        assert found["mem_ratio_8k"].verdict == "calculated"
        assert f"{ladder(lengths=(8192,))[0].ratio(10, 10):.2f} (10)" in found["mem_ratio_8k"].why
        assert found["rank_default"].verdict == found["anchors_default"].verdict == "calculated"
        assert found["chain_mmlu_on"].verdict == "no run"
        assert found["chain_mmlu_on"].command.endswith("task=mmlu")
        assert len(found) == len(read_reported())

    @pytest.mark.parametrize(("model", "n", "verdict"), [("smollm2", 4, "not comparable"), ("llama31_8b", 1531, "")])
    def test_only_the_paper_s_conditions_give_a_verdict(self, tmp_path: Path, model: str, n: int, verdict: str) -> None:
        (exhibit,) = (e for e in exhibits() if e.name == "reference")
        for reference in ("upstream", "context_free"):
            words = ("method=kvcmas", f"method.reference={reference}", "task=mmlu", f"model={model}")
            write_run(tmp_path, Point(words), exhibit.command, n=n)
        placed = {"reference": blocks(exhibit, collect([tmp_path]).runs)}
        found = {v.reported.id: v for v in verdicts(read_reported(), Evidence(placed))}["chain_mmlu_on"]
        assert found.verdict == verdict or (not verdict and found.verdict in ("reproduced", "differs"))
        assert found.ours is not None
        if verdict:
            assert "model smollm2, the paper's is llama31_8b; 4 samples of 1531" in found.why


def test_the_cost_of_a_report_grows_with_its_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything, figures and page included, in processor seconds of one core, which a busy machine stretches less than
    the clock's: four times the runs in four times the blocks take at most six times as long."""
    monkeypatch.setattr("harness.report.make.cores", lambda: 1)
    names = ("ablate_rank", "outside")
    spent = {}
    for copies in (1, 4):
        root = tmp_path / str(copies)
        for limit in range(copies):
            for name in names:
                write_experiment(root / "runs", name, n=8, limit=8 + limit)
        begin = process_time()
        code, out = report(root)
        spent[copies] = process_time() - begin
        runs = len(list(root.glob("runs/*/*/summary.json")))
        assert code == 0
        assert len(list((out / "figures").glob("*.pdf"))) >= copies * len(names)
    assert spent[4] < 6 * spent[1]
    assert spent[4] / runs < SECONDS_A_RUN


def test_every_file_of_a_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = write_experiment(tmp_path / "runs", "ablate_rank", n=3)
    seen, read = Counter[Path](), Path.read_bytes

    def counted(path: Path) -> bytes:
        seen[path] += 1
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert report(tmp_path)[0] == 0
    for name in (ROWS, SUMMARY, "config.yaml", "provenance.json"):
        assert [seen[folder / name] for folder in folders] == [1] * len(folders)


def test_five_hundred_rows_decode_leniently() -> None:
    line = b'{"sample_id":"a","status":"ok","later":1,"hops":[{"route":"reuse","ttft_s":1,"e2e_s":2,"prompt_tokens":3,"output_tokens":4,"more":[]}]}'  # noqa: E501
    assert msgspec.json.decode(line, type=RowLine).hops[0].prompt_tokens == 3
