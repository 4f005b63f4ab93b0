"""The YAML files compose, build and name runs after their contents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from harness.config import COMPONENTS, CONF, GROUPS, MODES, OPTIONAL, Config, register
from harness.identity import digest, identify
from harness.signature import Signature
from harness.validate import Parts, build

CHOICES = {group: sorted(p.stem for p in (CONF / group).glob("*.yaml")) for group in GROUPS}
OF_EXPERIMENTS = {"sizes", "points", "exhibit"}  # not of a run
OWN_TARGET = [(g, c) for g in COMPONENTS for c in CHOICES[g] if c != "custom"]

Composer = Callable[..., DictConfig]


@pytest.fixture
def composed() -> Iterator[Composer]:
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield lambda *overrides: compose("config", list(overrides))


def identity(cfg: DictConfig) -> str:
    return identify(cfg, {"method": "kvcmas", "task": "gsm8k"}).id


@pytest.mark.parametrize(("group", "choice"), OWN_TARGET)
def test_every_choice_builds(composed: Composer, group: str, choice: str) -> None:
    parts = build(composed(f"{group}={choice}"))
    target = get_class(composed(f"{group}={choice}")[group]._target_)
    assert isinstance(getattr(parts, group), target)


@pytest.mark.parametrize("choice", [c for g, c in OWN_TARGET if g in ("method", "model") for c in [f"{g}={c}"]])
def test_yaml_names_every_argument(composed: Composer, choice: str) -> None:
    group = choice.partition("=")[0]
    node = composed(choice)[group]
    given = {str(k) for k in node} - {"_target_"}
    assert given == set(Signature.of(get_class(node._target_)).hints)


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_builds(composed: Composer, name: str) -> None:
    build(composed(f"+experiment={name}"))


@pytest.mark.parametrize("mode", CHOICES["tracking"])
def test_tracking_modes(composed: Composer, mode: str) -> None:
    assert composed(f"tracking={mode}").tracking.mode == mode
    assert mode in MODES


def test_schema_and_help_list_the_same_options() -> None:
    text = OmegaConf.load(CONF / "hydra" / "help" / "kvcmas.yaml")["template"]
    options = text[text.index("Options\n") : text.index("Flags\n")].splitlines()[1:]
    named = {line.split("=")[0].strip() for line in options if line.strip()}
    assert named == {f.name for f in fields(Config)} - set(GROUPS) - set(OPTIONAL) - OF_EXPERIMENTS


def test_defaults_are_those_of_the_schema(composed: Composer) -> None:
    cfg = composed()
    for field in fields(Config):
        if field.name not in {*GROUPS, "sizes"}:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            assert cfg[field.name] == default


SAME = [
    ("seed=3 limit=5", "limit=5 seed=3"),
    ("", "tracking=none"),
    ("", "tracking.project=other"),
    ("", "results_dir=elsewhere"),
    ("", "seed=0 limit=null"),
    ("method=kvcmas method.temperature=1", "method.temperature=1.0"),
    ("model=smollm2", "model.cache_dir=somewhere"),
]
OTHER = [
    "seed=1",
    "limit=7",
    "repeats=2",
    "duplicates=0.5",
    "shadow=true",
    "method=dense",
    "method.rank=16",
    "model=tiny",
    "model.dtype=float32",
    "workflow=chain",
    "workflow.max_new_tokens=8",
    "task=mmlu",
    "backend.chunk=128",
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_same_run(composed: Composer, one: str, other: str) -> None:
    assert identity(composed(*one.split())) == identity(composed(*other.split()))


def test_other_runs(composed: Composer) -> None:
    ids = [identity(composed()), *(identity(composed(o)) for o in OTHER)]
    assert len(set(ids)) == len(ids)


def test_data_counts_by_contents(composed: Composer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    Path("copy").mkdir()
    shutil.copy("one.jsonl", "copy/renamed.jsonl")
    first = identity(composed("task.source=one.jsonl"))
    assert identity(composed(f"task.source={tmp_path}/copy/renamed.jsonl")) == first
    Path("one.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 3"}) + "\n")
    assert identity(composed("task.source=one.jsonl")) != first
    assert identity(composed("task.source=absent.jsonl")) not in (first, identity(composed()))


def test_sample_counts_by_contents(composed: Composer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = composed("task.source=sample")
    first = identity(cfg)
    Path("sample").write_text("a file that happens to have this name")
    assert identity(cfg) == first
    changed = tmp_path / "changed.jsonl"
    changed.write_text("{}\n")
    monkeypatch.setattr("harness.identity.embedded", lambda owner: changed)
    assert identity(cfg) != first


def test_model_folder_counts_by_contents(composed: Composer, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    (folder / "part").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    large = bytearray(20 << 20)  # above the size that is read whole
    (folder / "part" / "model.safetensors").write_bytes(large)
    before = digest(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "download").write_text("bookkeeping")
    assert digest(folder) == before
    shutil.copytree(folder, tmp_path / "moved")
    by_path = [identity(composed("model=llama31_8b", f"model.path={p}")) for p in (folder, tmp_path / "moved")]
    assert by_path[0] == by_path[1]
    for at in (0, len(large) // 2, len(large) - 1):
        changed = large.copy()
        changed[at : at + (1 << 20)] = b"\1" * len(changed[at : at + (1 << 20)])
        (folder / "part" / "model.safetensors").write_bytes(changed)
        assert digest(folder) != before
    (folder / "part" / "model.safetensors").write_bytes(large)
    (folder / "config.json").write_text("{} ")
    assert digest(folder) != before


def test_id_does_not_depend_on_the_working_directory(
    composed: Composer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = identity(composed("seed=4"))
    monkeypatch.chdir(tmp_path)
    assert identity(composed("seed=4")) == first


def test_folder_is_one_safe_name_each(composed: Composer) -> None:
    run = identify(composed("task.name='../up/and away'"), {"method": "mine/special", "task": "gsm8k"})
    assert run.folder.parts == ("up-and-away", f"mine-special-{run.id}")
    assert len(run.id) == 10


def test_schema_version_starts_afresh(composed: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identity(composed())
    monkeypatch.setattr("harness.identity.SCHEMA", -1)
    assert identity(composed()) != first


def test_parts_are_the_components() -> None:
    assert tuple(f.name for f in fields(Parts)) == (*COMPONENTS, *OPTIONAL)
