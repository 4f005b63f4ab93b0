"""HumanEval: sample, sources, scoring, the tool, and all problems of the original set where it is at hand."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.errors import UserError
from harness.sandbox import level
from harness.sandbox.base import Level, Outcome
from harness.script import judge
from harness.tasks.base import Item
from harness.tasks.gsm8k import Gsm8k
from harness.tasks.humaneval import HumanEval
from tests.harness.real_data import ROOT

CONF = Path(__file__).parents[2] / "conf" / "task"
REAL = ROOT / "humaneval" / "HumanEval.jsonl"
BEST = level.best()[0]
needs_sandbox = pytest.mark.skipif(BEST is None, reason="no level of isolation works on this machine")


def task(**options: Any) -> HumanEval:
    made: HumanEval = instantiate(OmegaConf.load(CONF / "humaneval.yaml"), **{"execute": True, **options})
    return made


def outcomes(made: HumanEval, programs: list[tuple[str, Item]]) -> list[Outcome]:
    """Two at a time; the work is in other processes."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: made.execution(*pair).outcome, programs))


def without_value(item: Item) -> str:
    """A program of the right name that returns what no test expects."""
    return f"def {item.fields['entry_point']}(*args, **kwargs):\n    return 'no such value'\n"


def test_execution_must_be_allowed_before_anything_loads() -> None:
    with pytest.raises(UserError, match=r"task\.execute=true"):
        task(execute=False).load()
    with pytest.raises(UserError, match=r"task\.execute=true"):
        task(execute=False).score("def f(): pass", Item("a", "def f():\n", "", fields={"entry_point": "f", "test": ""}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "strong"}, "task.sandbox"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        task(**options)


def test_a_level_out_of_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "best", lambda: (Level.limited, "no namespaces"))
    with pytest.raises(UserError, match=r"task\.sandbox=isolated"):
        task(sandbox="isolated").load()


@needs_sandbox
def test_the_sample_is_solved_by_its_own_solutions_and_by_nothing_that_returns_nonsense() -> None:
    made = task()
    items = made.load().items
    assert len({item.id for item in items}) == len({item.question for item in items}) == len(items) >= 25
    assert set(outcomes(made, [(item.target, item) for item in items])) == {Outcome.passed}
    assert Outcome.passed not in outcomes(made, [(without_value(item), item) for item in items])
    assert all(made.question(item).startswith("The task is:\n\n") for item in items)


@pytest.mark.slow
@needs_sandbox
@pytest.mark.skipif(not REAL.exists(), reason="the original set is not at hand")
def test_every_original_solution_passes_and_no_wrong_one_does() -> None:
    made = task(source=str(REAL))
    items = made.load().items
    assert len(items) == 164
    assert outcomes(made, [(item.target, item) for item in items]) == [Outcome.passed] * 164
    assert Outcome.passed not in outcomes(made, [(without_value(item), item) for item in items])


@needs_sandbox
def test_wrong_invalid_and_right_are_told_apart() -> None:
    made = task()
    item = made.load().items[0]
    right = judge(made, f"```python\n{item.target}```", item)
    wrong = judge(made, f"```python\n{without_value(item)}```", item)
    invalid = judge(made, "I do not know.", item)
    assert (right.correct, wrong.correct, invalid.correct) == (True, False, False)
    assert right.execution is not None
    assert wrong.execution is not None
    assert (right.execution.outcome, wrong.execution.outcome) == (Outcome.passed, Outcome.failed)
    assert right.execution.level is BEST
    assert (invalid.prediction, invalid.execution) == (None, None)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_local_files(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"task_id": "a/1", "prompt": "def f(x):\n    '''Next.'''\n", "entry_point": "f", "test": "assert f(1) == 2\n"},
        {"task_id": "a/2", "prompt": "def g(x):\n    '''Same.'''\n", "entry_point": "g", "test": "assert g(1) == 1\n"},
    ]
    path = tmp_path / f"set.{suffix}"
    import pandas as pd

    match suffix:
        case "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case "json":
            path.write_text(json.dumps(rows))
        case "csv":
            pd.DataFrame(rows).to_csv(path, index=False)
        case "parquet":
            pd.DataFrame(rows).to_parquet(path)
    items = task(source=str(path)).load().items if BEST else ()
    assert BEST is None or [item.fields["test"] for item in items] == [row["test"] for row in rows]
    assert BEST is None or items[0].target == rows[0]["test"]  # no solution is given


@needs_sandbox
@pytest.mark.parametrize(("column", "value"), [("entry_point", "not a name"), ("test", ""), ("prompt", None)])
def test_broken_rows_are_named(tmp_path: Path, column: str, value: object) -> None:
    row = {"task_id": "a/1", "prompt": "def f(x):\n", "entry_point": "f", "test": "assert f(1) == 2", column: value}
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(UserError, match=rf"set\.jsonl:1: column '{column}'"):
        task(source=str(path)).load()


@needs_sandbox
def test_the_tool_tries_the_examples() -> None:
    made = task()
    item = next(item for item in made.load().items if item.fields["entry_point"] == "stair_heights")
    tool = made.tools[0]
    assert made.use(tool, f"```python\n{item.target}```", item) == "2 of 2 examples pass"
    wrong = made.use(tool, "```python\ndef stair_heights(steps):\n    return [0] if steps else []\n```", item)
    assert wrong == "1 of 2 examples pass\nstair_heights([2, 3, 1]) gave [0] instead of [2, 5, 6]"
    assert "no code" in made.use(tool, "Add the rises up, one after the other.", item)
    assert "stopped" in made.use(tool, "```python\nimport os\nos._exit(0)\n```", item)
    assert "off" in replace(made, execute=False).use(tool, f"```python\n{item.target}```", item)
    hidden = item.fields["test"].split("assert ")[-1].strip()
    assert hidden not in wrong


@needs_sandbox
def test_the_value_of_a_program() -> None:
    made: Gsm8k = instantiate(OmegaConf.load(CONF / "gsm8k.yaml"), execute=True)
    (tool,), item = made.tools, made.load().items[0]
    assert (
        made.use(tool, "```python\ndef f():\n    return 7 * 6\n\nanswer = f()\n```\nThe answer is 41", item)
        == "answer = 42"
    )
    assert made.use(tool, "No program, the answer is 3.", item) == "no program sets answer"
    assert made.use(tool, "```python\nanswer = 1 / 0\n```", item) == "no value (ZeroDivisionError: division by zero)"
    assert made.use(tool, "```python\nanswer = None\n```", item) == "no value (answer is None)"
    big = made.use(tool, "```python\nanswer = 9 ** 9999\n```", item)
    assert len(big) < 2_000
    assert "off" in replace(made, execute=False).use(tool, "```python\nanswer = 1\n```", item)
