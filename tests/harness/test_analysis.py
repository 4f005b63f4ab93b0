"""``python -m harness.analyse`` end to end on a tiny model, and what it measures."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from harness import analyse
from harness.analysis import ridge as analysis
from harness.analysis.contenders import RIDGE, ROTATED, Contender, contenders
from harness.analysis.interval import Interval
from harness.analysis.measure import at_reuse, rank_correlation
from harness.analysis.ridge_file import Analysis
from harness.report.ridge import lines
from harness.report.ridge import main as draw

WORDS = ["ridge", "model=tiny", "task=gsm8k", "observed=2,4", "held_out=3", "workflow.max_new_tokens=3", "shift=mmlu"]
FEW = [
    Contender(ROTATED, "method=full_reuse", kl=True),
    Contender(RIDGE, "method=ridge method.tau=inf method.min_requests=0 method.warmup=1", curve=True, kl=True),
    Contender("oracle", "method=oracle_delta method.rank=0", kl=True),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    path = tmp_path_factory.mktemp("analysis") / "found.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "contenders", lambda most: iter(FEW))
        assert analyse.main([*WORDS, f"out={path}"]) == 0
    return msgspec.json.decode(path.read_bytes(), type=Analysis), path


def test_rotation_leaves_all_of_the_delta_and_the_oracle_none(made: tuple[Analysis, Path]) -> None:
    rows = made[0].remaining
    for row in rows:
        if row.method == ROTATED:
            assert row.keys == row.values == pytest.approx(1.0)
        if row.method == "oracle":
            assert row.keys < 1e-8
            assert row.values < 1e-8
            assert row.error < 1e-4
    assert {row.span for row in rows} == {"question", "output"}


def test_a_curve_has_every_count_and_both_sides_of_a_shift(made: tuple[Analysis, Path]) -> None:
    curve = {(row.observed, row.data, row.learned) for row in made[0].remaining if row.method == RIDGE}
    assert curve == {(2, "held_out", 0), (4, "held_out", 0), (4, "shift", 0), (4, "shift", 16)}
    assert {(row.observed, row.data) for row in made[0].remaining if row.method == ROTATED} == {(4, "held_out")}


def test_kl_is_paired_hop_by_hop(made: tuple[Analysis, Path]) -> None:
    by_name = {row.method: row for row in made[0].downstream}
    assert by_name[ROTATED].over_rotated == Interval(1.0, 1.0, 1.0)
    assert by_name["oracle"].first_token_kl < 1e-8
    assert by_name["oracle"].same_token == 1.0
    ratio = by_name[RIDGE].first_token_kl / by_name[ROTATED].first_token_kl
    assert by_name[RIDGE].over_rotated.ratio == pytest.approx(ratio)
    assert len(made[0].foreseen) == by_name[RIDGE].hops == 3


def test_the_true_error_orders_hops_perfectly(made: tuple[Analysis, Path]) -> None:
    gates = {gate.gate: gate for gate in made[0].gates}
    assert gates["true error"].rank_correlation == pytest.approx(1.0)
    every = [gate.kl_at["1"] for gate in gates.values()]  # the same hops, added up in other orders
    assert every == pytest.approx([every[0]] * len(every), rel=1e-12)


def test_the_figure_is_drawn_from_the_file(made: tuple[Analysis, Path], tmp_path: Path) -> None:
    assert set(lines(made[0])) == {RIDGE}
    assert draw([str(made[1]), "--out", str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    (tmp_path / "no.json").write_text(json.dumps({"schema": 1}))
    assert draw([str(tmp_path / "no.json")]) == 2


def test_contenders_compose() -> None:
    found = list(contenders(64))
    assert len({c.name for c in found}) == len(found)
    assert {RIDGE, ROTATED} <= {c.name for c in found if c.kl}


def test_intervals_are_paired() -> None:
    """A constant ratio has no spread, however much the hops differ."""
    below = list(np.random.default_rng(1).exponential(size=50))
    found = Interval.of([0.4 * x for x in below], below)
    assert (found.ratio, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))
    apart = Interval.of(below[::-1], below)
    assert apart.low < 1 < apart.high


def test_reuse_of_a_share_takes_the_hops_that_a_gate_trusts() -> None:
    assert at_reuse([4.0, 1.0, 2.0, 3.0], [0.4, 0.1, 0.2, 0.3], 0.5) == pytest.approx(3 / 4)
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rank_correlation([1, 1, 1], [10, 20, 30]) == 0.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rigde"], "there is no such analysis"),
        (["ridge", "method=kvcmas"], "this analysis compares methods of its own"),
        (["ridge", "observed=8,4"], "expected rising counts"),
        (["ridge", "hops=1"], "both must be at least 2"),
        (["ridge", "shift_source=x"], "give shift=<task> too"),
        (["ridge", "model=tiny", "task=gsm8k", "held_out=5000"], "samples are needed, task=gsm8k has"),
        (["rank", "model=tiny_vlm", "task=mathvista"], "task=mathvista: an analysis reads text only"),
    ],
)
def test_wrong_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse.main(words) == 2
    assert message in capsys.readouterr().err


def test_the_figure_of_the_readme_is_that_of_the_analysis_beside_it(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "results" / "ridge-smollm2-gsm8k.json"
    assert draw([str(source), "--out", str(tmp_path / "ridge.png")]) == 0
    points = lines(msgspec.json.decode(source.read_bytes(), type=Analysis))
    assert [count for count, *_ in points["ridge"]] == [4, 16, 64]
    readme, (_, keys, values) = (source.parents[1] / "README.md").read_text(), points["ridge"][-1]
    assert f"| `ridge` | {keys:.2f} / {values:.2f} |" in readme
