"""The memory model against what tiny runs really hold, byte for byte, and the paper's ratios from stated pools."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from harness.backends.hf import HF
from harness.command import composed
from harness.explain import CommandLine
from harness.footprint import footprint, sizes_only
from harness.ladder import Estimate, ladder
from harness.memory import main
from harness.reported import read_reported
from harness.script import Case
from harness.tasks.single_stream import SingleStream, StreamScript
from harness.trajectory import Runner
from harness.validate import build
from harness.workflow import Step
from methods.base import Method, Shape
from methods.lowrank import pair_bytes
from methods.segment import Span

TASK = SingleStream(
    agents=3, system_tokens=12, shared_tokens=70, private_tokens=6, glue_tokens=3, output_tokens=5, warmup=0, samples=5
)
LINES = [
    "method=dense method.prefix_cache=true",
    "method=full_reuse",
    "method=kvcmas method.rank=4 method.pool=3",
    "method=kvcmas method.rank=4 method.pool=3 method.joint=true method.factor_dtype=model",
    "method=kvcmas method.rank=4 method.pool=3 method.reference=context_free method.glue=delta",
    "+experiment=paper method.rank=4 method.pool=3 method.glue=delta",
    "method=kvcomm method.pool=3",
    "method=kvcomm method.pool=2 method.glue=recompute",
    "method=graphflow method.min_frequency=1",
    "method=kamera method.rank=4 method.pool=4",
    "method=ridge method.features=4 method.landmarks=8 method.warmup=2",
    "method=cacheblend",
    "method=epic",
    "method=agentkvshift",
    "method=droidspeak method.group=[1,2]",
    "method=relaycaching method.start_layer=1 method.detect_layer=2 method.end_layer=3",
    "method=oracle_delta",
]


@cache
def unbound(line: str) -> Method:
    cfg, _ = composed(CommandLine((*line.split(), "model=tiny", "task=single_stream")))
    made: Method = build(cfg).method
    return made


def method(line: str) -> Method:
    return deepcopy(unbound(line))


class Letters:
    """A tokenizer that knows letters."""

    def __call__(self, lines: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[3 + ord(c) % 90 for c in line] for line in lines]}

    def decode(self, ids: list[int], **_: object) -> str:
        return str(ids)


class Distinct(StreamScript):
    """No two questions and no two outputs are equal, as here they often are: some methods go by content."""

    count = 0

    def cases(self) -> list[Case]:
        found = enumerate(super().cases(), 3)
        return [replace(c, question=replace(c.question, ids=(n, n, n, *c.question.ids[3:]))) for n, c in found]

    def output(self, step: Step, ids: Sequence[int]) -> Span:
        self.count += 1
        return super().output(step, (100 + self.count, *ids[1:]))


@pytest.mark.parametrize("layout", ["contiguous", "interleaved"])
@pytest.mark.parametrize("line", LINES)
def test_a_method_holds_what_the_model_says(line: str, layout: str, tiny_engine: Callable[..., HF]) -> None:
    engine = tiny_engine()
    task = SingleStream(**{**TASK.__dict__, "layout": layout})
    run, script = method(line), (Distinct if "graphflow" in line else StreamScript)(task, Letters(), seed=0)
    run.bind(engine.shape, 0)
    runner = Runner(run, engine, script, frozenset())
    for case in script.cases():
        runner.run(Case(case.sample_id, case.question, None, warmup=True))
    s: Shape = engine.shape
    found = footprint(method(line), sizes_only(s.layers, s.kv_heads, s.head_dim, s.hidden, s.dtype), task, 5)
    measured = run.state_bytes()
    assert (found.state.base, found.state.correction) == (measured.base, measured.correction)


def test_a_pool_is_as_large_as_its_anchors() -> None:
    shape = sizes_only(4, 2, 16, 64, torch.bfloat16)
    held = [footprint(method(f"method=kvcmas method.rank=4 method.pool={n}"), shape, TASK, 6).state for n in (1, 3)]
    assert held[1].correction == 3 * held[0].correction
    question, output = (pair_bytes(3, n, 32, 4, 4, 2) for n in (70, 3 + 4))
    # two readers of the question; the first output has two, the second one
    assert held[0].correction == 2 * question + 3 * output


def test_the_paper_s_ratios_follow_from_pools_of_20_and_10() -> None:
    reported = read_reported()
    for step, name in zip(ladder(), ("mem_ratio_2k", "mem_ratio_8k", "mem_ratio_32k"), strict=True):
        assert step.ratio(20, 10) == pytest.approx(reported[name].value, rel=0.10)
        assert step.ratio(10, 10) < 0.7 * reported[name].value  # equal pools do not give them
        assert step.ratio(20, 20) < step.ratio(20, 10)


def test_the_full_anchor_example_is_a_pool_of_20() -> None:
    gib = 20 * Estimate().anchor_bytes(4096, 0) / 2**30
    assert gib == pytest.approx(read_reported()["full_anchor_example"].value, rel=0.01)


def test_the_command_prints_both_tables_and_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "memory.csv"
    words = ["method=full_reuse,kvcmas", "shared=2048", "pool=1,2", "agents=2", "requests=2", f"out={out}"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for part in ("2.45", "1.71", "6.24", "15.88", "llama31_8b", "weights 15.0 GiB"):
        assert part in text
    lines = list(csv.DictReader(out.open()))
    assert [(line["method"], line["pool"]) for line in lines] == [("full_reuse", ""), ("kvcmas", "1"), ("kvcmas", "2")]
    base, correction, kept = (int(lines[1][c]) for c in ("base_bytes", "correction_bytes", "kept_bytes"))
    assert base + correction == kept > 0


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pool=0", "pool=0: expected positive integers"),
        ("requests=-1", "requests=-1: expected positive integers, such as 1\n"),
        ("shared=2k", "shared=2k: expected positive integers"),
        ("dtype=float8", "dtype=float8"),
        ("out=table.txt", "ends in .csv"),
        ("method=kvcmass", "did you mean kvcmas"),
        ("foo=1", "foo=1: python -m harness.memory has no option foo; it has method, shared, pool, agents, requests"),
        ("limit=4", "no option limit; it has"),
        ("pol=4", "no option pol; did you mean pool? it has method"),
    ],
)
def test_a_mistake_is_one_sentence(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "shared=64"] if not word.startswith("shared") else [word]) == 2
    assert said in capsys.readouterr().err
