"""Two runs side by side: only the same hops count, and the numbers are those of the rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.records import HopRecord, Route, Row, Status
from harness.report.paired import Pairs, main
from harness.summarise import Heading, summarise
from tests.harness.test_table import hop


def kl(index: int, value: float, route: Route = Route.reuse, ids: tuple[int, ...] = (1, 2)) -> HopRecord:
    made = hop(index, route, 0.1, shadowed=route is Route.reuse)
    value_or_none = value if route is Route.reuse else None
    return msgspec.structs.replace(
        made,
        first_token_kl=value_or_none,
        output_ids=list(ids),
        output_tokens=len(ids),
        prefix_match=1 if route is Route.reuse else None,
    )


def row(name: str, *hops: HopRecord, status: Status = Status.ok) -> Row:
    return Row(
        sample_id=name,
        status=status,
        prediction="1",
        target="1",
        correct=status is Status.ok,
        hops=[hop(0, Route.dense, 1), *hops],
    )


def run(path: Path, rows: list[Row], **heading: bool) -> Path:
    path.mkdir(parents=True)
    (path / "rows.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in rows))
    made = summarise(rows, Heading("gsm8k", path.name, "tiny", "hf", 4, "", **heading))  # type: ignore[arg-type]
    (path / "summary.json").write_bytes(msgspec.json.encode(made))
    return path


def test_only_hops_that_both_reused_on_one_prompt_count() -> None:
    mine = [
        row("a", kl(1, 0.1), kl(2, 0.3)),
        row("b", kl(1, 0.5), kl(2, 9.0)),  # below, its first output is another, so that the second prompt is too
        row("c", kl(1, 7.0, Route.fallback), kl(2, 0.2)),
        row("d", kl(1, 8.0)),  # failed below
        row("e", kl(1, 8.0)),  # not there below
    ]
    other = [
        row("a", kl(1, 0.2), kl(2, 0.2)),
        row("b", kl(1, 1.0, ids=(7,)), kl(2, 1.0)),
        row("c", kl(1, 1.0), kl(2, 0.4)),
        row("d", kl(1, 1.0), status=Status.error),
    ]
    pairs = Pairs.of(mine, other)
    assert [(a.first_token_kl, b.first_token_kl) for a, b in pairs.hops] == [
        (0.1, 0.2),
        (0.3, 0.2),
        (0.5, 1.0),
        (0.2, 0.4),
    ]
    assert pairs.whole == {("a", 0)}
    found = pairs.ratio()
    assert found is not None
    assert found.ratio == pytest.approx(1.1 / 1.8)
    assert found.low <= found.ratio <= found.high
    assert list(Pairs.of(mine, other, after=2).both) == [("c", 0)]
    assert Pairs.of(mine, []).ratio() is None


def test_the_table_says_what_the_rows_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = run(tmp_path / "full", [row(str(i), kl(1, 0.4)) for i in range(5)])
    better = run(tmp_path / "ridge", [row(str(i), kl(1, 0.1)) for i in range(5)])
    never = run(tmp_path / "never", [row(str(i), kl(1, 0.1, Route.fallback)) for i in range(5)])
    assert main([str(better), str(never), "--over", str(base)]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.split()}
    assert lines["ridge"][1:6] == ["5", "0.1", "0.4", "0.25", "(0.25-0.25)"]
    assert lines["never"][1:] == ["0"]


def test_runs_of_another_kind_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = run(tmp_path / "full", [row("a", kl(1, 0.4))])
    forced = run(tmp_path / "forced", [row("a", kl(1, 0.4))], teacher_forcing=True)
    assert main([str(forced), "--over", str(base)]) == 2
    assert "teacher_forcing True" in capsys.readouterr().err
    assert main([str(base), "--over", str(tmp_path / "none")]) == 2
