"""Model folders and the hub: what is refused, in which sentence, and before which cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GlmConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2VLTextConfig,
    SmolLM3Config,
    T5Config,
)

from harness.backends.hf_folder import check_config
from harness.backends.hf_model import Hub, Tiny
from harness.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as users have it, written from a tiny random model."""
    loaded = Tiny(family="qwen2", rope="yarn").load()
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_a_local_folder_gives_the_model_that_was_saved(tmp_path: Path, shard: str) -> None:
    tiny = Tiny(family="qwen2", rope="yarn").load()
    tiny.model.save_pretrained(tmp_path, max_shard_size=shard)
    tiny.tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "60KB")
    source = Hub(name="mine", path=str(tmp_path), dtype="float32")
    loaded = source.load()
    for (name, a), b in zip(tiny.model.named_parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert (loaded.facts.context, loaded.facts.family, loaded.facts.vocab) == (4096, "qwen2", 259)
    assert loaded.stop_ids == tiny.stop_ids
    assert source.tokenizer()("a b").input_ids == tiny.tokenizer("a b").input_ids


def test_the_revision_of_a_folder_follows_its_weights(folder: Path) -> None:
    source = Hub(name="mine", path=str(folder))
    before = source.facts().revision
    assert source.facts().revision == before
    model = Tiny(family="qwen2", rope="yarn", seed=1).load().model
    model.save_pretrained(folder)
    assert source.facts().revision != before


def damage(folder: Path, kind: str) -> None:
    weights = folder / "model.safetensors"
    if kind == "folder":
        shutil.rmtree(folder)
    elif kind == "config":
        (folder / "config.json").unlink()
    elif kind == "json":
        (folder / "config.json").write_text("{")
    elif kind == "tokenizer":
        (folder / "tokenizer.json").unlink()
    elif kind == "weights":
        weights.unlink()
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif kind == "pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    elif kind == "shard":
        weights.rename(folder / "model-00001-of-00002.safetensors")
        parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    elif kind == "architecture":
        edit_config(folder, model_type="of-a-later-year")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("folder", "is not a folder"),
        ("config", r"no config\.json"),
        ("json", r"config\.json that transformers does not accept"),
        ("tokenizer", "no tokenizer"),
        ("weights", "no weights"),
        ("truncated", r"damaged or partly downloaded model\.safetensors"),
        ("pointer", r"damaged or partly downloaded model\.safetensors"),
        ("shard", "lacks 1 of 2 weight files .*model-00002-of-00002"),
        ("architecture", r"config\.json that transformers does not accept"),
    ],
)
def test_a_broken_folder_is_described_in_one_sentence(folder: Path, kind: str, says: str) -> None:
    damage(folder, kind)
    with pytest.raises(UserError, match=f"^model.path={folder} .*{says}") as caught:
        Hub(name="mine", path=str(folder)).facts()
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        Hub(name="mine", path=str(folder)).tokenizer()


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        (
            {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            "'dynamic'.* not one table for every prompt length",
        ),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "factor": 4.0,
                "original_max_position_embeddings": 1024,
                "rope_theta": 1e4,
            },
            "'longrope'.* not one table for every prompt length",
        ),
        ({"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}, "M-RoPE"),
    ],
)
def test_a_rotary_that_is_not_one_fixed_table_is_refused_from_the_config(folder: Path, rope: Any, says: str) -> None:
    edit_config(folder, rope_parameters=rope)
    with pytest.raises(UserError, match=says):
        Hub(name="mine", path=str(folder)).facts()


