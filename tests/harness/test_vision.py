"""Media rows in the engine: against the stock model, through every kind of method, one look per request."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from harness import media
from harness.backends.hf import HF
from harness.backends.hf_facts import LoadedModel
from harness.backends.hf_model import Hub, Tiny, TinyVLM
from harness.backends.hf_rope import shape_of
from harness.backends.hf_run import Decoding
from harness.chat import ChatScript
from harness.decode import clip as decoded
from harness.errors import UserError
from harness.media import FIRST, Media
from harness.tasks.base import Item
from harness.trajectory import Finished, Runner
from harness.workflow import Workflow
from methods.base import Dense, Method
from methods.cacheblend import CacheBlend
from methods.dense import DenseMethod
from methods.epic import Epic
from methods.full_reuse import FullReuse
from methods.graphflow import GraphFlow
from methods.kamera import Kamera
from methods.kvcmas import KVCMAS
from methods.kvcomm import KVComm
from methods.oracle_delta import OracleDelta
from methods.segment import Private, Prompt, Shared, Span
from tests.harness.films import clip, image
from tests.harness.trajectories import EchoTask

SHOWN = {
    "one picture": [image(1)],
    "a wide picture": [image(1, width=300, height=40)],
    "two pictures": [image(1, alone=False), image(2, width=30, alone=False)],
    "a clip": [clip(5)],
    "a picture and a clip": [image(1), clip(3)],
    "no medium": [],
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return TinyVLM(language="random", dtype="float32", device="cpu").load()


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> HF:
    return HF(chunk=64, block=48, poison=True).attach(loaded.model, shape_of(loaded.model), loaded.reader)


@pytest.fixture
def looks(loaded: LoadedModel) -> Iterator[list[int]]:
    """Grows by one whenever the vision tower runs."""
    seen: list[int] = []
    hook = loaded.model.model.vision_tower.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    hook.remove()


def words(loaded: LoadedModel, text: str) -> tuple[int, ...]:
    return tuple(loaded.tokenizer.encode(text, add_special_tokens=False))


def prompt_of(loaded: LoadedModel, shown: Sequence[Media]) -> Prompt:
    assert loaded.reader is not None
    rows = tuple(i for medium in shown for i in loaded.reader.ids(medium))
    question = Span("question", (*rows, *words(loaded, "\nWhat is it?")), "user")
    return Prompt((Private(words(loaded, "You look closely.")), Shared(question), Private(words(loaded, "Answer."))))


def stock(loaded: LoadedModel, prompt: Prompt, shown: Sequence[Media]) -> dict[str, Any]:
    """The inputs that the stock model takes for the same prompt, prepared by transformers' own processor."""
    assert loaded.reader is not None
    config, processor = loaded.model.config, loaded.reader.images
    kinds = {m.key: config.video_token_index if m.kind == "video" else config.image_token_index for m in shown}
    ids = [i if i < FIRST else kinds[(i - FIRST) >> media.ROW_BITS] for i in prompt.ids]
    out: dict[str, Any] = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    pictures = [Image.open(io.BytesIO(m.data or b"")) for m in shown if m.kind == "image"]
    if pictures:
        out |= processor(images=[pictures], return_tensors="pt")
    clips = [m for m in shown if m.kind == "video"]
    if clips:
        squares = [
            Image.fromarray(f).resize((42, 42), Image.Resampling.BICUBIC) for m in clips for f in decoded(m).pixels
        ]
        flat = [processor(images=[[s, s]], return_tensors="pt")["pixel_values"][0, 0] for s in squares]
        out["pixel_values_videos"] = torch.stack(flat)[None]
    return out


@pytest.mark.parametrize("case", SHOWN)
def test_dense_equals_stock_generate(case: str, loaded: LoadedModel) -> None:
    shown = SHOWN[case]
    engine = HF(poison=True).attach(loaded.model, shape_of(loaded.model), loaded.reader)
    prompt = prompt_of(loaded, shown)
    with engine.showing(shown):
        run = engine.run(prompt, Dense(), Decoding(12))
    inputs = stock(loaded, prompt, shown)
    with torch.no_grad():
        logits = loaded.model(**inputs, logits_to_keep=1).logits[0, -1].float()
        out = loaded.model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(run.logits, logits)
    assert list(run.output_ids) == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("size", [(1, 1), (1000, 10), (3, 900), (84, 84), (85, 83), (60, 100), (500, 500)])
@pytest.mark.parametrize("alone", [True, False])
def test_rows_are_counted_as_the_tower_makes_them(size: tuple[int, int], alone: bool, engine: HF) -> None:
    medium = image(3, width=size[0], height=size[1], alone=alone)
    assert engine.eye is not None
    with engine.showing([medium]) as (record,):
        features = engine.eye._features(medium.key)
    assert record.rows == len(features) == engine.eye.reader.count(medium)
    assert torch.isfinite(features).all()
    assert not engine.eye.features
    assert not engine.eye.shown


