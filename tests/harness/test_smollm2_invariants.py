"""The engine's and the methods' invariants on trained weights: SmolLM2 in fp32, real chat prompts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.backends.hf import HF
from harness.backends.hf_model import LoadedModel, SmolLM2
from harness.backends.hf_rope import shape_of
from harness.backends.hf_run import Decoding, Run
from harness.chat import ChatScript
from harness.workflow import Workflow
from methods.base import KV, Dense, Probe, Reuse, RowView, Selection
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from methods.segment import Prompt
from tests.harness.trajectories import QUESTIONS, EchoTask, ids, run_all

pytestmark = pytest.mark.smollm2
GREEDY = Decoding(8)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return SmolLM2(dtype="float32", device="cpu").load()


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> HF:
    return HF(poison=True).attach(loaded.model, shape_of(loaded.model))


def script(loaded: LoadedModel, *questions: str) -> ChatScript:
    task = EchoTask(questions)
    return ChatScript(task, task.items, Workflow("full", max_new_tokens=6), loaded.tokenizer, frozenset())


@pytest.fixture(scope="module")
def chat(loaded: LoadedModel) -> ChatScript:
    return script(loaded, *QUESTIONS[:2])


@pytest.fixture(scope="module")
def prompts(chat: ChatScript) -> tuple[Prompt, Prompt]:
    """The second agent's prompt after a made-up output of the first, and the first agent's own."""
    first, second = chat.steps[:2]
    case = chat.cases()[0]
    spans = {"question": case.question}
    source = chat.prompt(first, spans)
    output = chat.output(first, chat.tokenizer.encode("Nine less four leaves five apples in the basket."))
    return chat.prompt(second, {**spans, output.id: output}), source


def rows_of(run: Run, prompt: Prompt, index: int) -> KV:
    at = prompt.placed[index]
    return run.kv(at.start, at.stop)


def test_dense_equals_stock_generate(engine: HF, loaded: LoadedModel, prompts: tuple[Prompt, Prompt]) -> None:
    tokens = torch.tensor([prompts[0].ids])
    stock = loaded.model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=list(loaded.stop_ids),
        pad_token_id=loaded.stop_ids[0],
    )
    run = engine.run(prompts[0], Dense(), Decoding(24, frozenset(loaded.stop_ids)))
    assert list(run.output_ids) == stock[0, tokens.shape[1] :].tolist()


def test_layer_zero_is_context_free(engine: HF, prompts: tuple[Prompt, Prompt]) -> None:  # I1
    reader, source = prompts
    mine = rows_of(engine.run(reader, Dense(), GREEDY), reader, 1).derotated(engine.shape.rope)
    theirs = rows_of(engine.run(source, Dense(), GREEDY), source, 1).derotated(engine.shape.rope)
    torch.testing.assert_close(mine.k[0], theirs.k[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mine.v[0], theirs.v[0], rtol=1e-4, atol=1e-4)
    assert float((mine.v[10] - theirs.v[10]).norm() / mine.v[10].norm()) > 0.01


class Everything:
    def first_rows(self, view: RowView) -> Tensor:
        return torch.arange(view.total)

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)


class EveryThird(Everything):
    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current if layer == 0 else current[current % 3 == 0])


def test_recomputing_everything_equals_dense(engine: HF, prompts: tuple[Prompt, Prompt]) -> None:  # I2
    reader, source = prompts
    rows = {1: rows_of(engine.run(source, Dense(), GREEDY), source, 1)}
    run, again = engine.run(reader, Dense(), GREEDY), engine.run(reader, Reuse(rows, Everything()), GREEDY)
    assert torch.equal(run.logits, again.logits)


def test_exact_rows_equal_dense_and_relayed_ones_do_not(engine: HF, prompts: tuple[Prompt, Prompt]) -> None:  # I3-I5
    reader, source = prompts
    run = engine.run(reader, Dense(), GREEDY)
    exact = {1: rows_of(run, reader, 1).derotated(engine.shape.rope)}
    relayed = {1: rows_of(engine.run(source, Dense(), GREEDY), source, 1)}
    mine, theirs = (engine.run(reader, Reuse(rows), GREEDY) for rows in (exact, relayed))
    torch.testing.assert_close(mine.logits, run.logits, rtol=1e-3, atol=1e-3)
    assert mine.output_ids == run.output_ids
    assert float((theirs.logits - run.logits).abs().max()) > 1e-2


def test_no_row_sees_a_later_one(engine: HF, prompts: tuple[Prompt, Prompt]) -> None:  # I6
    reader, source = prompts
    rows = rows_of(engine.run(source, Dense(), GREEDY), source, 1)
    changed = KV(rows.k.clone(), rows.v.clone(), rows.start)
    changed.k[:, :, -3] += 3.0
    before, after = (engine.run(reader, Reuse({1: r}, EveryThird()), GREEDY) for r in (rows, changed))
    edge = reader.placed[1].stop - 3
    assert torch.equal(before.kv(0, edge).k, after.kv(0, edge).k)
    assert torch.equal(before.kv(0, edge).v, after.kv(0, edge).v)
    assert not torch.equal(before.logits, after.logits)


@pytest.mark.slow
def test_threshold_zero_equals_dense_and_first_agents_are_exact(
    engine: HF, loaded: LoadedModel, chat: ChatScript
) -> None:
    truth = ids(run_all(DenseMethod(), engine, chat))
    assert ids(run_all(KVCMAS(tau=0.0), engine, chat)) == truth
    found = ids(run_all(KVCMAS(gate="always"), engine, chat))
    assert [request[0] for request in found] == [request[0] for request in truth]
    alone = script(loaded, QUESTIONS[0])  # nothing is learned, so one request says it all
    assert ids(run_all(FullReuse(), engine, alone))[0][0] == truth[0][0]


def test_the_same_request_again_is_corrected_exactly(engine: HF, loaded: LoadedModel) -> None:
    chat = script(loaded, QUESTIONS[0], QUESTIONS[0])
    method = KVCMAS(codec="full", factor_dtype="float32", gate="always")
    (_, again) = run_all(method, engine, chat, shadow=True)
    for hop in again.hops[1:]:
        assert hop.route == "reuse"
        assert max(hop.kv_error_k or [1.0]) < 1e-3
        assert (hop.first_token_kl or 0.0) < 1e-5
