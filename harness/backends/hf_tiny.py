"""A random model of a real architecture, built in a second: for tests, and for trying the harness out."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.backends.hf_facts import LoadedModel, ModelFacts, choose_device, choose_dtype, quiet, stop_ids
from harness.backends.hf_once import cache_root, made_once
from harness.errors import UserError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
FAMILIES = ("llama", "qwen2")
ROPES = ("plain", "llama3", "yarn")


@dataclass(frozen=True)
class Tiny:
    """Random weights in a stock Llama or Qwen2, a tokenizer of bytes, no download.

    Its answers mean nothing. Its caches do what a trained model's do: attention is peaked, every layer's keys
    and values depend on the whole prefix, and Qwen2's projections carry biases. Equal fields give equal
    weights, whatever the global random state, which is left alone.

    Attributes:
        rope: ``plain``, ``llama3`` (scaled frequencies) or ``yarn`` (scaled frequencies and attention scaling).
    """

    name: str = "tiny"
    family: Literal["llama", "qwen2"] = "llama"
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128
    context: int = 4096
    rope: Literal["plain", "llama3", "yarn"] = "plain"
    seed: int = 0
    dtype: str = "float32"
    device: str = "auto"

    def facts(self) -> ModelFacts:
        self._check()
        choose_dtype(self.dtype, choose_device(self.device))
        recipe = {k: v for k, v in asdict(self).items() if k not in ("name", "dtype", "device")}
        return ModelFacts(
            name=self.name,
            revision="random-" + hashlib.sha256(repr(sorted(recipe.items())).encode()).hexdigest()[:12],
            family=self.family,
            context=self.context,
            vocab=256 + len(SPECIALS),
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )

    def tokenizer(self) -> Any:
        """Ids 0 to 255 are the bytes of the UTF-8 text, then the special tokens."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        core = Tokenizer(models.BPE(vocab={sign: byte for byte, sign in enumerate(_signs())}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
        start, end, pad = SPECIALS
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            bos_token=start,
            eos_token=end,
            pad_token=pad,
            chat_template=CHATML,
            clean_up_tokenization_spaces=False,
            model_max_length=self.context,
        )

    def reader(self) -> None:
        """It reads text only."""

    def load(self) -> LoadedModel:
        facts = self.facts()
        import torch
        from transformers import LlamaForCausalLM, Qwen2ForCausalLM

        device = choose_device(self.device)
        dtype = choose_dtype(self.dtype, device)
        tokenizer = self.tokenizer()
        kind = LlamaForCausalLM if self.family == "llama" else Qwen2ForCausalLM
        with quiet(), torch.random.fork_rng(devices=[]):
            model = kind(self._config(facts.vocab, tokenizer)).eval().requires_grad_(False)
        self._draw(model)
        # Parameters one by one: casting the module would round the rotary table as well.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        model.config.dtype = dtype
        model.to(device)
        return LoadedModel(model, tokenizer, facts, dtype, device, stop_ids(model, tokenizer))

    def folder(self) -> Path:
        """Written once, in fp32, below the user's cache folder."""
        facts = self.facts()

        def write(draft: Path) -> None:
            loaded = replace(self, dtype="float32", device="cpu").load()
            with quiet():
                loaded.model.save_pretrained(draft)
                loaded.tokenizer.save_pretrained(draft)

        return made_once(
            cache_root() / f"tiny-{facts.revision}", lambda found: (found / "config.json").is_file(), write
        )

    def _config(self, vocab: int, tokenizer: Any) -> Any:
        from transformers import LlamaConfig, Qwen2Config

        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
        if self.rope == "llama3":
            rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope |= {"original_max_position_embeddings": self.context // 8}
        elif self.rope == "yarn":
            rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": self.context // 4}
        kind = LlamaConfig if self.family == "llama" else Qwen2Config
        return kind(
            vocab_size=vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context,
            rope_parameters=rope,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    def _draw(self, model: Any) -> None:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                value = 0.5 * noise if name.endswith("bias") else 1.0 + 0.1 * noise
            elif "embed_tokens" in name:
                value = noise
            else:
                # Rows of unit scale go in, so q and k come out at the gain, and attention logits at its square.
                gain = 1.6 if "q_proj" in name or "k_proj" in name else 3.0 if "lm_head" in name else 1.0
                value = noise * gain / parameter.shape[1] ** 0.5
            parameter.data = value

    def _check(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"model.family={self.family} is unknown; use one of {', '.join(FAMILIES)}.")
        if self.rope not in ROPES:
            raise UserError(f"model.rope={self.rope} is unknown; use one of {', '.join(ROPES)}.")
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "context")
        for option in sizes:
            if getattr(self, option) < 1:
                raise UserError(f"model.{option}={getattr(self, option)} must be at least 1.")
        if self.heads % self.kv_heads:
            raise UserError(f"model.kv_heads={self.kv_heads} must divide model.heads={self.heads}.")
        if self.head_dim % 2:
            raise UserError(f"model.head_dim={self.head_dim} must be even, rotary pairs its dimensions.")
        if self.rope != "plain" and self.context < 64:
            raise UserError(f"model.context={self.context} must be at least 64 with model.rope={self.rope}.")


def _signs() -> list[str]:
    """The printable sign a byte-level tokenizer writes for each byte: itself where printable, else from U+0100 on."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]
