"""Whole runs on backend=vllm: a run that was cut short goes on to the same rows, and a trace is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.sim.calibrate import calibrate, measured

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from harness.cli import main
from harness.store import RunFolder

COMMON = ["model=tiny", "model.head_dim=32", "backend=vllm", "backend.gaps=true", "backend.cache_gib=0.1",
          "tracking=none"]
ACCURACY = [*COMMON, "task=gsm8k", "method=kvcmas", "method.gate=always", "limit=6", "backend.concurrency=2",
            "workflow.max_new_tokens=4"]
TRACE = [*COMMON, "task=trace", "trace=agents", "method=full_reuse", "trace.trajectories=4", "trace.shared_tokens=200",
         "trace.system_tokens=40", "trace.output_tokens=6", "trace.qps=50", "task.warmup=1", "task.source=random"]

def cut(folder, row, before=RunFolder.append):
    if len(folder.rows) == 3:
        raise KeyboardInterrupt
    before(folder, row)

if __name__ == "__main__":
    where = sys.argv[1]
    codes = [main([*ACCURACY, f"results_dir={where}/whole"])]
    whole, RunFolder.append = RunFolder.append, cut
    codes.append(main([*ACCURACY, f"results_dir={where}/resumed"]))
    RunFolder.append = whole
    codes.append(main([*ACCURACY, f"results_dir={where}/resumed"]))
    codes.append(main([*TRACE, f"results_dir={where}/trace"]))
    print("CODES", codes)
"""


def rows(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*/*/rows.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def decisions(found: list[dict[str, Any]]) -> list[Any]:
    """What of the rows may not depend on time."""
    out = list[Any]()
    for row in found:
        hops = [(hop["route"], hop["fresh_token_layers"], hop["output_ids"]) for hop in row["hops"]]
        out.append((row["sample_id"], row["status"], row.get("prediction"), row["state_bytes"]["total"], hops))
    return out


def test_runs(tmp_path: Path) -> None:
    script = tmp_path / "runs.py"
    script.write_text(SCRIPT)
    out = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert "CODES [0, 130, 0, 0]" in out.stdout, out.stdout[-3000:] + out.stderr[-6000:]
    whole, resumed = rows(tmp_path / "whole"), rows(tmp_path / "resumed")
    assert len(whole) == 6
    assert decisions(whole) == decisions(resumed)
    assert any(hop["route"] == "reuse" for row in whole for hop in row["hops"])
    (folder,) = (tmp_path / "resumed").glob("*/*")
    assert len(json.loads((folder / "provenance.json").read_text())["sessions"]) == 2
    served = rows(tmp_path / "trace")
    assert len(served) == 3
    assert all(row["status"] != "error" for row in served), [row["message"] for row in served]
    assert any(hop["route"] == "reuse" for row in served for hop in row["hops"])
    (summary,) = (tmp_path / "trace").glob("*/*/summary.json")
    engine = json.loads(summary.read_text())["serving"]
    assert engine["simulated"] is False
    assert engine["repeats"][0]["engine"]["slots"] > 1
    costs = calibrate(measured([summary.parent]))
    assert (costs.slots, costs.budget) == tuple(engine["repeats"][0]["engine"][k] for k in ("slots", "step_tokens"))
    assert engine["failed"] == 0
