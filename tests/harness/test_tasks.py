"""The two tasks as their YAML builds them: roles, samples, question text, extraction and scoring."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub, truediv
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.errors import UserError
from harness.tasks.agent import Agent
from harness.tasks.base import EXTRACTED, Item, Task
from harness.tasks.gsm8k import Gsm8k
from harness.tasks.number import gold_number

CONF = Path(__file__).parents[2] / "conf" / "task"
NAMES = ("gsm8k", "mmlu")
EVERY = (*NAMES, "humaneval")
OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


def task(name: str, **options: Any) -> Task:
    made: Task = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), **options)
    return made


def evaluate(expression: str) -> Fraction:
    """Exact value of a formula over + - * / and brackets."""

    def value(node: ast.AST) -> Fraction:
        match node:
            case ast.Expression():
                return value(node.body)
            case ast.BinOp():
                return OPERATORS[type(node.op)](value(node.left), value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.Constant(value=int() | float() as number):
                return Fraction(str(number))
        raise AssertionError(f"unexpected {ast.dump(node)}")

    return value(ast.parse(expression, mode="eval"))


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


@pytest.mark.parametrize("convert", ["none", "all"])
@pytest.mark.parametrize("name", EVERY)
def test_the_yaml_builds_three_agents_and_a_final_one(name: str, convert: str) -> None:
    made = task(name, _convert_=convert)
    agents = (*made.agents, made.final)
    assert made.name == name
    assert len(made.agents) == 3
    assert all(isinstance(agent, Agent) for agent in agents)
    assert len({agent.name for agent in agents}) == len({agent.system for agent in agents}) == 4
    assert all(agent.instruction for agent in agents)


@pytest.mark.parametrize("name", EVERY)
def test_role_prompts_are_long_and_differ_from_the_first_word_on(name: str) -> None:
    made = task(name)
    systems = [agent.system for agent in (*made.agents, made.final)]
    assert all(80 <= len(system.split()) <= 200 for system in systems)
    assert len({" ".join(system.split()[:4]) for system in systems}) == 4
    for index, one in enumerate(systems):
        for other in systems[index + 1 :]:
            assert len(words(one) & words(other)) < 0.5 * min(len(words(one)), len(words(other)))


def test_thresholds_are_those_of_the_paper() -> None:
    assert [task(name).tau for name in EVERY] == [0.32, 0.29, 0.34]
    assert task("gsm8k").tau_distance is None
    assert task("mmlu").tau_distance is None


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_large_distinct_and_scored_by_their_own_answers(name: str) -> None:
    made = task(name)
    dataset = made.load()
    assert len(dataset.items) == dataset.manifest.rows >= 60
    assert dataset.manifest.source == "sample"
    assert (
        len({item.id for item in dataset.items}) == len({item.question for item in dataset.items}) == len(dataset.items)
    )
    assert all(made.score(item.target, item) for item in dataset.items)
    assert made.load() == dataset


def test_every_step_of_a_worked_answer_is_right() -> None:
    for item in task("gsm8k").load().items:
        steps = re.findall(r"<<([^=<>]+)=([^<>]+)>>(-?[\d,]*\.?\d+)", item.fields["solution"])
        assert len(steps) == item.fields["solution"].count("<<") >= 2
        for formula, result, shown in steps:
            assert evaluate(formula) == Fraction(result) == Fraction(shown.replace(",", "")), item.question
        assert gold_number(item.fields["solution"]) == Fraction(item.target)


def test_every_number_of_a_worked_answer_comes_from_the_story_or_an_earlier_step() -> None:
    """Small constants of unit conversion and everyday knowledge aside."""
    known = {"1", "2", "7", "12", "24", "60", "100", "1000"}
    for item in task("gsm8k").load().items:
        seen = known | {number.replace(",", "") for number in re.findall(r"[\d,]*\.?\d+", item.question)}
        spelled = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
        seen |= {str(index) for index, word in enumerate(spelled, 1) if word in words(item.question)}
        seen |= {str(index) for index in range(2, 11)}
        for formula, result in re.findall(r"<<([^=<>]+)=([^<>]+)>>", item.fields["solution"]):
            for number in re.findall(r"\d+(?:\.\d+)?", formula):
                assert any(Fraction(number) == Fraction(s) for s in seen if s), (item.question, formula)
            seen.add(result.lstrip("-"))


def test_gsm8k_targets_vary() -> None:
    targets = [Fraction(item.target) for item in task("gsm8k").load().items]
    assert len(set(targets)) > 45
    assert any(target < 0 for target in targets)
    assert any(target.denominator != 1 for target in targets)
    assert any(target >= 1_000 for target in targets)


def test_mmlu_letters_are_balanced_over_many_subjects() -> None:
    items = task("mmlu").load().items
    letters = Counter(item.target for item in items)
    assert set(letters) == set("ABCD")
    assert max(letters.values()) <= 1.3 * len(items) / 4
    assert len({item.fields["subject"] for item in items}) >= 12
    assert all(len(set(item.choices)) == 4 for item in items)
    longest = Counter(item.choices.index(max(item.choices, key=len)) == "ABCD".index(item.target) for item in items)
    assert longest[True] <= 0.5 * len(items)  # the right option is not given away by its length


def test_the_question_span_opens_with_the_lead_in_and_lists_the_options() -> None:
    gsm8k, mmlu = task("gsm8k", lead_in="Problem: "), task("mmlu", lead_in="Task: ")
    assert gsm8k.question(Item("1", "How many?", "2")) == "Problem: How many?"
    item = Item("1", "Which?", "A", ("w", "x", "y", "z"))
    assert mmlu.question(item) == "Task: Which?\nA) w\nB) x\nC) y\nD) z"


@pytest.mark.parametrize(
    ("raw", "prediction", "right"),
    [
        ("So she pays $1,234.50.", "1234.5", True),
        ("\\boxed{\\frac{2469}{2}}", "1234.5", True),
        ("1234.5000001", "1234.5000001", False),
        ("-1234.5", "-1234.5", False),
        ("none", None, False),
        ("", None, False),
    ],
)
def test_gsm8k_extraction_and_score(raw: str, prediction: str | None, right: bool) -> None:
    made, item = task("gsm8k"), Item("1", "How much?", "1234.5")
    assert made.extractor == "last_number"
    assert made.extract(raw, item) == prediction
    assert (prediction is not None and made.score(prediction, item)) is right


def test_gsm8k_score_is_exact_and_knows_no_text() -> None:
    made, item = task("gsm8k"), Item("1", "How much?", "1/3")
    assert made.score("1/3", item)
    assert made.score("2/6", item)
    assert not made.score("0.3333333333333333", item)
    assert not made.score("a third", item)
    assert not made.score("", item)


def test_mmlu_extraction_and_score() -> None:
    made, item = task("mmlu"), Item("1", "Which?", "B", ("wax", "oak", "ash", "elm"))
    assert made.extractor == "letter"
    assert made.extract("A long talk. But the answer is (B).", item) == "B"
    assert made.extract("Because", item) is None
    assert made.score("B", item)
    assert made.score("b", item)
    assert not made.score("A", item)
    assert not made.score("AB", item)
    assert not made.score("", item)


def test_substring_scoring_counts_letters_inside_words() -> None:
    """E1: the published scores count the target's letter anywhere; the default does not."""
    item = Item("1", "Which?", "B", ("wax", "oak", "ash", "elm"))
    loose = task("mmlu", extractor="substring")
    assert loose.extractor == "substring"
    assert loose.extract("Being unsure, I say (A).", item) == "B"
    assert loose.extract("Being unsure. output is: A", item) == "A"
    assert loose.extract("being unsure, I say (A).", item) == "A"
    assert task("mmlu").extract("Being unsure, I say (A).", item) == "A"


