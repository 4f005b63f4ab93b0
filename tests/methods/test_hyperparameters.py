"""Options: what is refused, and that YAML and constructors agree."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny import Tiny

from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.gate import Always, Entropy, Gate, Never, Relative
from methods.kvcmas import KVCMAS
from methods.lowrank import Full, Truncated

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0: use codec=full"),
        ({"rank": -4}, "rank must be at least 1"),
        ({"rank_delta": -1}, "rank_delta must be at least 0"),
        ({"pool": -1}, "pool must be at least 0"),
        ({"hot": 0}, "hot must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"top_p": 0.0}, "top_p must be in"),
        ({"gate": "entropic"}, "gate must be one of auto, entropy, relative, always, never, got 'entropic'"),
        ({"gate": "relative"}, "gate=relative needs tau_distance"),
        ({"frame": "global"}, "frame must be one of derotated, local, absolute"),
        ({"factor_dtype": "int8"}, "factor_dtype must be one of"),
    ],
)
def test_wrong_values_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVCMAS(**options)


def test_full_reuse_names_its_modes() -> None:
    with pytest.raises(ValueError, match="mode must be one of naive, rotated, isolated, got 'moved'"):
        FullReuse("moved")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "gate"),
    [
        ({}, Entropy(0.3, guard=True)),
        ({"tau_distance": 0.2}, Relative(0.2)),
        ({"gate": "entropy", "tau_distance": 0.2}, Entropy(0.3)),
        ({"gate": "relative", "tau_distance": 0.2}, Relative(0.2)),
        ({"gate": "always"}, Always()),
        ({"gate": "always", "tau": 0.0}, Never()),
        ({"tau": -0.1, "tau_distance": 0.2}, Never()),
    ],
)
def test_which_gate_is_at_work(options: dict[str, Any], gate: Gate) -> None:
    assert KVCMAS(**options).grid(Tiny().shape()).gate == gate


def test_codecs_follow_ranks_and_dtypes() -> None:
    shape = Tiny().shape(torch.float16)
    grid = KVCMAS(rank=8, rank_delta=4, rank_base_value=0, factor_dtype="model", oversampling=0).grid(shape)
    assert grid.delta == Truncated(4, torch.float16, 0, 2, True)
    assert grid.base_key == Truncated(8, torch.float16, 0, 2, True)
    assert grid.base_value == Full(torch.float16)
    assert KVCMAS(codec="full").grid(shape).delta == Full(torch.bfloat16)


@pytest.mark.parametrize(("name", "kind"), [("dense", DenseMethod), ("full_reuse", FullReuse), ("kvcmas", KVCMAS)])
def test_yaml_offers_every_field_with_its_default(name: str, kind: type[Any]) -> None:
    text = OmegaConf.load(CONF / "method" / f"{name}.yaml")
    given = OmegaConf.to_container(text, resolve=False)
    assert isinstance(given, dict)
    assert given.pop("_target_") == f"{kind.__module__}.{kind.__qualname__}"
    offered = {f.name: f.default for f in fields(kind) if f.init}
    assert set(given) == set(offered)
    for field, value in given.items():
        if not str(value).startswith("${"):
            assert value == offered[str(field)], field


def test_the_papers_preset_pins_every_behaviour_that_we_changed() -> None:
    preset = OmegaConf.load(CONF / "experiment" / "paper.yaml")
    options = OmegaConf.to_container(preset.method)
    assert isinstance(options, dict)
    method = KVCMAS(**{str(name): value for name, value in options.items()})
    changed = {f.name for f in fields(KVCMAS) if f.init and getattr(method, f.name) != f.default}
    assert changed == {
        "rank_delta", "rank_base_key", "rank_base_value", "rank_glue", "oversampling", "balanced", "factor_dtype",
        "gate", "usage", "question_admission", "anchor_base", "weight_memo", "capacity", "frame", "arithmetic",
        "glue", "min_anchors", "role_cache",
    }  # fmt: skip
    grid = method.grid(Tiny().shape(torch.bfloat16))
    assert grid.delta == Truncated(32, torch.bfloat16, 0, 2, False)
    assert isinstance(grid.gate, Entropy)
    assert not grid.gate.guard
