"""The profile command end to end, and what a run takes from its file or refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from omegaconf import OmegaConf

from harness import cli
from harness.folder import read_rows
from harness.profile import Options, main
from harness.profiled import Profile, fill

SMALL = ["model=tiny", "task=gsm8k", "workflow=chain", "workflow.max_new_tokens=4"]
RUN = [*SMALL, "tracking=none", "limit=2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The profile of a method, made once by the command with limit=3."""
    folder, files = tmp_path_factory.mktemp("profiles"), dict[str, Path]()

    def make(method: str) -> Path:
        if method not in files:
            path = folder / f"{method}.json"
            assert main([f"method={method}", *SMALL, "limit=3", f"out={path}"]) == 0
            files[method] = path
        return files[method]

    return make


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*words: str) -> tuple[dict[str, Any], Path]:
    """The configuration and the folder of the only run."""
    assert cli.main([*RUN, *words]) == 0
    folders = [p.parent for p in Path("results").rglob("summary.json")]
    assert len(folders) == 1
    found: Any = OmegaConf.to_container(OmegaConf.load(folders[0] / "config.yaml"))
    return found, folders[0]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*RUN, *words]) == 2
    assert not Path("results").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("method", ["droidspeak", "relaycaching"])
def test_a_run_takes_its_layers_from_a_profile(made: Callable[[str], Path], method: str) -> None:
    path = made(method)
    profile = Profile.read(path)
    assert len(profile.calibration) == 3
    assert profile.hops == 9  # three of the four hops of the chain read an earlier one
    assert profile.data is not None
    assert profile.data.source == "sample"
    config, folder = ran(f"method={method}", f"method.profile={path}")
    pick = profile.picks[config["method"].get("pick", "range")]
    assert {name: config["method"][name] for name in pick} == pick
    rows = read_rows(folder).rows
    assert len(rows) == 2
    assert not {row.sample_id for row in rows} & set(profile.calibration)
    assert all(hop.route == "reuse" for row in rows for hop in row.hops[1:])


def test_groups_are_measured_against_dense(made: Callable[[str], Path]) -> None:
    profile = Profile.read(made("droidspeak"))
    points = {tuple(p["group"]): p for p in profile.points}
    assert set(points) == {(), (0, 1), (2, 3), (0, 3)}
    assert points[0, 3]["first_token_kl"] == pytest.approx(0, abs=1e-9)
    assert points[0, 3]["fresh_share"] == 1.0
    assert points[()]["fresh_share"] < points[0, 1]["fresh_share"] == points[2, 3]["fresh_share"] < 1.0
    assert profile.picks["cheap"]["group"] in ([0, 1], [2, 3])


def test_the_cheap_pick(made: Callable[[str], Path]) -> None:
    path = made("droidspeak")
    config, folder = ran("method=droidspeak", f"method.profile={path}", "method.pick=cheap")
    assert config["method"]["group"] == Profile.read(path).picks["cheap"]["group"]
    hop = read_rows(folder).rows[0].hops[1]
    assert 0 < hop.fresh_token_layers < 4 * hop.prompt_tokens


