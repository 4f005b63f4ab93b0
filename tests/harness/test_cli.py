"""What the command line answers: exit codes, one sentence each, folders, sweeps."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import DictConfig, OmegaConf

from harness.cli import Job, Outcomes, main
from harness.config import Choices
from harness.errors import UserError

STUB = """
from dataclasses import dataclass

@dataclass
class Mine:
    size: int = 1
    captures = frozenset()

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size must be positive, got {self.size}")

    def bind(self, shape, seed): ...
    def plan(self, hop, engine): ...
    def observe(self, hop, executed): ...
    def end(self, trajectory): ...
    def state_bytes(self): ...
    def snapshot(self): ...
    def restore(self, snapshot): ...
    def notes(self): return {}
"""


@dataclass
class Runs:
    """Stands in for :mod:`harness.run`: records what it is asked to run and leaves a file."""

    configs: list[DictConfig] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    choices: list[Choices] = field(default_factory=list)
    behave: Callable[[DictConfig], int] = lambda cfg: 0

    def run(self, cfg: DictConfig, folder: Path) -> int:
        self.configs.append(cfg)
        self.folders.append(folder)
        self.choices.append(Choices.current())
        code = self.behave(cfg)
        (folder / "rows.jsonl").write_text("")
        return code


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """An empty working directory with a method of its own beside it, and no real run."""
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "my_sharing.py").write_text(STUB)
    (tmp_path / "my_conf" / "method").mkdir(parents=True)
    (tmp_path / "my_conf" / "method" / "mine.yaml").write_text("_target_: my_sharing.Mine\nsize: 3\n")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    recorded = Runs()
    module = ModuleType("harness.run")
    module.run = recorded.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harness.run", module)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield recorded
    root.handlers[:], root.level = handlers, level
    sys.modules.pop("my_sharing", None)


def written() -> list[str]:
    return sorted(str(p) for p in Path().rglob("*") if p.is_file())


REFUSED = [
    ("method=kvcma", "method=kvcma: there is no such method, did you mean kvcmas or kvcomm?"),
    ("metod=dense", "metod=dense: there is no option metod, did you mean method"),
    ("method.rnk=8", "method.rnk=8: there is no option method.rnk, did you mean rank?"),
    ("method=dense method.rank=8", "method.rank=8: there is no option method.rank"),
    ("method.rank.x=8", "method.rank.x=8: there is no option method.rank.x, method.rank is a single value"),
    ("method.rank=0", "method.rank=0: rank must be at least 1"),
    ("method.rank=-3", "method.rank=-3: rank must be at least 1"),
    ("method.rank=abc", "method.rank=abc: expected an integer"),
    ("task.tau_distance=nan", "task.tau_distance=nan: expected a number or null\n"),
    ("method.rank=[8]", "method.rank=[8]: expected an integer"),
    ("method.rank=8,16", "method.rank=8,16: several values need -m"),
    ("method=null", "method=null: a run needs a method, choose one of"),
    ("method=custom", "method._target_ has no value"),
    ("method=custom method.size=3", "method.size=3: method has no options yet, add one as +method.size=3"),
    ("+method=dense", "+method=dense: write method=dense, without the plus sign"),
    ("method._target_=no_such_package_here.X", "method._target_=no_such_package_here.X: there is no module"),
    ("task=gsm9k", "task=gsm9k: there is no such task, did you mean gsm8k?"),
    ("model=tinny workflow=ful", "model=tinny: there is no such model, did you mean tiny or tiny_vlm?"),
    ("experiment=paper", "experiment=paper: write +experiment=paper"),
    ("+experiment=papper", "experiment=papper: there is no such experiment, did you mean paper?"),
    ("limit=abc", "limit=abc: expected an integer or null"),
    ("limit=0", "limit=0: expected a positive integer"),
    ("limit=", "limit=: expected an integer or null"),
    ("seed=1.5", "seed=1.5: expected an integer"),
    ("shadow=maybe", "shadow=maybe: expected true or false"),
    ("limti=3", "limti=3: there is no option limti, did you mean limit?"),
    ("+nonsense=3", "nonsense: there is no such option"),
    ("~limit", "~limit: limit cannot be left out"),
    ("tracking.mod=none", "tracking.mod=none: there is no option tracking.mod, did you mean mode?"),
    ("tracking.mode=onlin", "tracking.mode=onlin: expected one of none, offline, online"),
    ("kvcmas", "kvcmas: expected option=value, did you mean method=kvcmas?"),
    ("task.source=a{b", "task.source=a{b: the value cannot be read, put it in two pairs of quotes"),
    ("method.rank=${absent}", "method.rank=${absent}: Interpolation key 'absent' not found"),
    ("hydra.nothing=3", "hydra.nothing: Key 'nothing' not in 'HydraConf'"),
    ("--fnord", "--fnord: there is no such flag"),
    ("--config-dir", "argument --config-dir/-cd: expected one argument"),
    ("--config-dir absent_folder", "Additional config directory"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_refused_in_one_sentence(runs: Runs, capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1
    assert not out
    assert not runs.configs
    assert not list(Path().iterdir())  # not even an empty folder


def test_runs_in_a_folder_named_after_the_options(runs: Runs) -> None:
    assert main(["method=dense", "task=gsm8k", "limit=2"]) == 0
    assert main(["limit=2", "tracking=none", "method=dense"]) == 0
    assert main(["limit=3", "method=dense"]) == 0
    first, again, other = runs.folders
    assert first == again != other
    assert first.parent == Path.cwd() / "results" / "runs" / "gsm8k"
    assert first.name.startswith("dense-")
    assert len(written()) == 2  # what the runs wrote, nothing of Hydra's
    assert runs.configs[0].limit == 2
    assert runs.choices[0] == Choices("dense", "gsm8k", "smollm2", "hf", "full")


def test_results_folder_is_the_users(runs: Runs, tmp_path: Path) -> None:
    assert main(["method=dense", f"results_dir={tmp_path}/elsewhere"]) == 0
    assert runs.folders[0].parent == tmp_path / "elsewhere" / "gsm8k"
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["method=dense", f"results_dir={blocked}"]) == 2


def test_exit_code_is_that_of_the_run(runs: Runs) -> None:
    runs.behave = lambda cfg: 1
    assert main(["method=dense"]) == 1


def test_user_error_of_a_run(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(cfg: DictConfig) -> int:
        raise UserError("task.source=x: there is no such file")

    runs.behave = behave
    assert main(["method=dense"]) == 2
    assert capsys.readouterr().err == "error: task.source=x: there is no such file\n"
    assert not list(Path().iterdir())


def test_defect_of_a_run_shows_its_traceback(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(cfg: DictConfig) -> int:
        raise ZeroDivisionError("a defect")

    runs.behave = behave
    assert main(["method=dense"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ZeroDivisionError: a defect" in err


def test_full_error_shows_the_traceback(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["limit=abc"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["method.rank=0"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_environment_and_arguments_are_left_alone(runs: Runs) -> None:
    before = list(sys.argv)
    assert main(["method=dense"]) == 0
    assert main(["limit=abc"]) == 2
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert sys.argv == before


def test_interrupted(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(cfg: DictConfig) -> int:
        raise KeyboardInterrupt

    runs.behave = behave
    assert main(["method=dense"]) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on from here\n"


@pytest.mark.parametrize("words", [[], ["-m", "seed=0,1"]])
@pytest.mark.parametrize("given", ["results_dir=", "results_dir=' '"])
def test_an_empty_place_is_refused(
    runs: Runs, words: list[str], given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unset variable of the shell; the runs would lie in the root of the file system."""
    assert main([*words, "method=dense", given]) == 2
    assert "results_dir=" in (said := capsys.readouterr().err)
    assert "it is empty; name a folder" in said
    assert not runs.configs
    assert not written()


