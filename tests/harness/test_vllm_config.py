"""What backend=vllm refuses before anything loads, and who says what it asks of an engine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from harness.backends.hf_tiny import Tiny
from harness.backends.vllm import VLLM
from harness.cli import main
from harness.config import CONF, register
from harness.errors import UserError
from methods.ability import Ability, required
from methods.base import Method

PLACES = {"dense", "full_reuse", "graphflow", "kamera", "kvcmas", "kvcomm", "mean_delta", "nearest_anchor", "ridge"}
"""Methods that only place rows and let the rest run fresh."""
NAMES = sorted(p.stem for p in (CONF / "method").glob("*.yaml") if p.stem != "custom")


def method(name: str) -> Method:
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        made: Method = instantiate(compose("config", [f"method={name}"]).method, _convert_="all")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_it_asks_of_an_engine(name: str) -> None:
    assert hasattr(method(name), "requires")
    assert (required(method(name)) == frozenset()) == (name in PLACES)


def test_a_method_that_says_nothing_is_taken_to_need_everything() -> None:
    assert required(object()) == frozenset(Ability)


@pytest.mark.parametrize("name", sorted(set(NAMES) - PLACES))
def test_what_vllm_cannot_do_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(UserError, match=rf"method={name} needs .* use backend=hf"):
        VLLM().check(Tiny(head_dim=32), method(name), name, 0)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_command_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backend=vllm", "model=tiny", "limit=1", "tracking=none", f"results_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "make setup-vllm" in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefix_cache": "all"}, "prefix_cache"),
        ({"concurrency": 0}, "concurrency"),
        ({"cache_gib": 0.0}, "cache_gib"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        VLLM(**options)  # type: ignore[arg-type]
