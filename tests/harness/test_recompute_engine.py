"""What a row schedule may ask of the engine: attention of some rows, shifts of reused rows, the true cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding
from harness.clock import Stopwatch
from harness.hop import Encoder
from methods.base import Dense, Probe, Reuse, RowView, Selection, Shift
from tests.harness.test_engine import GREEDY, READER, dense, from_source

RECIPES = [
    {"family": "llama", "rope": "yarn"},
    {"family": "llama", "rope": "plain", "kv_heads": 1},
    {"family": "qwen2", "rope": "plain", "kv_heads": 4},
]


@pytest.fixture(params=RECIPES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@dataclass
class Scripted:
    """All rows (or the fresh ones) run; at ``layer`` a test looks at the probe and answers."""

    layer: int
    answer: Callable[[Tensor, Probe], Selection]
    every: bool = True
    probed: list[Probe] = field(default_factory=list)

    def first_rows(self, view: RowView) -> Tensor:
        return torch.arange(view.total) if self.every else view.fresh

    def probes(self, layer: int) -> bool:
        return layer == self.layer

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if probe is None:
            return Selection(current)
        self.probed.append(probe)
        return self.answer(current, probe)


def test_attention_received_equals_the_stock_models_probabilities(engine: HF) -> None:
    """All rows ran layer 0, so layer 1 sees the very queries and keys of a dense run."""
    asked = torch.tensor([3, 60, len(READER) - 2, len(READER) - 1])
    seen: list[Tensor] = []

    def look(current: Tensor, probe: Probe) -> Selection:
        seen.append(probe.received(asked))
        return Selection(current)

    engine.run(READER, Reuse(from_source(engine), Scripted(1, look)), GREEDY)
    kept = engine.forward.model.config._attn_implementation
    try:
        engine.forward.model.set_attn_implementation("eager")
        stock = engine.forward.model(torch.tensor([READER.ids]), output_attentions=True).attentions[1][0]  # [Hq, N, N]
    finally:
        engine.forward.model.set_attn_implementation(kept)
    torch.testing.assert_close(seen[0], stock[:, asked].sum((0, 1)), rtol=1e-4, atol=1e-5)
    assert float(seen[0].sum()) == pytest.approx(len(asked) * stock.shape[0], rel=1e-4)


def test_attention_in_blocks_equals_attention_at_once(engine: HF, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.backends import hf_attention

    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(4, 9, 16, generator=draw), torch.randn(2, 30, 16, generator=draw)
    at = torch.tensor([2, 5, 7, 11, 12, 20, 25, 28, 29])
    whole = hf_attention.mass(q, k, at, 0.25)
    monkeypatch.setattr(hf_attention, "BLOCK", 4)
    torch.testing.assert_close(hf_attention.mass(q, k, at, 0.25), whole)
    scores = torch.einsum("hrd,hnd->hrn", q, k.repeat_interleave(2, 0)) / 4
    scores[:, torch.arange(30)[None] > at[:, None]] = -torch.inf
    torch.testing.assert_close(whole, scores.softmax(-1).sum((0, 1)))


def test_a_shift_is_added_to_reused_rows_at_its_layer_only(engine: HF) -> None:
    rows = torch.tensor([20, 33, 70])
    size = (engine.shape.kv_heads, len(rows), engine.shape.head_dim)
    draw = torch.Generator().manual_seed(1)
    keys, values = torch.randn(size, generator=draw), torch.randn(size, generator=draw)
    still = engine.run(READER, Reuse(from_source(engine)), GREEDY)
    schedule = Scripted(2, lambda current, _: Selection(current, shift=Shift(rows, keys, values)), every=False)
    moved = engine.run(READER, Reuse(from_source(engine), schedule), GREEDY)
    before, after = still.kv(0, len(READER)), moved.kv(0, len(READER))
    expected = before.k[2, :, rows] + keys
    assert torch.equal(after.k[2, :, rows], expected)
    assert torch.equal(after.v[2, :, rows], before.v[2, :, rows] + values)
    spans = torch.cat([torch.arange(p.start, p.stop) for p in READER.shared()])
    others = spans[~torch.isin(spans, rows)]
    assert torch.equal(after.k[:, :, others], before.k[:, :, others])
    assert torch.equal(after.v[[0, 1, 3]][:, :, rows], before.v[[0, 1, 3]][:, :, rows])
    assert not torch.equal(moved.logits, still.logits)


def test_kept_and_written_rows_take_their_fresh_values_not_the_shift(engine: HF) -> None:
    everything = torch.arange(len(READER))
    size = (engine.shape.kv_heads, len(READER), engine.shape.head_dim)
    shift = Shift(everything, torch.full(size, 7.0), torch.full(size, 7.0))
    kept = everything[(everything % 2 == 0) | (everything == len(READER) - 1)]
    schedule = Scripted(1, lambda current, _: Selection(kept, write=current, shift=shift))
    run, truth = engine.run(READER, Reuse(from_source(engine), schedule), GREEDY), dense(engine)
    torch.testing.assert_close(run.kv(0, len(READER)).v[1], truth.kv(0, len(READER)).v[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run.kv(0, len(READER)).k[1], truth.kv(0, len(READER)).k[1], rtol=1e-4, atol=1e-4)


def test_the_oracle_is_the_dense_cache_and_its_cost_shows(engine: HF) -> None:
    watch = Stopwatch(engine.clock)
    encoder = Encoder(engine, watch)
    assert encoder.notes() == {}
    truth = engine.run(READER, Dense(), Decoding(1)).kv(0, len(READER))
    found = encoder.oracle(READER)
    assert found.start == 0
    assert torch.equal(found.k, truth.k)
    assert torch.equal(found.v, truth.v)
    assert encoder.notes() == {"oracle_tokens": float(len(READER))}
    assert watch.get("encode") > 0
