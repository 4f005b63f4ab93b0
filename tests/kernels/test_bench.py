from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from harness.report import kernels as figure
from kernels import bench
from kernels.ceiling import ceiling, peak_extra


def test_writes_one_row_per_operation_and_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "kernels.csv"
    arguments = ["--model", "tiny", "--tokens", "16", "32", "64", "--ranks", "2", "--rounds", "2", "--device", "cpu"]
    assert bench.main([*arguments, "--dtypes", "float32", "float32/bfloat16", "--out", str(target)]) == 0
    with target.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 3 * 2
    assert list(rows[0]) == [field.name for field in dataclasses.fields(bench.Row)]
    for row in rows:
        assert row["implementation"] == "torch"
        assert 0 < float(row["least_s"]) <= float(row["time_s"])
        assert float(row["fraction_of_ceiling"]) > 0
    assert capsys.readouterr().out.count("off a line in tokens") == 6 * 2


def test_deviation_from_a_line() -> None:
    assert bench.deviation_from_line([1, 2, 4, 8], [3.0, 5.0, 9.0, 17.0]) == pytest.approx(0, abs=1e-9)
    assert bench.deviation_from_line([1, 2, 4, 8], [1.0, 4.0, 16.0, 64.0]) > 0.5


def test_the_ceiling_is_above_what_a_product_reaches() -> None:
    limit = ceiling(torch.device("cpu"), torch.float32, 1, size=256)
    assert limit.least_s(10**9, 0) == 10**9 / limit.copy_bytes_per_s
    assert limit.least_s(0, 10**9) == 10**9 / limit.product_flops_per_s
    assert limit.least_s(10**9, 1) == limit.least_s(10**9, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory of a process is read from /proc")
def test_peak_memory_sees_what_a_call_holds_and_releases() -> None:
    size = 1 << 26
    assert size * 0.9 < peak_extra(lambda: torch.ones(size // 4).sum(), torch.device("cpu")) < size * 1.5


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory of a process is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extra_memory_stays_below_a_quarter_of_the_span(dtype: str) -> None:
    """Ten anchors of rank 32 at 4,096 tokens; the anchors share one storage to keep the test small."""
    code = f"""
import torch
from kernels.ceiling import peak_extra
from kernels.workload import MODELS, Model, Point, operands, works
MODELS["half"] = Model(15, 3, 64)
point = Point("half", 4096, 1, 32, "{dtype}", "{dtype}")
span = operands(point, torch.device("cpu"))
span.anchors_k[:] = span.anchors_k * 10
span.anchors_v[:] = span.anchors_v * 10
object.__setattr__(span, "weights", torch.full((10, 4096), 0.1))
left, right = torch.randn(2048, 320), torch.randn(320, 192)  # the matrix library allocates its own buffers once
left @ right, left.bfloat16() @ right.bfloat16()
for work in works(point, span):
    if work.name in ("correct", "token_l1", "token_l2"):
        print(work.name, peak_extra(work.run, torch.device("cpu")) / (2 * span.keys.nbytes))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Half of SmolLM2's layers hold half of its span, while the scratch buffers keep their size.
    shares = dict(line.split() for line in out.stdout.splitlines())
    assert len(shares) == 3
    assert all(float(share) < 0.25 * 2 for share in shares.values()), shares


def test_figure_draws_one_line_per_operation_and_storage(tmp_path: Path) -> None:
    rows = [
        {
            "operation": operation,
            "implementation": "torch",
            "dtype": "float32",
            "factor_dtype": "float32",
            "tokens": tokens,
            "anchors": anchors,
            "rank": 8,
            "time_s": tokens / 1e3,
            "fraction_of_ceiling": 0.5,
        }
        for operation in ("correct", "token_l1")
        for anchors in (1, 10)
        for tokens in (64, 16)
    ]
    lines = figure.series(pd.DataFrame(rows))
    assert list(lines) == ["correct (torch, float32/float32)", "token_l1 (torch, float32/float32)"]
    for line in lines.values():
        assert line["tokens"].tolist() == [16, 64]
        assert set(line["anchors"]) == {10}
    source = tmp_path / "kernels.csv"
    pd.DataFrame(rows).to_csv(source, index=False)
    assert figure.main([str(source), "--out", str(tmp_path / "figures" / "kernels.png")]) == 0
    assert (tmp_path / "figures" / "kernels.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", [None, "a,b\n1,2\n"])
def test_figure_of_another_file_is_refused(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "kernels.csv"
    if text is not None:
        source.write_text(text)
    assert figure.main([str(source)]) == 2
    assert "python -m kernels.bench" in capsys.readouterr().err
