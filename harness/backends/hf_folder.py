"""A model folder as ``save_pretrained`` writes it: what can be checked without reading weights, and the load."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.backends.hf_facts import LoadedModel, ModelFacts, choose_device, choose_dtype, quiet, stop_ids
from harness.backends.hf_tiny import CHATML
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader
    from methods.base import Rope

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
SAMPLE = 1 << 20
VISION = "llava_onevision"
"""The one architecture with pictures and clips that is supported: a stock decoder with one position per token."""


def weight_files(folder: Path, option: str) -> list[Path]:
    """The weight files of a folder, all there and none cut short.

    Args:
        folder: the model folder.
        option: the option to blame, as ``name=value``.

    Raises:
        UserError: the folder, its config, its tokenizer or one of its weight files is missing or truncated.
    """
    if not folder.is_dir():
        raise UserError(f"{option} is not a folder; give the folder that holds config.json and the weights.")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{option} holds no config.json; give a folder written by save_pretrained or by a hub download."
        )
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{option} holds no tokenizer ({', '.join(TOKENIZERS)}); copy the model's tokenizer files there."
        )
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise UserError(f"{option} holds no weights ({' or '.join(WEIGHTS)}); copy or download them there.")
    files = _shards(found, option) if found.suffix == ".json" else [found]
    for file in files:
        if file.suffix == ".safetensors" and not _complete(file):
            raise UserError(f"{option} has a damaged or partly downloaded {file.name}; copy or download it again.")
    return files


def read_config(folder: Path, option: str) -> Any:
    """The folder's configuration in transformers' terms, no code of the folder is run."""
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{option} has a config.json that transformers does not accept: {one_line(error)}") from error


def folder_facts(name: str, folder: Path, revision: str, option: str) -> ModelFacts:
    """Facts of a model folder. Its rotary and attention layers are tried out on a miniature of the architecture."""
    config = read_config(folder, option)
    check_config(config, option)
    from harness.backends.hf_rope import head_dim

    text = config.get_text_config()
    return ModelFacts(
        name=name,
        revision=revision,
        family=str(config.model_type),
        context=int(text.max_position_embeddings),
        vocab=int(text.vocab_size),
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        heads=int(text.num_attention_heads),
        kv_heads=int(text.num_key_value_heads),
        head_dim=head_dim(text),
    )


def check_config(config: Any, option: str) -> None:
    """Refuse an architecture whose cached keys cannot be moved, before any weights are read.

    Raises:
        UserError: encoder-decoder, no rotary, a rotary that depends on the length or on three coordinates or
            differs between layers, sliding-window or linear layers, or pairs other than half-split.
    """
    from harness.backends.hf_rope import FIXED_TYPES, refusal

    what = f"{option} ({config.model_type})"
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{what} is an encoder-decoder; choose a decoder-only model.")
    rope = getattr(text, "rope_parameters", None)
    if not rope:
        raise UserError(f"{what} has no rotary positions, so cached keys cannot be moved; choose a Llama-like model.")
    if "mrope_section" in rope or rope.get("rope_type") == "mrope":
        raise UserError(
            f"{what} rotates by time, height and width (M-RoPE); choose a model with one position per token, "
            "for pictures and clips LLaVA-OneVision (model=llava_ov_7b)."
        )
    if any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"{what} uses another rotary in some layers; choose a model with one rotary for all layers.")
    if rope.get("rope_type", "default") not in FIXED_TYPES:
        raise UserError(refusal(what, rope["rope_type"]))
    kinds = getattr(text, "layer_types", None)
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    if kinds and set(kinds) != {"full_attention"}:
        others = ", ".join(sorted(set(kinds) - {"full_attention"}))
        raise UserError(
            f"{what} has {others} layers, which forget rows; set use_sliding_window to false in its config."
        )
    if windowed and not kinds:
        raise UserError(f"{what} has a sliding window of {text.sliding_window} tokens; set it to null in its config.")
    miniature_rope(config, what)


def folder_reader(folder: Path, option: str) -> MediaReader | None:
    """How the folder's model reads pictures and clips; None for a model that reads text only."""
    from harness.backends.hf_vision import MediaReader

    config = read_config(folder, option)
    return MediaReader.of_folder(folder, config, option) if config.model_type == VISION else None


