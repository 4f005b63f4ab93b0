"""What Weights & Biases gets, read back from its offline files; and that its failures end no run."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from harness.config import Choices, Tracking
from harness.records import Row, Status
from harness.summarise import Heading, summarise
from harness.track import COLUMNS, Tracker

wandb = pytest.importorskip("wandb", reason="the extra kvcmas[wandb] is not installed")
NAMES = Choices("kvcmas", "gsm8k", "tiny", "hf", "full")
CFG = OmegaConf.create({"method": {"rank": 32}, "limit": 2, "hydra": {"verbose": True}, "copy": "${limit}"})
ROWS = [
    Row(sample_id="s0", status=Status.ok, prediction="3", target="3", correct=True, raw="it is 3", e2e_s=1.5),
    Row(sample_id="s1", status=Status.error, target="4", message="no memory for [it]"),
]
SUMMARY = summarise(ROWS, Heading("gsm8k", "kvcmas", "tiny", "hf", 2, "python -m harness"))


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No account, no settings and no caches but those of the test, and no service that an earlier one left running:
    its token would be put back into the environment after the service has gone."""
    assert "WANDB_SERVICE" not in os.environ
    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(home))


def mirror(folder: Path, mode: str, **more: Any) -> list[str]:
    folder.mkdir(exist_ok=True)
    with Tracker.open(Tracking(mode=mode, **more), folder, CFG, NAMES) as tracker:
        tracker.finish(ROWS, SUMMARY)
    return tracker.warnings


def records(folder: Path) -> Iterator[Any]:
    """The records of an offline run: W&B's own messages, framed as a LevelDB log (7-byte header, blocks of 32 KiB,
    chunks with checksum, length and type)."""
    from wandb.proto import wandb_internal_pb2 as messages

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = messages.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_offline_files_hold_config_summary_and_table_without_an_account(tmp_path: Path) -> None:
    folder = tmp_path / "kvcmas-0123456789"
    assert mirror(folder, "offline", project="p", group="g", tags=["t"]) == []
    found = list(records(folder))
    (run,) = [r.run for r in found if r.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.project, run.run_group, [*run.tags]) == ("kvcmas-0123456789", "p", "g", ["t"])
    config = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert {k: config[k] for k in ("method", "limit", "copy")} == {"method": {"rank": 32}, "limit": 2, "copy": 2}
    assert "hydra" not in config
    summary = {
        u.key or ".".join(u.nested_key): json.loads(u.value_json)
        for r in found
        if r.WhichOneof("record_type") == "summary"
        for u in r.summary.update
    }
    assert summary["accuracy"] == SUMMARY.accuracy == 0.5
    assert summary["accuracy_ci95"] == list(SUMMARY.accuracy_ci95 or ())
    assert summary["statuses"]["error"] == 1
    (table,) = (folder / "wandb").glob("offline-run-*/files/media/table/*.table.json")
    told = json.loads(table.read_text())
    assert told["columns"] == list(COLUMNS)
    assert told["data"][0][:8] == ["s0", 0, None, "ok", "3", "3", True, "it is 3"]
    assert told["data"][1][8] == "no memory for [it]"


def test_everything_stays_in_the_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mirror(folder, "offline")
    assert "WANDB_DATA_DIR" not in os.environ
    assert {p.name for p in folder.iterdir()} == {"wandb"}
    assert not list((tmp_path / "home").rglob("artifacts"))
    text = b"".join(p.read_bytes() for p in folder.rglob("*.wandb"))
    assert sys.executable.encode() not in text


def test_a_second_session_of_a_run_has_the_same_id(tmp_path: Path) -> None:
    folder = tmp_path / "kvcmas-0123456789"
    for _ in range(2):
        assert mirror(folder, "offline") == []
    assert {p.name for p in folder.glob("wandb/offline-run-*/*.wandb")} == {"run-kvcmas-0123456789.wandb"}


def test_jobs_of_a_sweep_share_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []
    for rank in (8, 16):
        hydra = SimpleNamespace(
            mode=RunMode.MULTIRUN, overrides=SimpleNamespace(task=[f"method.rank={rank}", "+experiment=paper"])
        )
        monkeypatch.setattr(
            "harness.track.HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda h=hydra: h)
        )
        with Tracker.open(Tracking(mode="none"), tmp_path, CFG, NAMES) as tracker:
            groups.append(tracker.group)
    assert groups == ["sweep of experiment, method.rank"] * 2


def test_mode_none_touches_nothing(tmp_path: Path) -> None:
    assert mirror(tmp_path / "run", "none") == []
    assert not list((tmp_path / "run").iterdir())


def test_without_the_package_there_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.track.find_spec", lambda _: None)
    (warning,) = mirror(tmp_path / "run", "offline")
    assert "wandb is not installed" in warning


def test_online_without_an_account_is_a_warning_from_the_start(tmp_path: Path) -> None:
    with Tracker.open(Tracking(mode="online"), tmp_path, CFG, NAMES) as tracker:
        (warning,) = tracker.warnings
        assert "wandb login" in warning
        assert "WANDB_SERVICE" not in os.environ  # nothing of W&B runs beside the measurement
        tracker.finish(ROWS, SUMMARY)
    assert tracker.warnings == [warning]
    assert not (tmp_path / "wandb").exists()


@pytest.mark.parametrize("where", ["init", "Table"])
def test_an_exception_of_wandb_is_a_warning_and_its_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full\nat length")

    monkeypatch.setattr(wandb, where, broken)
    (warning,) = mirror(tmp_path / "run", "offline")
    assert warning.endswith("RuntimeError: the disk is full")
    assert wandb.run is None
    assert "WANDB_DATA_DIR" not in os.environ


def test_the_rest_of_the_harness_never_loads_wandb() -> None:
    sources = [p for p in Path("harness").rglob("*.py") if p.name != "track.py"]
    assert sources
    assert not [p for p in sources if "import wandb" in p.read_text()]