def test_sliding_windows_are_refused_unless_disabled(folder: Path) -> None:
    window: dict[str, Any] = {"sliding_window": 128, "max_window_layers": 2, "layer_types": None}
    edit_config(folder, use_sliding_window=True, **window)
    with pytest.raises(UserError, match=r"sliding_attention layers.*use_sliding_window"):
        Hub(name="mine", path=str(folder)).facts()
    edit_config(folder, use_sliding_window=False, **window)
    assert Hub(name="mine", path=str(folder)).facts().layers == 4


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (CohereConfig(num_hidden_layers=2), "half-split pairs"),
        (GlmConfig(num_hidden_layers=2), "half-split pairs"),
        (SmolLM3Config(num_hidden_layers=4), "keys of layer 3"),
        (Gemma3TextConfig(num_hidden_layers=6), "another rotary in some layers"),
        (MistralConfig(num_hidden_layers=2), "sliding window of 4096"),
        (GPT2Config(), "no rotary"),
        (T5Config(), "encoder-decoder"),
    ],
    ids=lambda value: getattr(value, "model_type", "says"),
)
def test_families_whose_keys_cannot_be_moved_are_refused_without_weights(config: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"model.repo=a/b .*{says}"):
        check_config(config, "model.repo=a/b")


def test_a_large_llama_is_checked_in_miniature_and_its_config_left_alone() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    config = LlamaConfig(num_key_value_heads=8, max_position_embeddings=131072, rope_parameters=rope)
    before = config.to_dict()
    check_config(config, "model.repo=a/b")
    assert config.to_dict() == before


def hub_error(kind: str) -> Exception:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid/a/b"))
    if kind in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "HfHubHTTPError"):
        made: Exception = getattr(errors, kind)("first line\nsecond line", response=response)
        return made
    return OSError("disk full") if kind == "OSError" else getattr(errors, kind)("first line\nsecond line")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("GatedRepoError", "model.repo=a/b is gated"),
        ("RepositoryNotFoundError", "model.repo=a/b is not a repository"),
        ("RevisionNotFoundError", "model.revision=v9 does not exist"),
        ("HFValidationError", "model.repo=a/b is not a repository"),
        ("LocalEntryNotFoundError", "model.repo=a/b .*cannot be reached.*model.path"),
        ("OfflineModeIsEnabled", "model.repo=a/b .*cannot be reached.*model.path"),
        ("HfHubHTTPError", "model.repo=a/b could not be downloaded"),
        ("OSError", "model.repo=a/b could not be downloaded .disk full."),
    ],
)
def test_every_failure_of_the_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch, kind: str, says: str) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match=says) as caught:
        Hub(name="x", repo="a/b", revision="v9").facts()
    assert "\n" not in str(caught.value)


def test_the_hub_client_really_raises_what_is_handled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="cannot be reached"):
        Hub(name="x", repo="nobody/nothing").facts()
    with pytest.raises(UserError, match="not a repository"):
        Hub(name="x", repo="not//a repository").facts()
    with pytest.raises(UserError, match=r"model\.repo is empty"):
        Hub(name="x").facts()


@pytest.mark.parametrize("pickled", [False, True])
def test_a_repository_is_described_without_and_loaded_with_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path, pickled: bool
) -> None:
    """A stand-in for the hub that hands out only the files asked for."""
    if pickled:
        torch.save(Tiny(family="qwen2", rope="yarn").load().model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    snapshot, fetched = tmp_path / "0123abc", set[str]()

    def download(repo: str, *, allow_patterns: list[str], **_: object) -> str:
        assert repo == "a/b"
        snapshot.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if any(file.match(pattern) for pattern in allow_patterns):
                shutil.copy(file, snapshot / file.name)
                fetched.add(file.name)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = Hub(name="x", repo="a/b", dtype="fp32")
    assert source.facts().revision == "0123abc"
    assert source.tokenizer()("a").input_ids == [97]
    assert not {"model.safetensors", "pytorch_model.bin"} & fetched
    loaded = source.load()
    assert torch.equal(loaded.model.lm_head.weight, Tiny(family="qwen2", rope="yarn").load().model.lm_head.weight)


def test_m_rope_text_models_are_refused() -> None:
    config = Qwen2VLTextConfig(
        rope_parameters={"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    )
    with pytest.raises(UserError, match="M-RoPE"):
        check_config(config, "model.repo=a/b")