def load_folder(folder: Path, facts: ModelFacts, dtype: str, device: str, option: str) -> LoadedModel:
    """Read the weights of a checked folder."""
    from transformers import AutoModelForCausalLM, LlavaOnevisionForConditionalGeneration

    reader = folder_reader(folder, option)
    kind_of_model = AutoModelForCausalLM if reader is None else LlavaOnevisionForConditionalGeneration
    where = choose_device(device)
    kind = choose_dtype(dtype, where)
    tokenizer = load_tokenizer(folder, option)
    try:
        with quiet():
            model = kind_of_model.from_pretrained(str(folder), dtype=kind, local_files_only=True)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"{option} has weights that transformers cannot load: {one_line(error)}") from error
    model = model.eval().requires_grad_(False).to(where)
    return LoadedModel(model, tokenizer, facts, kind, where, stop_ids(model, tokenizer), reader)


def load_tokenizer(folder: Path, option: str) -> Any:
    """The folder's tokenizer, which must have a chat template."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{option} has a tokenizer that transformers cannot load: {one_line(error)}") from error
    if not _renders(tokenizer) and read_config(folder, option).model_type == VISION:
        tokenizer.chat_template = CHATML  # what it was trained on; its processor's template takes other messages
    if not tokenizer.chat_template:
        raise UserError(f"{option} has no chat template; choose an instruction-tuned model.")
    return tokenizer


def _renders(tokenizer: Any) -> bool:
    """Whether its chat template, if it has one, renders messages of plain text."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return False
    try:
        return "words" in tokenizer.apply_chat_template([{"role": "user", "content": "words"}], tokenize=False)
    except (TemplateError, TypeError):
        return False


def fingerprint(folder: Path, files: list[Path]) -> str:
    """Identifies a folder's weights without reading them all: config, and size and both ends of every file."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(files):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(SAMPLE))
            stream.seek(max(0, size - SAMPLE))
            digest.update(stream.read(SAMPLE))
    return digest.hexdigest()[:12]


def one_line(error: BaseException) -> str:
    """The first line of an error, short enough for a terminal."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def _shards(index: Path, option: str) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{option} has a damaged {index.name}; copy or download it again.") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UserError(f"{option} lacks {len(missing)} of {len(names)} weight files ({listed}); download them again.")
    return [index.parent / name for name in names]


def _complete(file: Path) -> bool:
    """Whether a safetensors file has a header and as many bytes as the header says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            return False
        try:
            header = json.loads(stream.read(length))
            end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return bool(size == 8 + length + end)


def miniature_rope(config: Any, what: str) -> Rope:
    """The rotary facts of an architecture: the same layers are built with one head, few features and random weights,
    and the keys they cache are looked at.

    Raises:
        UserError: it is not built like a Llama or Qwen2 decoder, or its keys are not rotated by one table.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from harness.backends.hf_rope import head_dim, read_rope

    # A vision tower caches no keys, so of a model with one only the language model is tried.
    small = copy.deepcopy(config.get_text_config() if config.model_type == VISION else config)
    text = small.get_text_config()
    text.head_dim = text.hidden_size = head_dim(text)
    text.num_attention_heads = text.num_key_value_heads = 1
    text.intermediate_size = text.vocab_size = 16
    text.bos_token_id = text.eos_token_id = text.pad_token_id = None
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(small, dtype=torch.float32).eval()
            return read_rope(model, what)
    except UserError:
        raise
    except Exception as error:  # whatever an unknown architecture raises, the answer to the user is the same
        raise UserError(
            f"{what} is not built like a Llama or Qwen2 decoder ({type(error).__name__}); choose such a model."
        ) from error