def test_features_tell_pictures_and_rows_apart_and_are_as_large_as_words(engine: HF, loaded: LoadedModel) -> None:
    assert engine.eye is not None
    one, two = image(1), image(2)
    with engine.showing([one, two]):
        a, b = engine.eye._features(one.key), engine.eye._features(two.key)
    assert ((a - b).norm() / a.norm()) > 0.3
    assert a[:9].std(0).mean() > 0.3 * a.std()
    assert 0.3 < a.std() / loaded.model.get_input_embeddings().weight.std() < 3


def test_rows_that_are_not_shown_are_refused(engine: HF, loaded: LoadedModel) -> None:
    with pytest.raises(ValueError, match="not shown"):
        engine.run(prompt_of(loaded, [image(1)]), Dense(), Decoding(1))
    text_only = Tiny(device="cpu").load()
    blind = HF().attach(text_only.model, shape_of(text_only.model))
    with pytest.raises(ValueError, match="text only"), blind.showing([image(1)]):
        pass


class SightTask(EchoTask):
    """The same questions about pictures and clips; the last one about nothing."""

    def __init__(self, shown: Sequence[Sequence[Media]]) -> None:
        self.items = tuple(Item(f"q{i}", "What is it?", "1", media=tuple(s)) for i, s in enumerate(shown))

    def question(self, item: Item) -> str:
        return self.lead_in + media.MARK * len(item.media) + item.question


def play(
    chosen: Method, engine: HF, loaded: LoadedModel, shown: Sequence[Sequence[Media]], shadow: bool = False
) -> list[Finished]:
    task = SightTask(shown)
    script = ChatScript(
        task, task.items, Workflow("full", max_new_tokens=6), loaded.tokenizer, frozenset(), loaded.reader
    )
    chosen.bind(engine.shape, 0)
    runner = Runner(chosen, engine, script, frozenset(), shadow)
    return [runner.run(case) for case in script.cases()]


REQUESTS = [[image(1)], [clip(5)], [image(2, alone=False), image(3, alone=False)], [image(1)], []]
METHODS: dict[str, Callable[[], Any]] = {
    "dense": DenseMethod,
    "full_reuse": FullReuse,
    "isolated": lambda: FullReuse(mode="isolated"),
    "kvcmas": lambda: KVCMAS(gate="always"),
    "kvcomm": lambda: KVComm(gate="always"),
    "cacheblend": lambda: CacheBlend(ratio=0.5),
    "epic": Epic,
    "kamera": Kamera,
}


@pytest.mark.parametrize("name", METHODS)
def test_the_tower_runs_once_per_request_and_medium(
    name: str, engine: HF, loaded: LoadedModel, looks: list[int]
) -> None:
    done = play(METHODS[name](), engine, loaded, REQUESTS)
    expected = [len(shown) for shown in REQUESTS]
    if name == "kamera":
        # Its last request but one shows a picture that it keeps context-free rows of, and relations to every reader.
        expected[3] = 0
    assert len(looks) == sum(expected)
    for finished, shown, count in zip(done, REQUESTS, expected, strict=True):
        seen = [hop.notes.get("media_encoded") for hop in finished.hops]
        assert seen == ([float(count), 0.0, 0.0, 0.0] if shown else [None] * 4)
        assert [m.name for m in finished.media] == [m.name for m in shown]
        assert sum(m.rows for m in finished.media) < finished.hops[0].shared_tokens
    if name != "dense":
        assert any(hop.route == "reuse" for finished in done for hop in finished.hops)


def test_the_shadow_changes_nothing_and_takes_the_same_rows(engine: HF, loaded: LoadedModel, looks: list[int]) -> None:
    plain = play(FullReuse(), engine, loaded, REQUESTS)
    looks.clear()
    shadowed = play(FullReuse(), engine, loaded, REQUESTS, shadow=True)
    assert len(looks) == sum(len(shown) for shown in REQUESTS)
    assert [[h.output_ids for h in f.hops] for f in plain] == [[h.output_ids for h in f.hops] for f in shadowed]
    for finished in shadowed:
        for hop in finished.hops:
            if hop.route == "reuse":
                assert hop.kv_error_k is not None
                assert hop.kv_error_k[0] < 1e-5  # layer 0 holds the very rows of the dense hop
                assert max(hop.kv_error_k[1:]) > 1e-3


def test_a_shadow_makes_no_later_hop_cheaper(engine: HF, loaded: LoadedModel, looks: list[int]) -> None:
    """Kamera holds all that the second request needs, so only the shadows of its hops look."""
    options = {"rank": 4096, "factor_dtype": "float32", "build_requests": 1, "online": False}
    plain = play(Kamera(**options), engine, loaded, [[image(1)], [image(1)]])
    looks.clear()
    shadowed = play(Kamera(**options), engine, loaded, [[image(1)], [image(1)]], shadow=True)
    assert [h.notes["media_encoded"] for h in shadowed[1].hops] == [0.0] * 4
    assert len(looks) == 1 + 4  # once to learn, then in the shadow of every hop
    assert [[h.output_ids for h in f.hops] for f in plain] == [[h.output_ids for h in f.hops] for f in shadowed]