AGENT = {"name": "solver", "title": "Solver", "system": "Solve."}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": []}, "exactly 3 agents, got 0"),
        ({"agents": [AGENT] * 4}, "exactly 3 agents, got 4"),
        ({"agents": [AGENT] * 3}, "distinct names, but solver"),
        ({"agents": "solver"}, "list of agents"),
        ({"agents": ["solver"] * 3}, r"task.agents\[0\] must be a mapping"),
        (
            {"agents": [AGENT | {"sytem": "x"}] * 3},
            r"task.agents\[0\] has unknown fields sytem; an agent takes .*system",
        ),
        ({"agents": [{"name": "solver"}] * 3}, r"task.agents\[0\] lacks system, title"),
        ({"agents": [AGENT | {"system": " "}] * 3}, "'solver': system must not be empty"),
        ({"agents": [AGENT | {"name": "Math Solver"}] * 3}, "lower-case identifier"),
        ({"agents": [AGENT | {"before": None}] * 3}, "before must be text, got None"),
        ({"final": None}, "task.final must be a mapping"),
        ({"final": AGENT}, "distinct names, but solver"),
        ({"tau": -0.1}, "task.tau must be a finite number of at least 0, got -0.1"),
        ({"tau": float("nan")}, "task.tau must"),
        ({"tau_distance": -1}, "task.tau_distance must"),
        ({"source": " "}, "task.source is empty"),
    ],
)
def test_a_constructor_names_the_option_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    fields = OmegaConf.to_container(OmegaConf.load(CONF / "gsm8k.yaml"))
    assert isinstance(fields, dict)
    arguments: dict[str, Any] = {str(key): value for key, value in fields.items() if key != "_target_"}
    with pytest.raises(UserError, match=message):
        Gsm8k(**(arguments | options))


def test_an_unknown_extractor_is_refused() -> None:
    with pytest.raises(Exception, match=r"task\.extractor must be letter or substring, got 'llm'"):
        task("mmlu", extractor="llm")


def test_gsm8k_may_ask_the_model_for_the_value() -> None:
    """E3: the published scores have the model extract; the default does not."""
    item = Item("1", "How much?", "7")
    raw = "So 3 + 4 = 7. Or 8?" + EXTRACTED + "The value is 7."
    asking, ruled = task("gsm8k", extractor="model"), task("gsm8k")
    assert asking.extract(raw, item) == "7"
    assert asking.extract("It is 7." + EXTRACTED + "none", item) is None
    assert ruled.extract(raw, item) == "8"
    assert asking.extract("It is 7.", item) == "7"
    assert isinstance(asking, Gsm8k)
    assert isinstance(ruled, Gsm8k)
    assert "3 + 4 = 7" in (asking.asked("3 + 4 = 7") or "")
    assert ruled.asked("3 + 4 = 7") is None
    with pytest.raises(Exception, match=r"task\.extractor must be last_number or model, got 'llm'"):
        task("gsm8k", extractor="llm")


def test_tasks_load_without_torch_and_datasets() -> None:
    code = (
        "import sys; from hydra.utils import instantiate; from omegaconf import OmegaConf; "
        f"[instantiate(OmegaConf.load(rf'{CONF}/{{n}}.yaml')).load() for n in {NAMES}]; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
