"""The correctness gate end to end: every shipped method passes on the tiny model, and what is wrong is caught."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from torch import Tensor

from harness import cli
from harness.comparison import print_comparison
from harness.config import CONF
from harness.folder import read_summary
from harness.invariants.catalogue import ELSEWHERE, INVARIANTS
from harness.summarise import Heading, summarise
from harness.table import print_run
from harness.verified import FOLDER, Outcome, Verdict, Verified, mark, place, read, verified
from harness.verify import main
from kernels.attention import attend
from methods.base import KV, Dense, Engine, Hop, Plan, Reuse, Rope, Rows
from methods.full_reuse import FullReuse

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml") if path.stem != "custom")
HERE = "tests.harness.test_verify"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Told:
    """Exit code, standard output and folder of one call of the command."""

    code: int
    text: str
    folder: Path

    def outcome(self, method: str, invariant: str) -> Outcome:
        found = read(method, "tiny", self.folder)
        assert found is not None
        return found.outcomes[invariant]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """``model=tiny method=all``, once."""
    home = tmp_path_factory.mktemp("verified")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        out = io.StringIO()
        patch.setattr("sys.stdout", out)
        code = main(["model=tiny", "method=all"])
    return Told(code, out.getvalue(), home / FOLDER)


def test_every_shipped_method_passes(everything: Told) -> None:
    assert everything.code == 0, everything.text
    assert sorted(p.name for p in everything.folder.iterdir()) == [f"tiny-{name}.json" for name in METHODS]
    for name in METHODS:
        found = read(name, "tiny", everything.folder)
        assert found is not None
        assert found.passed
        assert set(found.outcomes) == {invariant.id for invariant in INVARIANTS}


@pytest.mark.parametrize("invariant", ["I1", "I4", "I6", "I9"])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "dense"])
def test_no_check_of_reuse_is_vacuous(everything: Told, method: str, invariant: str) -> None:
    assert everything.outcome(method, invariant).verdict is Verdict.passed


def test_limits_are_reached_by_those_that_have_them(everything: Told) -> None:
    having = {
        id: {name for name in METHODS if everything.outcome(name, id).verdict is Verdict.passed}
        for id in ("I2", "I3", "I5")
    }
    delta = {"kvcmas", "mean_delta", "nearest_anchor", "kvcomm", "graphflow", "kamera"}
    assert having["I5"] == delta | {"oracle_delta", "ridge"}
    assert having["I2"] == set(METHODS) - {"full_reuse", "oracle_delta"}
    assert having["I3"] == set(METHODS) - {"dense", "kvcomm", "oracle_delta"}


def test_the_table_names_everything_in_80_columns(everything: Told) -> None:
    lines = everything.text.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split() and line.split()[0] in METHODS}
    assert sorted(rows) == METHODS
    assert all(len(cells) == len(INVARIANTS) and set(cells) <= {"pass", "n/a"} for cells in rows.values())
    assert all(len(line) <= 80 for line in lines if line.split() and line.split()[0] in METHODS)
    for invariant in INVARIANTS:
        assert f"{invariant.id}: {invariant.statement}" in everything.text
    assert "n/a full_reuse, oracle_delta: it declares no limit that recomputes everything" in everything.text
    for name in METHODS:
        for invariant in INVARIANTS:
            outcome = everything.outcome(name, invariant.id)
            assert outcome.verdict is not Verdict.inapplicable or outcome.reason in everything.text
    assert all(why in everything.text for why in ELSEWHERE.values())


def test_a_bottom_right_mask_fails_the_leak_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.backends import hf_attention

    def bottom_right(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
        rows, stop = len(q_pos), k.shape[1]
        return attend(q, k, v, torch.arange(rows) + stop - rows, scale)

    monkeypatch.setattr(hf_attention, "attend", bottom_right)
    assert main(["model=tiny", "method=cacheblend"]) == 1
    told = Told(1, capsys.readouterr().out, Path(FOLDER))
    outcome = told.outcome("cacheblend", "I6")
    assert outcome.verdict is Verdict.failed
    assert outcome.error is not None
    assert outcome.error > 1e-3
    assert f"fail cacheblend: {outcome.error:.3g} exceeds 0" in told.text
    assert "failed: cacheblend" in told.text
    found = read("cacheblend", "tiny")
    assert found is not None
    assert verified("cacheblend", "tiny", found.revision) is False


@dataclass(frozen=True, eq=False)
class Wrong:
    """Rows whose keys are off at layer 0."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        self.rows.write(keys, values, start, rope)
        keys[0] += 0.1


@dataclass
class Liar(FullReuse):
    """Claims to be plain reuse."""

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        plan = super().plan(hop, engine)
        return Reuse({i: Wrong(r) for i, r in plan.rows.items()}) if isinstance(plan, Reuse) else plan


@dataclass
class Hoarder(FullReuse):
    """Keeps what belongs to a request and does not say so."""

    hoard: list[KV] = field(default_factory=list)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        self.hoard += [source.kv.rows(0, 1) for source in hop.sources.values()]
        return super().plan(hop, engine)


