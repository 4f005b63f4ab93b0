"""Tables say what the summary says, with units, in 80 columns, in a log as in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness.comparison import print_comparison
from harness.errors import UserError
from harness.records import HopRecord, Phases, Route, Row, StateSize, Status
from harness.summarise import Heading, summarise
from harness.summary import Summary
from harness.table import percent, print_run, seconds, size


def hop(index: int, route: Route, ttft_s: float, shadowed: bool = False) -> HopRecord:
    fresh = 400 if route is not Route.reuse else 100
    plain = HopRecord(
        agent="a",
        index=index,
        route=route,
        source_hop=index == 0,
        prompt_tokens=100,
        shared_tokens=75,
        fresh_token_layers=fresh,
        output_tokens=10,
        ttft_s=ttft_s,
        e2e_s=ttft_s + 1,
        phases=Phases(learn_s=0.5),
    )
    if not shadowed:
        return plain
    return msgspec.structs.replace(
        plain,
        kv_error_k=[0.1, 0.2],
        kv_error_v=[0.3, 0.4],
        first_token_kl=0.0123,
        prefix_match=4,
        answer_agrees=True,
        shadow_ttft_s=1.2,
    )


def summary(
    method: str, *, shadowed: bool = True, empty: bool = False, early: int = 0, forced: bool = False
) -> Summary:
    hops = [hop(0, Route.dense, 1.5), hop(1, Route.reuse, 0.15, shadowed), hop(2, Route.fallback, 1.6)]
    rows = [
        Row(
            sample_id=str(n),
            status=Status.invalid if n == 3 else Status.ok,
            prediction="1",
            target="1",
            correct=n in (0, 1),
            hops=hops,
            e2e_s=7.0,
            peak_bytes=3 * 2**30,
            state_bytes=StateSize.of(5 * 2**20, 2**20),
        )
        for n in range(0 if empty else 4)
    ]
    heading = Heading("gsm8k", method, "smollm2", "hf", 4, "python -m harness", built_from="paper")
    return summarise(rows, replace(heading, early=early, teacher_forcing=forced))


def folder(path: Path, made: Summary) -> Path:
    path.mkdir(parents=True)
    (path / "summary.json").write_bytes(msgspec.json.encode(made))
    return path


def shown(width: int = 80, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=terminal), out


def test_a_run_is_told_with_units(tmp_path: Path) -> None:
    console, out = shown()
    path = folder(tmp_path / "kvcmas-0123456789", summary("kvcmas"))
    print_run(path, console)
    text = " ".join(out.getvalue().split())
    for part in (
        "kvcmas on gsm8k, model smollm2, backend hf",
        "samples 4, 1 invalid",
        "accuracy 50.0 %, 95 % interval 6.8 % to 93.2 %",
        "fresh share 75.0 % of the dense token-layers",
        "reuse ratio 50.0 %, 4 of 8 hops that could; 4 fell back",
        "TTFT of reuse 150 ms, dense 1.20 s: 8.0 x lower",
        "learning 6.00 s in all",
        "state 6.0 MiB: base 5.0 MiB, corrections 1.0 MiB",
        "peak memory 3.0 GiB",
        "K error 15.0 %, V error 35.0 %",
        "first-token KL 0.0123 nats",
        "common prefix 4.0 tokens, 40.0 %",
        "same answer as dense 100.0 %",
        "0 dense 4 1.50 s",
        "1 reuse 4 150 ms",
        "2 fallback 4 1.60 s",
        f"files: {path}",
    ):
        assert part in text, part


def test_what_a_run_does_not_have_is_not_mentioned(tmp_path: Path) -> None:
    console, out = shown()
    print_run(folder(tmp_path / "run", summary("dense", empty=True)), console)
    for word in ("accuracy", "TTFT", "fidelity", "state", "None", "nan"):
        assert word not in out.getvalue()


@pytest.mark.parametrize("empty", [False, True])
def test_a_comparison_crops_and_breaks_no_number(tmp_path: Path, empty: bool) -> None:
    methods = ["dense", "full_reuse", "kvcmas"]
    console, out = shown()
    print_comparison([folder(tmp_path / m, summary(m, empty=empty)) for m in methods], console=console)
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in methods]
    assert [row[0] for row in rows] == methods
    shares = ["50.0", "(7-93)", "75.0", "50.0", "875", "ms", "6.0", "MiB"]
    full = [*shares, "15.0", "35.0", "0.012", "40.0", "100.0", "1/4"]
    assert all(row[1:3] == ["paper", "recompute"] for row in rows)
    assert all(row[3:] == (["-"] * 10 + ["0/0"] if empty else full) for row in rows)


def test_a_method_that_learns_shows_its_first_samples_apart(tmp_path: Path) -> None:
    console, out = shown()
    print_comparison([folder(tmp_path / "kvcmas", summary("kvcmas", early=3))], console=console)
    first, later = (next(x for x in out.getvalue().splitlines() if x.strip().startswith(w)) for w in ("first", "later"))
    assert first.split()[:3] == ["first", "3", "66.7"]
    assert later.split()[:3] == ["later", "1", "0.0"]
    console, out = shown()
    print_comparison([folder(tmp_path / "none", summary("kvcmas", early=4))], console=console)
    assert "later" not in out.getvalue()


def test_closed_loop_and_teacher_forcing_are_tables_of_their_own(tmp_path: Path) -> None:
    console, out = shown()
    made = [summary("epic", forced=forced) for forced in (True, False)]
    print_comparison([folder(tmp_path / str(i), m) for i, m in enumerate(made)], ["forced", "free"], console)
    text = out.getvalue()
    assert text.index("closed loop") < text.index("\nfree") < text.index("teacher-forced") < text.index("\nforced")


def test_without_a_shadow_there_is_no_fidelity(tmp_path: Path) -> None:
    console, out = shown()
    print_comparison([folder(tmp_path / "a", summary("kvcmas", shadowed=False))], console=console)
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("kvcmas")]
    assert line.split()[-3:] == ["-", "-", "1/4"]


def test_a_log_has_no_escape_codes_and_no_broken_path(tmp_path: Path) -> None:
    path = folder(tmp_path / ("deep" * 30), summary("[red]kvcmas[/red]"))
    console, out = shown()
    print_run(path, console)
    assert "\x1b" not in out.getvalue()
    assert str(path) in out.getvalue()
    assert "[red]kvcmas[/red]" in out.getvalue()  # names are text, not markup
    console, out = shown(terminal=True)
    print_run(path, console)
    assert "\x1b" in out.getvalue()


def test_an_incomplete_run_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        print_run(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="not complete"):
        print_run(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9, "900 ms"),
        (0.9999, "1.00 s"),
        (12.34, "12.3 s"),
        (200, "200 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (2**53, "8192.0 TiB"),
    ],
)
def test_size(value: int | None, text: str) -> None:
    assert size(value) == text


def test_percent() -> None:
    assert (percent(None), percent(0.1234), percent(1.0)) == ("-", "12.3 %", "100.0 %")
