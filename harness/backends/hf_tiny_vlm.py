"""LLaVA-OneVision in small: a random vision tower before SmolLM2's trained weights, or before random ones."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.backends.hf_facts import LoadedModel, ModelFacts, ModelSource, quiet
from harness.backends.hf_smollm2 import SmolLM2
from harness.backends.hf_tiny import Tiny
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader

LANGUAGES = ("smollm2", "random")
TILE, PATCH = 42, 14  # 3 x 3 patches a tile: a picture takes 13 to 51 rows, a clip 4 rows a frame and one more


@dataclass(frozen=True)
class TinyVLM:
    """The stock classes of LLaVA-OneVision (anyres tiles, pooled frames) with a vision tower of random weights.

    It does not see: its features tell pictures apart and carry no meaning. Its caches, costs and code paths are those
    of the full model. Equal fields give equal weights, whatever the global random state, which is left alone.

    Attributes:
        language: ``smollm2`` (trained, from a package) or ``random`` (a second, for tests).
        width, depth: features and layers of the vision tower.
        cache_dir: as for model=smollm2.
    """

    name: str = "tiny_vlm"
    language: Literal["smollm2", "random"] = "smollm2"
    width: int = 64
    depth: int = 2
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        """Raises UserError for a value outside its range."""
        if self.language not in LANGUAGES:
            raise UserError(f"model.language={self.language} is unknown; use one of {', '.join(LANGUAGES)}.")
        if self.depth < 1 or self.width < 16 or self.width % 16:
            raise UserError(
                f"model.width={self.width} model.depth={self.depth}: width must be a positive multiple of 16, depth "
                "at least 1."
            )

    @property
    def _inner(self) -> ModelSource:
        """The language model's own source."""
        if self.language == "smollm2":
            return SmolLM2(self.name, self.dtype, self.device, self.cache_dir)
        return Tiny(self.name, context=8192, seed=self.seed, dtype=self.dtype, device=self.device)

    def facts(self) -> ModelFacts:
        inner = self._inner.facts()
        recipe = {k: v for k, v in asdict(self).items() if k in ("width", "depth", "seed")}
        vision = hashlib.sha256(repr((TILE, PATCH, sorted(recipe.items()))).encode()).hexdigest()[:12]
        return replace(inner, revision=f"{inner.revision}+vision-{vision}", family="llava_onevision")

    def tokenizer(self) -> Any:
        return self._inner.tokenizer()

    def reader(self) -> MediaReader:
        from transformers import LlamaConfig, LlavaOnevisionImageProcessorPil

        from harness.backends.hf_vision import MediaReader

        config = self._config(LlamaConfig())
        size = {"height": TILE, "width": TILE}
        images = LlavaOnevisionImageProcessorPil(size=size, image_grid_pinpoints=config.image_grid_pinpoints)
        return MediaReader(config, images)

    def folder(self) -> Path:
        raise UserError("model=tiny_vlm exists in the transformers engine only; use backend=hf")

    def load(self) -> LoadedModel:
        facts, loaded = self.facts(), self._inner.load()
        import torch
        from transformers import LlavaOnevisionForConditionalGeneration

        inner = loaded.model
        with quiet(), torch.random.fork_rng(devices=[]):
            # The language model is replaced by the loaded one, so the one that is built here is as small as can be.
            model = LlavaOnevisionForConditionalGeneration(self._config(_shrunk(inner.config)))
        model.model.language_model, model.lm_head = inner.model, inner.lm_head
        model.config.text_config = inner.config
        self._draw(model, float(inner.get_input_embeddings().weight.float().std()), loaded.dtype)
        model.config.dtype = loaded.dtype
        model.generation_config = inner.generation_config
        model.eval().requires_grad_(False).to(loaded.device)
        return replace(loaded, model=model, facts=facts, reader=self.reader())

    def _config(self, text: Any) -> Any:
        from transformers import LlavaOnevisionConfig, SiglipVisionConfig

        sides = (TILE, 2 * TILE)
        vision = SiglipVisionConfig(
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.depth,
            num_attention_heads=self.width // 16,
            image_size=TILE,
            patch_size=PATCH,
            vision_use_head=False,
        )
        # The stock model marks media rows by two ids of its vocabulary: two that SmolLM2 reserves, and no byte.
        return LlavaOnevisionConfig(
            vision_config=vision,
            text_config=text,
            image_grid_pinpoints=[[height, width] for height in sides for width in sides],
            image_token_index=5,
            video_token_index=6,
        )

    def _draw(self, model: Any, scale: float, dtype: Any) -> None:
        """Random weights for tower, projector and line break; projected rows are about as large as embedded words."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        inner = model.model
        parts = {"tower": inner.vision_tower, "projector": inner.multi_modal_projector}
        inner.image_newline.data = scale * torch.randn(inner.image_newline.shape, generator=generator)
        for part, module in parts.items():
            for name, parameter in module.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.dim() == 1:
                    value = 0.1 * noise if name.endswith("bias") else 1.0 + 0.1 * noise
                elif "position" in name:
                    value = 0.5 * noise
                else:
                    value = noise / parameter[0].numel() ** 0.5
                last = part == "projector" and name.startswith("linear_2")
                parameter.data = (value * scale if last else value).to(dtype)
        inner.image_newline.data = inner.image_newline.data.to(dtype)


def _shrunk(config: Any) -> Any:
    """A text configuration of the same width and hardly any weights."""
    import copy

    small = copy.deepcopy(config)
    small.num_hidden_layers, small.intermediate_size, small.vocab_size = 1, 16, 16
    small.bos_token_id = small.eos_token_id = small.pad_token_id = None
    return small