@dataclass
class Moody(FullReuse):
    """Decides by what it did before, which its snapshot does not hold."""

    turns: int = 0

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        self.turns += 1
        plan = super().plan(hop, engine)
        return Dense() if self.turns > 4 else plan

    def notes(self) -> Mapping[str, float]:
        return {"turns": float(self.turns)}


@pytest.mark.parametrize(
    ("toy", "caught"),
    [(Liar, ("I1", "I3", "I4")), (Hoarder, ("T12",)), (Moody, ("I12",))],
    ids=["wrong layer 0", "keeps caches", "not resumable"],
)
def test_methods_that_break_the_contract_are_caught(
    toy: type[Any], caught: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model=tiny", "method=custom", f"method._target_={HERE}.{toy.__name__}"]) == 1
    found = read("custom", "tiny")
    assert found is not None
    assert found.target == f"{HERE}.{toy.__name__}"
    assert set(caught) <= {id for id, outcome in found.outcomes.items() if outcome.verdict is Verdict.failed}
    out = capsys.readouterr().out
    for id in caught:
        assert f"{found.outcomes[id].error:.3g} exceeds" in out


def test_what_is_stored_comes_back_and_goes_stale(everything: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place("epic", "tiny", everything.folder)
    found = msgspec.json.decode(path.read_bytes(), type=Verified)
    assert read("epic", "tiny", everything.folder) == found
    again = found.write(Path("copy"))
    assert read("epic", "tiny", Path("copy")) == found

    def ask(method: str, model: str, revision: str, target: str = "") -> bool | None:
        return verified(method, model, revision, target, Path("copy"))

    assert ask("epic", "tiny", found.revision) is True
    assert ask("epic", "tiny", found.revision, "methods.epic.Epic") is True
    assert ask("epic", "tiny", found.revision, "methods.dense.DenseMethod") is None
    assert ask("epic", "tiny", "other weights") is None
    assert ask("kvcmas", "tiny", found.revision) is None
    with monkeypatch.context() as patch:
        patch.setattr("harness.verified.code", lambda target: "changed since")
        assert ask("epic", "tiny", found.revision) is None
    again.write_text('{"schema": 1')
    assert ask("epic", "tiny", found.revision) is None
    msgspec.structs.replace(found, schema=99).write(Path("copy"))
    assert ask("epic", "tiny", found.revision) is None


@pytest.mark.parametrize("passed", [None, False, True])
def test_tables_mark_what_is_not_verified(passed: bool | None, tmp_path: Path) -> None:
    made = summarise([], Heading("gsm8k", "epic", "tiny", "hf", 4, "python -m harness", passed))
    assert made.verified is passed
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(made))
    shows: tuple[Callable[[Console], None], ...] = (
        lambda console: print_run(tmp_path, console),
        lambda console: print_comparison([tmp_path], console=console),
    )
    for show in shows:
        out = io.StringIO()
        show(Console(file=out, width=80))
        text = " ".join(out.getvalue().split())
        assert (mark(passed) or "epic") in text
        assert ("unverified" in text) == (passed is not True)


def test_a_run_says_whether_its_method_was_verified(everything: Told) -> None:
    run = ["model=tiny", "method=full_reuse", "task=gsm8k", "workflow.max_new_tokens=2", "tracking=none", "limit=1"]
    for seed, expected in ((0, None), (1, True)):
        assert cli.main([*run, f"seed={seed}"]) == 0
        (path,) = [p for p in Path("results/runs").rglob("summary.json") if p.stat().st_size]
        summary = read_summary(path.parent)
        assert summary is not None
        assert summary.verified is expected
        path.unlink()
        stored = read("full_reuse", "tiny", everything.folder)
        assert stored is not None
        stored.write()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["method=drodspeak"], "did you mean droidspeak?"),
        (["method=epic,"], "a name is empty"),
        (["method.k=3"], "method is given 0 times"),
        (["methd=dense"], "error: methd=dense: there is no option methd, did you mean method?"),
        (["method=epic", "method=dense"], "method is given 2 times"),
        (["method=epic", "fast"], "fast: expected options"),
        (["method=epic", "method.k=-1"], "k must be at least 0"),
        (["method=epic", "task=single_stream"], "task=single_stream"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=tiny", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said
    assert not Path("results").exists()


def test_invariants_say_what_they_are() -> None:
    assert len({invariant.id for invariant in INVARIANTS}) == len(INVARIANTS)
    for invariant in INVARIANTS:
        assert invariant.statement.endswith(".")
        assert invariant.tolerance.reason
        t = invariant.tolerance
        assert 0 <= t.float32 <= t.float16 <= t.bfloat16
    ids = {i for invariant in INVARIANTS for i in (invariant.id, *invariant.also)}
    ids |= {i for group in ELSEWHERE for i in group.split(", ")}
    assert ids == {f"I{n}" for n in range(1, 15)} | {f"T{n}" for n in range(1, 17)}


def test_help_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "method=all" in capsys.readouterr().out
