"""An experiment's points are the runs that one would type, and every point of ours can be run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from harness.cli import main
from harness.config import CONF, register
from harness.errors import UserError
from harness.explain import CommandLine
from harness.identity import identify
from harness.points import SIZE, expand, sized
from harness.validate import build

SIZES = sorted(p.stem for p in (CONF / "size").glob("*.yaml"))
EXPERIMENTS = [f"+experiment={p.stem}" for p in sorted((CONF / "experiment").glob("*.yaml"))]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register()
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def expanded(*words: str, config_dir: Path | None = None) -> tuple[list[str], dict[str, str]]:
    return expand(words, CommandLine(tuple(words), config_dir=None if config_dir is None else str(config_dir)))


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", list(words))


def written(folder: Path, *lines: str) -> Path:
    (folder / "experiment").mkdir(parents=True)
    text = "# @package _global_\nshadow: true\npoints:\n" + "".join(f"  - {line}\n" for line in lines)
    (folder / "experiment" / "mine.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_line_of_every_experiment_builds(experiment: str, size: str) -> None:
    words, labels = expanded(experiment, f"size={size}")
    assert len(set(labels.values())) == len(labels)
    assert bool(labels) == ("--multirun" in words)
    kinds = {tuple(word.partition("=")[0] for word in label.split()): choice for choice, label in labels.items()}
    for choice in kinds.values():  # one of each line: its values differ, its options do not
        cfg = composed(experiment, f"size={size}", f"+point={choice}")
        build(cfg)
        assert cfg.limit is None or cfg.limit > 0


def test_sizes_have_the_same_names_and_the_default_is_that_of_the_configuration() -> None:
    names = [set(OmegaConf.load(CONF / "size" / f"{size}.yaml").sizes) for size in SIZES]
    assert all(name == names[0] for name in names)
    assert {"size": SIZE} in OmegaConf.load(CONF / "config.yaml").defaults


def test_a_line_takes_its_lengths_from_the_size(tmp_path: Path) -> None:
    folder = written(tmp_path, "method=dense task=single_stream task.shared_tokens=${sizes.shared} limit=${sizes.few}")
    for size, count, few in (("laptop", 3, "4"), ("full", 3, "null")):
        _, labels = expanded("+experiment=mine", f"size={size}", config_dir=folder)
        assert len(labels) == count
        assert all(label.endswith(f"limit={few}") for label in labels.values())
    with pytest.raises(UserError, match=r"asks for \$\{sizes.sharde\}, did you mean shared"):
        sized("method=dense task.shared_tokens=${sizes.sharde}", {"shared": [1]})
    with pytest.raises(UserError, match="did you mean laptop"):
        expanded("+experiment=mine", "size=lapdop", config_dir=folder)
    with pytest.raises(UserError, match="one size at a time"):
        expanded("+experiment=mine", "size=laptop,full", config_dir=folder)


def test_the_size_alone_does_not_change_a_run() -> None:
    names = {"method": "kvcmas", "task": "gsm8k"}
    assert identify(composed("size=full"), names) == identify(composed(), names)
    assert identify(composed("limit=${sizes.few}"), names) == identify(composed("limit=4"), names)


def test_a_point_is_the_run_that_one_would_type(tmp_path: Path) -> None:
    line = "method=kvcmas method.rank=8 task=mmlu workflow=chain 'workflow.max_new_tokens=4'"
    words, labels = expanded("+experiment=mine", "limit=3", config_dir=written(tmp_path, line))
    assert words == ["--multirun", "+point=p000", "+experiment=mine", "limit=3"]
    point = composed("+point=p000", "shadow=true", "limit=3")
    typed = composed(*line.replace("'", "").split(), "shadow=true", "limit=3")
    names = {"method": "kvcmas", "task": "mmlu"}
    assert identify(point, names) == identify(typed, names)
    assert labels == {"p000": "kvcmas rank=8 task=mmlu workflow=chain workflow.max_new_tokens=4"}


def test_several_values_in_a_line_are_several_points(tmp_path: Path) -> None:
    lines = ["method=dense", "method=droidspeak method.group=[1,2],[0,3] seed=1,2"]
    _, labels = expanded("+experiment=mine", config_dir=written(tmp_path, *lines))
    assert list(labels.values()) == [
        "dense",
        *(f"droidspeak group={g} seed={s}" for g in ("[1,2]", "[0,3]") for s in (1, 2)),
    ]
    assert composed("+point=p003").method.group == [0, 3]


def test_method_on_the_command_line_chooses_points(tmp_path: Path) -> None:
    folder = written(tmp_path, "method=dense", "method=epic method.k=2,4", "method=kvcmas")
    words, labels = expanded("+experiment=mine", "method=epic,dense", "-m", config_dir=folder)
    assert list(labels.values()) == ["dense", "epic k=2", "epic k=4"]
    assert not [w for w in words if w.startswith("method=")]
    assert words.count("-m") == 1
    assert "--multirun" not in words
    with pytest.raises(UserError, match="method=epik: the experiment has no run of it, did you mean epic"):
        expanded("+experiment=mine", "method=epik", config_dir=folder)


def test_an_option_may_be_one_that_only_the_points_task_has(tmp_path: Path) -> None:
    folder = written(tmp_path, "task=single_stream method=dense,kvcmas task.shared_tokens=64,128")
    typed = ["task.warmup=3", "task.shared_tokens=32", "limit=1", "workflow.max_new_tokens=2", "task.samples=1,2"]
    words, labels = expanded("+experiment=mine", *typed, config_dir=folder)
    assert words[2:] == ["+experiment=mine", *typed[2:]]  # what Hydra can place stays with it
    assert len(labels) == 4
    assert not any("warmup" in label for label in labels.values())
    point = composed("+point=p003")
    assert point.task.warmup == 3
    assert point.task.shared_tokens == 32  # what is typed wins over the line
    assert "task.wramup=3" in expanded("+experiment=mine", "task.wramup=3", config_dir=folder)[0]


def test_a_line_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"points: .method\.rank. cannot be read"):
        expanded("+experiment=mine", config_dir=written(tmp_path, "method.rank"))


@pytest.mark.parametrize("words", [("points=[x]",), ("+experiment=compare", "points=[]")])
def test_points_on_the_command_line_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="stand in its YAML"):
        expanded(*words)


def test_other_commands_are_left_alone() -> None:
    assert expanded("method=dense", "+experiment=paper") == (["method=dense", "+experiment=paper"], {})


def test_compare_prints_a_table_for_each_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["model=tiny", "model.context=8192", "limit=2", "workflow=chain", "workflow.max_new_tokens=3"]
    assert main(["+experiment=compare", "method=full_reuse,epic", *small, "tracking=none"]) == 0
    out = capsys.readouterr().out
    closed, forced = out[out.rindex("closed loop") :].split("teacher-forced")
    for table in (closed, forced):
        for name, built_from in (("full_reuse", "paper"), ("epic", "abstract")):
            (line,) = [x.split() for x in table.splitlines() if x.split()[:1] == [name]]
            assert line[1:3] == [built_from, "recompute"]
    assert len(list(Path("results/runs/gsm8k").glob("*/summary.json"))) == 4


def test_a_flag_between_the_overrides_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written(tmp_path / "conf", "method=dense limit=0")
    assert main(["+experiment=mine", "--config-dir", str(folder), "model=tiny", "tracking=none"]) == 2
    assert "limit=0: expected a positive integer" in capsys.readouterr().err
