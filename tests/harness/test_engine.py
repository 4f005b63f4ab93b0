"""The mixed forward against the stock model, and its invariants at the level of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding, Run
from kernels.attention import attend
from methods.base import KV, Dense, FreshRows, Probe, Reuse, RowView, Selection
from methods.segment import Private, Prompt, Shared, Span

RECIPES = [
    {"family": "llama", "rope": "plain"},
    {"family": "llama", "rope": "llama3", "heads": 4, "kv_heads": 1},
    {"family": "llama", "rope": "yarn", "kv_heads": 4},
    {"family": "qwen2", "rope": "plain"},
    {"family": "qwen2", "rope": "yarn"},
]
IDS = [f"{r['family']}-{r['rope']}-kv{r.get('kv_heads', 2)}" for r in RECIPES]


@pytest.fixture(params=RECIPES, ids=IDS)
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


def draw(seed: int, count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (count,), generator=generator).tolist())


def prompt_of(*pieces: tuple[int, ...] | Span) -> Prompt:
    return Prompt(tuple(Shared(p) if isinstance(p, Span) else Private(p) for p in pieces))


SPAN_A = Span("question", draw(1, 37), "user")
SPAN_B = Span("output:x:0", draw(2, 21), "x")
READER = prompt_of(draw(3, 19), SPAN_A, draw(4, 5), SPAN_B, draw(5, 11))
SOURCE = prompt_of(draw(6, 28), SPAN_A, draw(7, 3), SPAN_B, draw(8, 2))
GREEDY = Decoding(8)


def dense(engine: HF, prompt: Prompt = READER, decoding: Decoding = GREEDY, **more: Any) -> Run:
    return engine.run(prompt, Dense(), decoding, **more)


def held(engine: HF, run: Run, prompt: Prompt, index: int) -> KV:
    at = prompt.placed[index]
    return run.kv(at.start, at.stop)


def from_source(engine: HF) -> dict[int, KV]:
    run = dense(engine, SOURCE)
    return {1: held(engine, run, SOURCE, 1), 3: held(engine, run, SOURCE, 3)}


@dataclass(frozen=True)
class KeepSome:
    """All rows run layer 0; from layer 1 on only fresh rows and every third span row (a partial recompute)."""

    write: bool = False

    def first_rows(self, view: RowView) -> Tensor:
        return torch.arange(view.total)

    def probes(self, layer: int) -> bool:
        return layer == 1

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if layer == 0:
            return Selection(current)
        kept = current[current % 3 == 0]
        return Selection(kept, write=current if self.write and layer == 1 else None)


@dataclass(frozen=True)
class KeepAll:
    def first_rows(self, view: RowView) -> Tensor:
        return torch.arange(view.total)

    def probes(self, layer: int) -> bool:
        return True

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)


def test_dense_equals_stock_generate(engine: HF) -> None:
    ids = torch.tensor([READER.ids])
    stock = engine.forward.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, eos_token_id=None
    )
    run = dense(engine, decoding=Decoding(16))
    assert list(run.output_ids) == stock[0, len(READER) :].tolist()
    assert torch.equal(run.logits, engine.forward.model(ids, logits_to_keep=1).logits[0, -1].float())
    assert list(run.fresh_rows) == [len(READER)] * engine.shape.layers


def test_decoded_rows_equal_a_prefill_of_the_same_ids(engine: HF) -> None:
    run = dense(engine)
    longer = Prompt((*READER.segments, Private(run.output_ids[:-1])))
    again = dense(engine, longer, Decoding(1))
    held_rows, true_rows = run.kv(0, len(longer)), again.kv(0, len(longer))
    torch.testing.assert_close(held_rows.k, true_rows.k, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(held_rows.v, true_rows.v, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="not held"):
        run.kv(0, len(longer) + 1)


def test_stop_token_ends_decoding(engine: HF) -> None:
    free = dense(engine, decoding=Decoding(12)).output_ids
    stop = free[4]
    cut = dense(engine, decoding=Decoding(12, frozenset({stop}))).output_ids
    assert cut == free[: free.index(stop) + 1]


def test_forced_ids_are_fed(engine: HF) -> None:
    forced = draw(11, 6)
    run = dense(engine, decoding=Decoding(6, frozenset(forced), forced))
    again = dense(engine, Prompt((*READER.segments, Private(forced[:-1]))), Decoding(1))
    assert run.output_ids == forced
    torch.testing.assert_close(run.kv(0, len(READER) + 5).v, again.kv(0, len(READER) + 5).v, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill_equals_whole(tiny_engine: Any, chunk: int) -> None:
    whole, parts = dense(tiny_engine()), dense(tiny_engine(chunk=chunk, block=chunk))
    torch.testing.assert_close(parts.logits, whole.logits, rtol=1e-4, atol=1e-4)
    assert parts.output_ids == whole.output_ids


def test_layer_zero_depends_on_tokens_and_positions_only(engine: HF) -> None:  # I1, T2
    rows, run = from_source(engine), dense(engine)
    for index in (1, 3):
        mine = held(engine, run, READER, index).derotated(engine.shape.rope)
        theirs = rows[index].derotated(engine.shape.rope)
        torch.testing.assert_close(mine.k[0], theirs.k[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.v[0], theirs.v[0], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(mine.v[-1], theirs.v[-1], rtol=1e-2, atol=1e-2)


def test_exact_rows_reproduce_dense(engine: HF) -> None:  # T13, I5
    run = dense(engine)
    rows = {i: held(engine, run, READER, i).derotated(engine.shape.rope) for i in (1, 3)}
    reuse = engine.run(READER, Reuse(rows), GREEDY)
    torch.testing.assert_close(reuse.logits, run.logits, rtol=1e-3, atol=1e-3)
    assert reuse.output_ids == run.output_ids
    assert list(reuse.fresh_rows) == [19 + 5 + 11] * engine.shape.layers


def test_rows_at_their_own_place_are_bit_exact(engine: HF) -> None:
    run = dense(engine)
    reuse = engine.run(READER, Reuse({1: held(engine, run, READER, 1)}), GREEDY)
    at = READER.placed[1]
    assert torch.equal(reuse.kv(at.start, at.stop).k, run.kv(at.start, at.stop).k)


def test_recomputing_all_rows_equals_dense(engine: HF) -> None:  # I2
    run = dense(engine)
    again = engine.run(READER, Reuse(from_source(engine), KeepAll()), GREEDY)
    assert torch.equal(again.logits, run.logits)
    assert list(again.fresh_rows) == [len(READER)] * engine.shape.layers


def test_the_same_prefix_reuses_exactly(engine: HF) -> None:  # I4
    longer = Prompt((*READER.segments[:4], Private(draw(9, 6))))
    run = dense(engine)
    plan = Reuse({i: held(engine, run, READER, i) for i in range(4)})
    reuse = engine.run(longer, plan, GREEDY)
    torch.testing.assert_close(reuse.logits, dense(engine, longer).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("write", [False, True])
def test_no_row_sees_a_later_one(engine: HF, write: bool) -> None:  # I6, at a ratio strictly between 0 and 1
    rows = from_source(engine)
    changed = rows[3].rows(0, len(rows[3]))
    changed.k[:, :, 9] += 3.0
    changed.v[:, :, 9] -= 3.0
    before = engine.run(READER, Reuse(from_source(engine), KeepSome(write)), GREEDY)
    after = engine.run(READER, Reuse({**rows, 3: changed}, KeepSome(write)), GREEDY)
    edge = READER.placed[3].start + 9
    assert 0 < before.fresh_rows[1] < len(READER)
    assert torch.equal(before.kv(0, edge).k, after.kv(0, edge).k)
    assert torch.equal(before.kv(0, edge).v, after.kv(0, edge).v)
    if not write:  # and what comes later does see it
        assert not torch.equal(before.logits, after.logits)


def test_a_bottom_right_mask_would_leak(engine: HF, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak test above can fail: under the mask that two published codes use, it does."""
    from harness.backends import hf_attention

    def bottom_right(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
        rows, stop = len(q_pos), k.shape[1]
        return attend(q, k, v, torch.arange(rows) + stop - rows, scale)

    monkeypatch.setattr(hf_attention, "attend", bottom_right)
    with pytest.raises(AssertionError):
        test_no_row_sees_a_later_one(engine, False)


def test_unset_rows_would_show(engine: HF) -> None:  # I10
    class Hole(KV):
        def write(self, keys: Tensor, values: Tensor, start: int, rope: Any) -> None:
            super().write(keys, values, start, rope)
            keys[:, :, 3] = torch.nan

    rows = from_source(engine)
    good = engine.run(READER, Reuse(rows), GREEDY)
    assert torch.isfinite(good.logits).all()
    bad = engine.run(READER, Reuse({**rows, 1: Hole(rows[1].k, rows[1].v, rows[1].start)}), GREEDY)
    assert torch.isnan(bad.logits).all()


def test_partial_rows_stay_nested_and_fresh_rows_survive(engine: HF) -> None:  # I9
    run = engine.run(READER, Reuse(from_source(engine), KeepSome()), GREEDY)
    assert run.fresh_rows[0] == len(READER)
    assert list(run.fresh_rows[1:]) == sorted(run.fresh_rows[1:], reverse=True)
    assert run.fresh_rows[-1] >= 19 + 5 + 11


def test_hidden_states_of_decoded_rows_equal_those_of_a_prefill(engine: HF) -> None:
    layers = frozenset({0, 2})
    run = dense(engine, captures=layers)
    longer = Prompt((*READER.segments, Private(run.output_ids[:-1])))
    again = dense(engine, longer, Decoding(1), captures=layers)
    for layer in layers:
        mine = run.hidden(layer, 0, len(longer))
        torch.testing.assert_close(mine, again.hidden(layer, 0, len(longer)), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="not held"):
        run.hidden(2, 0, len(longer) + 1)


def test_hidden_states_of_rows_that_did_not_run_are_unset(engine: HF) -> None:
    run = engine.run(READER, Reuse(from_source(engine)), GREEDY, captures=frozenset({1}))
    at = READER.placed[3]
    assert run.hidden(1, at.start, at.stop).isnan().all()
    assert run.hidden(1, at.stop, run.held).isfinite().all()


@pytest.mark.parametrize("decoded", [False, True])
def test_attention_equals_that_of_the_eager_model(engine: HF, decoded: bool) -> None:
    layers = (1, 3)
    run = dense(engine)
    before = run.kv(0, run.held)
    start, stop = (run.held - 4, run.held) if decoded else (READER.placed[1].stop - 10, READER.placed[1].stop)
    mass = run.attention(start, stop, layers)
    ids = torch.tensor([(*READER.ids, *run.output_ids)[:stop]])
    ours = engine.forward.model.config._attn_implementation
    engine.forward.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            probabilities = engine.forward.model(ids, output_attentions=True).attentions
    finally:
        engine.forward.model.set_attn_implementation(ours)
    expected = sum(probabilities[layer][0, :, start:stop].sum(dim=(0, 1)) for layer in layers)
    torch.testing.assert_close(mass, expected, rtol=1e-3, atol=1e-3)
    after = run.kv(0, run.held)
    assert torch.equal(before.k, after.k)
    assert torch.equal(before.v, after.v)


def test_entering_at_a_layer_with_exact_hidden_states_equals_dense(engine: HF) -> None:
    """Rows below the entry layer come from the dense cache, above it they are recomputed: nothing may change."""
    entry = 2
    run = dense(engine, captures=frozenset({entry}))
    span = torch.arange(READER.placed[1].start, READER.placed[1].stop)

    @dataclass(frozen=True)
    class Enter:
        def first_rows(self, view: RowView) -> Tensor:
            return view.fresh

        def probes(self, layer: int) -> bool:
            return False

        def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
            if layer != entry:
                return Selection(current)
            keep = torch.cat((current, span)).unique()
            return Selection(keep, enter=(span, run.hidden(entry, int(span[0]), int(span[-1]) + 1)))

    rows = {1: held(engine, run, READER, 1)}
    again = engine.run(READER, Reuse(rows, Enter()), GREEDY)
    torch.testing.assert_close(again.logits, run.logits, rtol=1e-3, atol=1e-3)
    fresh = len(READER) - len(SPAN_A)
    assert list(again.fresh_rows) == [fresh] * entry + [len(READER)] * (engine.shape.layers - entry)


def test_probe_shows_fresh_and_reused_keys(engine: HF) -> None:
    rows, run = from_source(engine), dense(engine)
    seen: list[Probe] = []

    @dataclass(frozen=True)
    class Look(KeepAll):
        def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
            assert probe is not None
            seen.append(probe)
            return Selection(current)

    engine.run(READER, Reuse(rows, Look()), GREEDY)
    cache = run.kv(0, len(READER))
    for probe in seen:
        torch.testing.assert_close(probe.fresh_k, cache.k[probe.layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(probe.fresh_v, cache.v[probe.layer], rtol=1e-4, atol=1e-4)
    at = READER.placed[1]
    moved = torch.empty_like(rows[1].k)
    rows[1].write(moved, torch.empty_like(rows[1].v), at.start, engine.shape.rope)
    assert torch.equal(seen[1].reused_k[:, at.start : at.stop], moved[1])
    assert torch.isnan(seen[1].reused_v[:, 0]).all()


def test_a_fully_reused_prompt_still_runs_its_last_row(engine: HF) -> None:
    prompt = prompt_of(draw(3, 19), SPAN_A)
    run = dense(engine, prompt)
    reuse = engine.run(prompt, Reuse({0: run.kv(0, 19), 1: run.kv(19, 56)}), GREEDY)
    assert list(reuse.fresh_rows) == [1] * engine.shape.layers
    assert reuse.output_ids == run.output_ids


def test_repeated_and_empty_spans(engine: HF) -> None:
    empty = Span("output:y:0", (), "y")
    prompt = prompt_of(SPAN_A, empty, SPAN_A, draw(5, 4))
    run = dense(engine, prompt)
    rows = {0: held(engine, run, prompt, 0), 2: held(engine, run, prompt, 2)}
    assert engine.run(prompt, Reuse(rows), GREEDY).output_ids == run.output_ids


def test_encode_is_context_free(engine: HF) -> None:
    alone = dense(engine, Prompt((Private(SPAN_A.ids),)), Decoding(1))
    encoded = engine.encode(SPAN_A.ids)
    assert encoded.start == 0
    torch.testing.assert_close(encoded.k, alone.kv(0, len(SPAN_A)).k)


def test_a_copy_shares_no_storage_with_the_live_cache(engine: HF) -> None:  # I11
    run = dense(engine)
    rows = run.kv(3, 9)
    kept = rows.k.clone()
    run.cache.keys.fill_(0.0)
    assert torch.equal(rows.k, kept)


def test_wrong_row_count_is_refused(engine: HF) -> None:
    rows = from_source(engine)
    with pytest.raises(ValueError, match="segment 1"):
        engine.run(READER, Reuse({1: rows[1].rows(0, 5)}, FreshRows()), GREEDY)