def test_the_exact_delta_equals_dense(engine: HF, loaded: LoadedModel) -> None:
    dense = play(DenseMethod(), engine, loaded, REQUESTS)
    exact = play(OracleDelta(rank=0), engine, loaded, REQUESTS, shadow=True)
    assert [[h.output_ids for h in f.hops] for f in exact] == [[h.output_ids for h in f.hops] for f in dense]
    hops = [hop for finished in exact for hop in finished.hops if hop.route == "reuse"]
    assert len(hops) == 3 * len(REQUESTS)
    for hop in hops:
        assert max((*(hop.kv_error_k or ()), *(hop.kv_error_v or ()))) < 1e-4
        assert abs(hop.first_token_kl or 0.0) < 1e-6


def test_recomputing_every_row_starts_from_the_features_and_is_dense(engine: HF, loaded: LoadedModel) -> None:
    dense = play(DenseMethod(), engine, loaded, REQUESTS)
    whole = play(CacheBlend(ratio=1.0), engine, loaded, REQUESTS, shadow=True)
    assert [[h.output_ids for h in f.hops] for f in whole] == [[h.output_ids for h in f.hops] for f in dense]
    assert max(max(hop.kv_error_v or [0.0]) for finished in whole for hop in finished.hops) < 1e-4


@pytest.mark.parametrize(
    "make",
    [
        lambda: GraphFlow(density=1.0, build_requests=1, min_frequency=1),
        lambda: Kamera(rank=4096, factor_dtype="float32", build_requests=1, online=False),
    ],
    ids=["graphflow", "kamera"],
)
def test_exact_keys_tell_pictures_of_one_size_apart(make: Callable[[], Any], engine: HF, loaded: LoadedModel) -> None:
    one, other = image(1), image(2)
    first, same, another = play(make(), engine, loaded, [[one], [one], [other]])
    assert first.hops[1].prompt_tokens == another.hops[1].prompt_tokens
    routes = [[str(hop.route) for hop in finished.hops] for finished in (first, same, another)]
    assert routes == [["dense"] * 4, ["reuse"] * 4, ["fallback"] * 4]
    assert [h.output_ids for h in same.hops] == [h.output_ids for h in first.hops]
    dense = play(DenseMethod(), engine, loaded, [[one], [other]])
    assert [h.output_ids for h in another.hops] == [h.output_ids for h in dense[1].hops]


def test_text_runs_as_on_the_language_model_alone(engine: HF, loaded: LoadedModel) -> None:
    alone = Tiny(context=8192, device="cpu").load()
    plain = HF(chunk=64, block=48, poison=True).attach(alone.model, shape_of(alone.model))
    for make in (DenseMethod, FullReuse):
        one, two = play(make(), engine, loaded, [[], []]), play(make(), plain, alone, [[], []])
        assert [[h.output_ids for h in f.hops] for f in one] == [[h.output_ids for h in f.hops] for f in two]


def saved(folder: Path, loaded: LoadedModel) -> Path:
    assert loaded.reader is not None
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    loaded.reader.images.save_pretrained(folder)
    return folder


def test_a_folder_reads_as_the_model_that_wrote_it(tmp_path: Path, loaded: LoadedModel) -> None:
    source = Hub("mine", path=str(saved(tmp_path, loaded)), dtype="float32", device="cpu")
    facts, reader = source.facts(), source.reader()
    assert (facts.family, facts.layers) == ("llava_onevision", 4)
    assert reader is not None
    assert reader.count(image(1)) == 37
    again = source.load()
    shown = SHOWN["a picture and a clip"]
    runs = []
    for each in (loaded, again):
        engine = HF(poison=True).attach(each.model, shape_of(each.model), each.reader)
        with engine.showing(shown):
            runs.append(engine.run(prompt_of(each, shown), Dense(), Decoding(4)))
    # Weights that are mapped from a file lie elsewhere in memory, which some processors' sums show in the last bits.
    torch.testing.assert_close(runs[0].logits, runs[1].logits, rtol=0, atol=5e-5)
    for template in (None, "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}"):
        again.tokenizer.chat_template = template
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        again.tokenizer.save_pretrained(tmp_path)
        assert "<|im_start|>" in source.tokenizer().chat_template
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"preprocessor_config\.json"):
        source.reader()


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
def test_rotaries_of_three_coordinates_are_refused_before_weights(family: str, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{family}Config")().to_dict()
    config["text_config"] |= {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    }
    getattr(transformers, f"{family}Config")(**config).save_pretrained(tmp_path)
    Tiny().tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match=r"M-RoPE.*model=llava_ov_7b"):
        Hub("mine", path=str(tmp_path)).facts()
