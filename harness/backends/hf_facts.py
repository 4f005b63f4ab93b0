"""What a model source promises, and the decisions every source shares: device, data type, quiet loading.

Nothing heavy is imported before a function needs it: a configuration can be composed and its options checked
without torch or transformers.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness import provenance
from harness.errors import UserError

if TYPE_CHECKING:
    import torch

    from harness.backends.hf_vision import MediaReader

DTYPES: Mapping[str, str] = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True)
class ModelFacts:
    """What can be known of a model without its weights.

    Attributes:
        name: the name in the configuration.
        revision: what identifies the weights: a commit, or a hash of the files or of the recipe.
        family: the architecture's name in transformers (``llama``, ``qwen2``, ...).
        context: the most positions the model was made for, in tokens.
        vocab: rows of the embedding.
        layers, hidden, heads, kv_heads, head_dim: the sizes L, model width, query heads, H, D.
    """

    name: str
    revision: str
    family: str
    context: int
    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A causal language model of transformers, ready for inference, and what goes with it.

    Attributes:
        model: in evaluation mode, no gradients, weights in ``dtype`` on ``device``.
        tokenizer: with a chat template.
        facts: what :class:`ModelFacts` says.
        dtype, device: as resolved from the options.
        stop_ids: sorted token ids that end a turn; a greedy decode stops after the first of them.
        reader: how it reads pictures and clips; None for a model that reads text only.
    """

    model: Any
    tokenizer: Any
    facts: ModelFacts
    dtype: torch.dtype
    device: torch.device
    stop_ids: tuple[int, ...]
    reader: MediaReader | None = None

    def provenance(self) -> provenance.RanModel:
        """What runs, with the kernels that are chosen at the moment."""
        from kernels.dispatch import describe

        return provenance.RanModel(
            id=self.facts.name,
            revision=self.facts.revision,
            dtype=str(self.dtype).removeprefix("torch."),
            device=str(self.device),
            attention=self.model.config._attn_implementation,
            kernels=describe(self.device),
        )


class ModelSource(Protocol):
    """One choice of the group ``model``. Each call costs more than the one before it and repeats its checks.

    All raise :class:`~harness.errors.UserError`, before weights are read where that is possible.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str:
        """As configured, see :func:`choose_device`."""

    def facts(self) -> ModelFacts:
        """Options, files and architecture, checked without reading weights."""

    def tokenizer(self) -> Any:
        """The tokenizer alone, for prompts that are built and measured before the model loads."""

    def reader(self) -> MediaReader | None:
        """How the model reads pictures and clips, for the same purpose; None if it reads text only."""

    def load(self) -> LoadedModel: ...

    def folder(self) -> Path:
        """The model as a folder of safetensors, config and tokenizer, for engines that load it themselves."""


def choose_device(option: str) -> torch.device:
    """The device an option names; ``auto`` is the first CUDA device when there is one, else the CPU."""
    import torch

    if option == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(option)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"model.device={option} is not a device; use auto, cpu, cuda or cuda:<index>.") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device={option} is not supported; use auto, cpu, cuda or cuda:<index>.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(f"model.device={option} asks for a CUDA device but {found} were found; use model.device=auto.")
    return device


def choose_dtype(option: str, device: torch.device) -> torch.dtype:
    """The data type of weights and cache.

    ``auto`` is bf16 on CUDA (fp16 on devices older than bf16), and on a CPU bf16 only where the CPU has bf16
    instructions: emulated bf16 is several times slower than fp32.
    """
    import torch

    if option == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return torch.bfloat16 if cpu_has_bf16() else torch.float32
    if option not in DTYPES:
        raise UserError(f"model.dtype={option} is unknown; use auto, float32, bfloat16 or float16.")
    dtype: torch.dtype = getattr(torch, DTYPES[option])
    return dtype


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AVX-512 BF16, AMX, or Arm's BF16 extension)."""
    import torch

    found = torch.cpu.get_capabilities()
    return any(bool(found.get(name, False)) for name in BF16_INSTRUCTIONS)


def stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a turn: those of the generation config, else of the config, and the tokenizer's own."""
    ids: set[int] = set()
    for found in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        if found is None:
            continue
        ids.update(found if isinstance(found, list | tuple) else [found])
    if not ids and (end := model.config.get_text_config().eos_token_id) is not None:
        ids.update(end if isinstance(end, list | tuple) else [end])
    return tuple(sorted(int(i) for i in ids))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Progress bars, log lines and warnings of transformers are kept off the terminal inside; restored after."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