def test_sweep(runs: Runs) -> None:
    assert main(["-m", "method.rank=8,16,32,64", "limit=2"]) == 0
    assert [c.method.rank for c in runs.configs] == [8, 16, 32, 64]
    assert len(set(runs.folders)) == 4
    assert main(["method.rank=16", "limit=2"]) == 0
    assert runs.folders[4] == runs.folders[1]  # a sweep finds the folders of single runs


def test_sweep_flag_may_stand_anywhere(runs: Runs) -> None:
    assert main(["method=dense", "-m", "seed=1,2", "--config-dir", "../my_conf", "limit=3"]) == 0
    assert [(c.seed, c.limit) for c in runs.configs] == [(1, 3), (2, 3)]


def test_sweep_goes_on_after_a_failure(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(cfg: DictConfig) -> int:
        if cfg.method.rank in (4, 5):
            raise UserError(f"no room for {cfg.method.rank}")
        return 0

    runs.behave = behave
    assert main(["-m", "method.rank=8,4,5,16"]) == 2
    assert [c.method.rank for c in runs.configs] == [8, 4, 5, 16]
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "error: [method.rank=4] no room for 4"
    assert err[1] == "error: [method.rank=5] no room for 5"
    assert err[2] == "error: 2 of 4 runs failed, see above"
    assert len([f for f in written() if "kvcmas-" in f]) == 2


def test_values_that_no_run_can_have_are_refused_before_the_first(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "method.rank=8,0,x,16", "seed=0,1"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: method.rank=0: rank must be at least 1")
    assert said.endswith("; method.rank=x: expected an integer")
    assert not runs.configs
    assert not written()


def test_sweep_goes_on_after_a_defect(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.behave = lambda cfg: 1 // cfg.seed
    assert main(["-m", "method=dense", "seed=0,1"]) == 1
    assert len(runs.configs) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_sweep_over_a_choice_that_does_not_exist(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "method=dense,dens"]) == 2
    assert capsys.readouterr().err.startswith("error: method=dens: there is no such method, did you mean dense")
    assert not runs.configs  # known before the first run starts


@pytest.mark.parametrize(
    "words",
    [
        "--config-dir ../my_conf method=mine method.size=5",
        "method=custom method._target_=my_sharing.Mine +method.size=5",
    ],
)
def test_method_from_elsewhere(runs: Runs, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    assert runs.configs[0].method.size == 5
    assert main(words.replace("=5", "=0").split()) == 2
    assert capsys.readouterr().err == "error: method.size=0: size must be positive, got 0\n"


def test_show_configuration(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "method=dense"]) == 0
    out = capsys.readouterr().out
    assert "_target_: methods.dense.Dense" in out
    assert "limit: null" in out
    assert not runs.configs


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvcmas ")


def test_a_missing_data_file_is_found_before_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.backends.hf_model.SmolLM2.load", lambda self: pytest.fail("it loads"))
    assert main(["method=dense", "task.source=absent.jsonl", "limit=1"]) == 2
    assert capsys.readouterr().err.startswith("error: task.source=absent.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_refusal_loads_no_model_library() -> None:
    code = (
        "import sys; from harness.cli import main; "
        "print(main(['method.rank=abc', 'backend=hf', 'model=smollm2']), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr == "error: method.rank=abc: expected an integer\n"


def test_job_in_another_process(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher may send the job elsewhere: it brings the resolver along, and its failure travels back."""
    job = Job(Outcomes(False))
    packed = pickle.dumps(job)
    OmegaConf.clear_resolver("kvcmas.run")
    assert pickle.loads(packed) == job
    assert OmegaConf.has_resolver("kvcmas.run")

    def elsewhere(verbose: bool) -> Outcomes:
        return Outcomes(verbose, process=-1)

    monkeypatch.setattr("harness.cli.Outcomes", elsewhere)
    assert main(["method.rank=0"]) == 2
