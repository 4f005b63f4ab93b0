"""Arguments against signatures: what fits, what is said when it does not."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from harness.errors import UserError
from harness.hint import nearest, render
from harness.signature import Signature, describe, fits, locate
from harness.validate import Parts, build

FITS: list[tuple[Any, Any, bool]] = [
    (3, int, True),
    (True, int, False),
    (3.0, int, False),
    ("3", int, False),
    ([3], int, False),
    (None, int, False),
    (3, float, True),
    (0.5, float, True),
    (False, float, False),
    (float("nan"), float | None, False),
    (float("inf"), float, True),
    ("x", float, False),
    (True, bool, True),
    (1, bool, False),
    ("true", bool, False),
    ("x", str, True),
    (3, str, False),
    ("a/b", Path, True),
    (None, int | None, True),
    ("x", int | None, False),
    ("a", Literal["a", "b"], True),
    ("c", Literal["a", "b"], False),
    (1, Literal[True, "a"], False),
    ([1, 2], Sequence[int], True),
    ([1, "x"], Sequence[int], False),
    ([[0, 1]], Sequence[Sequence[int]], True),
    ([0, 1], Sequence[Sequence[int]], False),
    ([1, "x"], tuple[int, str], True),
    ([1], tuple[int, str], False),
    ([1, 2, 3], tuple[int, ...], True),
    ("ab", Sequence[str], False),
    ({"a": 1}, Mapping[str, int], True),
    ({"a": "x"}, dict[str, int], False),
    ([], Mapping[str, int], False),
    (object(), Any, True),
    ({"x": 1}, Signature, True),
    ({"_target_": "a.B"}, int, True),
]


@pytest.mark.parametrize(("value", "hint", "expected"), FITS)
def test_fits(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected
    assert describe(hint)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab"), lambda x: st.lists(x, max_size=3)))
def test_anything_fits_any_and_its_own_literal(value: Any) -> None:
    assert fits(value, Any)
    assert fits(value, list[Any] | int | str | bool | None)
    assert isinstance(render(value), str)


def test_descriptions() -> None:
    assert describe(int | None) == "an integer or null"
    assert describe(Literal["a", True]) == "one of a, true"
    assert describe(Sequence[int]) == "a list [value,...]"


def test_nearest() -> None:
    assert nearest("rnk", ["rank", "pool"]) == "did you mean rank?"
    assert nearest("zzz", ["pool", "hot"]) == "valid here: hot, pool"


@dataclass
class Inner:
    size: int = 1


@dataclass
class Method:
    rank: int = 32
    share: float = 0.5
    gate: Literal["open", "shut"] = "open"
    inner: Inner = field(default_factory=Inner)
    width: int | None = None
    captures = frozenset[int]()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}.")
        if self.width is not None and self.width > self.rank:
            raise ValueError("more than there is")

    def bind(self) -> None: ...
    def plan(self) -> None: ...
    def observe(self) -> None: ...
    def end(self) -> None: ...
    def state_bytes(self) -> None: ...
    def snapshot(self) -> None: ...
    def restore(self) -> None: ...
    def notes(self) -> None: ...


@dataclass
class Plain:
    name: str
    size: int


@dataclass
class Free:
    name: str
    size: Any


class Unlabelled:
    def __init__(self, size: int = 1) -> None:
        self.size = size


def absent_file(name: str = "") -> None:
    raise UserError("task.source=x: there is no such file")


HERE = __name__


def config(**changes: Any) -> DictConfig:
    """A configuration of the classes above; ``method={...}`` replaces options of one component."""
    base: dict[str, Any] = {
        "method": {"_target_": f"{HERE}.Method", "rank": 8},
        "task": {"_target_": f"{HERE}.Plain", "name": "t", "size": 1},
        "model": {"_target_": f"{HERE}.Unlabelled", "name": "m"},
        "backend": {"_target_": f"{HERE}.Unlabelled"},
        "workflow": {"_target_": f"{HERE}.Plain", "name": "w", "size": 2},
        "tracking": {"mode": "none"},
        "limit": None,
        "seed": 0,
        "repeats": 1,
        "duplicates": 0.0,
        "shard": None,
        "warmup": 0,
        "early": 50,
        "shadow": False,
        "results_dir": "results",
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) else value
    return OmegaConf.create(base)


def refusal(cfg: DictConfig) -> str:
    with pytest.raises(UserError) as caught:
        build(cfg)
    return str(caught.value)


def test_builds_all_parts() -> None:
    parts = build(config(method={"inner": {"_target_": f"{HERE}.Inner", "size": 4}}))
    assert isinstance(parts, Parts)
    assert parts.method == Method(8, inner=Inner(4))
    assert parts.task == Plain("t", 1)
    assert parts.model.size == 1  # its label stays out of the constructor


def test_lists_and_mappings_arrive_plain() -> None:
    parts = build(config(workflow={"size": 2, "name": "w"}, method={"rank": "${task.size}"}))
    assert type(parts.method.rank) is int


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": {"rank": "abc"}}, "method.rank=abc: expected an integer"),
        ({"method": {"rank": [1]}}, "method.rank=[1]: expected an integer"),
        ({"method": {"rank": None}}, "method.rank=null: expected an integer"),
        ({"method": {"rank": 0}}, "method.rank=0: rank must be at least 1, got 0"),
        ({"method": {"width": 99}}, "method: more than there is"),
        ({"method": {"gate": "ajar"}}, "method.gate=ajar: expected one of open, shut"),
        ({"method": {"rnk": 3}}, "method.rnk: Method has no such option, did you mean rank?"),
        ({"method": {"rank": "???"}}, "method.rank has no value, set method.rank=..."),
        (
            {"method": {"inner": {"_target_": f"{HERE}.Inner", "sise": 4}}},
            "method.inner.sise: Inner has no such option, did you mean size?",
        ),
        (
            {"method": {"_target_": f"{HERE}.Metod"}},
            f"method._target_={HERE}.Metod: {HERE} has no Metod, did you mean Method?",
        ),
        ({"task": {"_target_": f"{HERE}.absent_file", "size": 1}}, "task.size: absent_file has no such option"),
        ({"limit": 0}, "limit=0: expected a positive integer, or null for all samples"),
        ({"seed": -1}, "seed=-1: expected 0 or a positive integer"),
        ({"repeats": 0}, "repeats=0: expected a positive integer"),
        ({"early": -1}, "early=-1: expected 0 (nothing apart) or a positive integer"),
        ({"duplicates": 1.0}, "duplicates=1.0: expected a share of the requests from 0 to below 1"),
        ({"tracking": {"mode": "on"}}, "tracking.mode=on: expected one of none, offline, online"),
        ({"model": "smollm2"}, "model=smollm2: expected a choice of the group model"),
    ],
)
def test_refuses(changes: dict[str, Any], sentence: str) -> None:
    assert refusal(config(**changes)).startswith(sentence)


def test_all_components_in_one_message() -> None:
    said = refusal(config(method={"rank": "x", "foo": 1}, task={"sze": 3}, backend={"size": "y"}))
    for option in ("method.rank=x", "method.foo", "task.sze", "backend.size=y"):
        assert option in said


@pytest.mark.parametrize(("value", "said"), [("x", "an integer"), (float("nan"), "an integer")])
def test_a_borrowed_value_is_complained_about_where_it_was_typed(value: Any, said: str) -> None:
    borrows = {"rank": "${task.size}"}
    assert refusal(config(method=borrows, task={"size": value})) == f"task.size={value}: expected {said}"
    assert "method.rank" in refusal(config(method=borrows, task={"_target_": f"{HERE}.Free", "size": value}))


def test_missing_argument_is_named() -> None:
    cfg = config()
    del cfg.workflow["size"]
    assert refusal(cfg) == "workflow.size: Plain needs a value (an integer), set workflow.size=..."


def test_ranges_of_all_components_in_one_message() -> None:
    cfg = config(method={"rank": -1}, task={"_target_": f"{HERE}.absent_file"})
    del cfg.task["size"]
    said = refusal(cfg)
    assert "method.rank=-1" in said
    assert "there is no such file" in said


def test_a_class_that_is_no_method() -> None:
    cfg = config(method={"_target_": f"{HERE}.Inner"})
    del cfg.method["rank"]
    said = refusal(cfg)
    assert "a method needs" in said
    assert "plan" in said


def test_many_foreign_options_are_summed_up() -> None:
    said = refusal(config(method={f"foreign{i}": i for i in range(9)}))
    assert "and 6 more" in said
    assert "method=custom" in said


def test_a_defect_of_a_constructor_is_not_the_users() -> None:
    module = ModuleType("defective")

    class Defect:
        def __init__(self) -> None:
            raise ZeroDivisionError

    Defect.__module__ = "defective"
    Defect.__qualname__ = "Defect"
    module.Defect = Defect  # type: ignore[attr-defined]
    sys.modules["defective"] = module
    try:
        with pytest.raises(Exception, match="ZeroDivisionError") as caught:
            build(config(backend={"_target_": "defective.Defect"}))
        assert not isinstance(caught.value, UserError)
    finally:
        del sys.modules["defective"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("Method", "expected a dotted path"),
        ("no_such_package_here.Thing", "there is no module no_such_package_here"),
        ("harness.no_such_module.Thing", "there is no module harness.no_such_module"),
        ("harness.hint.nearst", "harness.hint has no nearst"),
        ("harness.validate._RESERVED", "cannot be called"),
    ],
)
def test_locate_says_what_is_wrong(path: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        locate("method", path)


def test_locate_tells_a_missing_dependency_from_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_module.py").write_text("import no_such_dependency\n\nclass Thing: ...\n")
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="needs the package no_such_dependency, which is not installed"):
        locate("method", "needy_module.Thing")
    with pytest.raises(UserError, match="importing broken_module failed with ZeroDivisionError"):
        locate("method", "broken_module.Thing")