def test_the_run_id_follows_the_contents_of_the_profile(made: Callable[[str], Path], tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from harness.config import CONF, register
    from harness.identity import identify

    register()
    profile = json.loads(made("droidspeak").read_text())
    for name, group in (("a", [0, 1]), ("b", [0, 1]), ("c", [0, 3])):
        profile["picks"]["quality"]["group"] = group
        Path(f"{name}.json").write_text(json.dumps(profile))

    def identity(path: str) -> str:
        GlobalHydra.instance().clear()
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return identify(compose("config", ["method=droidspeak", f"method.profile={path}"]), {}).id

    assert identity("a.json") == identity("b.json") != identity("c.json")


def test_no_profile_and_no_group(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "method=droidspeak")
    assert "method.group" in said
    assert "python -m harness.profile" in said
    assert said.count("\n") == 1
    assert "method.detect_layer, method.end_layer" in refusal(capsys, "method=relaycaching", "method.start_layer=1")


def test_a_given_group_needs_no_profile() -> None:
    config, _ = ran("method=droidspeak", "method.group=[0,1]")
    assert config["method"]["group"] == [0, 1]


def test_profiles_that_do_not_belong_here_are_refused(
    made: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = made("droidspeak")
    mine = f"method.profile={path}"
    said = refusal(capsys, "method=droidspeak", mine, "model.seed=1")
    assert "was made for model tiny (random-" in said
    assert "was made for methods.droidspeak.DroidSpeak" in refusal(capsys, "method=relaycaching", mine)
    assert "would set nothing" in refusal(capsys, "method=droidspeak", mine, "method.group=[0,1]")
    assert "made on 3 of the 64 samples" in refusal(capsys, "method=droidspeak", mine, "limit=null")
    assert "cannot be read" in refusal(capsys, "method=droidspeak", "method.profile=none.json")
    Path("broken.json").write_text('{"schema": 1}')
    assert "is no profile" in refusal(capsys, "method=droidspeak", "method.profile=broken.json")
    Path("future.json").write_text('{"schema": 99}')
    assert "version 99" in refusal(capsys, "method=droidspeak", "method.profile=future.json")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["method=dense"], "learns nothing offline"),
        (["method=droidspeak", "limit=64"], "leaves none to run on"),
        (["method=droidspeak", "calibration=none.jsonl"], "calibration=none.jsonl is no file"),
        (["method=droidspeak", "calibration="], "calibration is empty"),
        (["method=droidspeak", "calibration=empty.jsonl"], "calibration needs at least one"),
        (["method=droidspeak", "calibration=empty.csv"], "calibration needs at least one"),
        (["method=droidspeak", "step=0"], "step must be at least 1"),
        (["method=droidspeak", "within=much"], "within a number"),
        (["method=droidspek"], "did you mean droidspeak?"),
        (["method=droidspeak", "task=single_stream", "calibration=x.jsonl"], "reads no data"),
    ],
)
def test_wrong_options_are_one_sentence(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").touch()
    Path("empty.csv").write_text("question,answer\n")
    assert main([*SMALL, *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said
    assert "task.source" not in said


def test_calibration_on_a_file_of_its_own(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i} plus {i}?", "answer": f"#### {2 * i}"} for i in range(5)]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["method=relaycaching", *SMALL, "limit=2", "calibration=own.jsonl"]) == 0
    profile = Profile.read(Path("results/profiles/relaycaching-tiny-gsm8k.json"))
    assert profile.data is not None
    assert profile.data.source == "file:own.jsonl"
    assert [i.split("-")[1] for i in profile.calibration] == ["0000", "0001"]
    assert not list(Path("results/profiles").glob(".tmp-*"))


def test_text_made_on_the_spot(tmp_path: Path) -> None:
    lengths = ["system_tokens=9", "shared_tokens=30", "private_tokens=5", "output_tokens=4", "samples=2"]
    words = ["model=tiny", "task=single_stream", *(f"task.{word}" for word in lengths)]
    assert main(["method=droidspeak", *words, "step=3", "out=p.json"]) == 0
    profile = Profile.read(Path("p.json"))
    assert profile.data is None
    assert len(profile.calibration) == 2  # warm-up requests are not profiled
    profile.check("p.json", _facts(profile), profile.calibration)


def _facts(profile: Profile) -> Any:
    from harness.backends.hf_tiny import Tiny

    facts = Tiny().facts()
    assert (facts.name, facts.revision) == (profile.model.name, profile.model.revision)
    return facts


def test_filling_leaves_the_configuration_alone(made: Callable[[str], Path]) -> None:
    node = {"_target_": "methods.droidspeak.DroidSpeak", "group": None, "profile": str(made("droidspeak"))}
    cfg = OmegaConf.create({"method": {**node, "pick": "cheap"}})
    filled, profile = fill(cfg)
    assert cfg.method.group is None
    assert profile is not None
    assert list(filled.method.group) == profile.picks["cheap"]["group"]
    plain = OmegaConf.create({"method": {"_target_": "methods.dense.DenseMethod"}})
    assert fill(plain) == (plain, None)


def test_a_profile_survives_writing(made: Callable[[str], Path], tmp_path: Path) -> None:
    profile = Profile.read(made("relaycaching"))
    path = tmp_path / "new" / "folder" / "p.json"
    profile.write(path)
    assert Profile.read(path) == profile
    assert msgspec.json.decode(path.read_bytes())["schema"] == 1


def test_options_have_defaults() -> None:
    assert Options.parse({}) == Options(None, 2, 0.05, None)
    assert Options.parse({"step": "4", "within": "0.1", "out": "a=b", "calibration": "c"}) == Options(
        "c", 4, 0.1, "a=b"
    )


def test_auto_profiles_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*RUN, "method=relaycaching", "method.profile=auto"]  # whose profile takes least
    assert cli.main(words) == 0
    (path,) = Path("results", "profiles").glob("relaycaching-tiny-gsm8k-auto-*.json")
    assert str(path) in capsys.readouterr().out
    profile, before = Profile.read(path), path.stat().st_mtime_ns
    (folder,) = [p.parent for p in Path("results", "runs").rglob("summary.json")]
    assert not set(profile.calibration) & {row.sample_id for row in read_rows(folder).rows}
    assert cli.main([*words, "seed=0", "shadow=true"]) == 0
    assert path.stat().st_mtime_ns == before
    assert "profiling" not in capsys.readouterr().out
    assert cli.main([*words, "workflow.max_new_tokens=3"]) == 0  # another workload has a profile of its own
    assert len(list(path.parent.glob("*.json"))) == 2
