"""vLLM as an engine: the same methods, in its paged cache and its scheduler. Importable where vLLM is not installed.

    python -m harness backend=vllm method=kvcmas task=gsm8k       many samples at once
    python -m harness backend=vllm method=kvcmas task=trace       open-loop load

Which rows a plan covers is the method's business as everywhere; which of them vLLM can skip is ``gaps``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from harness.errors import UserError
from harness.fit import check_abilities, check_kernels, check_method
from harness.service import Served
from methods.ability import NOTHING, Ability
from methods.base import Method

if TYPE_CHECKING:
    from harness.backends.hf_facts import ModelSource
    from harness.backends.vllm_service import VLLMService

NAME, MODULE = "KVCMASConnector", "harness.backends.vllm_connector"
Scope = Literal["hop", "agent", "shared"]
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions that vLLM's attention on a CPU has kernels for."""


def register() -> None:
    """Make the connector known by name; vLLM calls this in each of its processes (entry point
    ``vllm.general_plugins``). Again and again is harmless, and nothing heavy loads."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)


@dataclass
class VLLM:
    """Attributes: as conf/backend/vllm.yaml documents them."""

    name: str = "vllm"
    gaps: bool = False
    prefix_cache: Scope = "hop"
    concurrency: int = 8
    cache_gib: float = 1.0
    store_gib: float = 4.0
    tensor_parallel: int = 1
    kernels: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    offers: ClassVar[frozenset[Ability]] = NOTHING

    def __post_init__(self) -> None:
        if self.prefix_cache not in get_args(Scope):
            raise ValueError(f"prefix_cache must be one of {', '.join(get_args(Scope))}, got {self.prefix_cache!r}")
        for option in ("concurrency", "tensor_parallel"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} must be at least 1, got {getattr(self, option)}")
        for option in ("cache_gib", "store_gib"):
            if not getattr(self, option) > 0:
                raise ValueError(f"{option} must be positive, got {getattr(self, option)}")

    def check(self, source: ModelSource, method: Method, label: str, seed: int) -> Served:
        """See :class:`harness.service.Server`.

        Raises:
            UserError: vLLM is not installed, or will not do this method or model.
        """
        from harness.backends.hf_facts import choose_device

        check_abilities(method, label, self.name, self.offers)
        if find_spec("vllm") is None or find_spec("vllm.v1") is None:
            raise UserError(
                "backend=vllm needs vLLM, which has an environment of its own: run `make setup-vllm`, then the same "
                "command with .venv-vllm/bin/python"
            )
        facts, device = source.facts(), choose_device(source.device)
        check_kernels(self.kernels, device)
        check_method(method, label, source.name, facts, seed)
        if device.type == "cpu" and facts.head_dim not in CPU_HEADS:
            raise UserError(
                f"backend=vllm has no attention for a head dimension of {facts.head_dim} on a CPU, it has "
                f"{', '.join(map(str, CPU_HEADS))}; choose another model (model=tiny: model.head_dim=32)"
            )
        if self.tensor_parallel > 1 and facts.heads % self.tensor_parallel:
            raise UserError(
                f"backend.tensor_parallel={self.tensor_parallel} must divide the {facts.heads} heads of "
                f"model={source.name}"
            )
        if self.prefix_cache == "shared" and not _never_reuses(method, facts.layers):
            raise UserError(
                f"backend.prefix_cache=shared: rows of method={label} may be approximate and must not be taken for "
                "exact ones; use agent or hop"
            )
        return Served(facts.context, facts.vocab, source.tokenizer())

    @contextmanager
    def serve(self, source: ModelSource, method: Method, label: str, seed: int) -> Iterator[VLLMService]:
        """See :class:`harness.service.Server`. The engine runs in this process."""
        from harness.backends.vllm_engine import Engine
        from harness.backends.vllm_service import VLLMService
        from kernels.dispatch import using

        facts = source.facts()
        with using(self.kernels):
            engine = Engine(self.settings(source))
            try:
                yield VLLMService(engine, facts, stop_ids(source.folder()), method, seed, self.prefix_cache)
            finally:
                engine.close()

    def settings(self, source: ModelSource, method: Mapping[str, Any] | None = None, seed: int = 0) -> Any:
        """What the engine is started with; the method, unless given, comes later."""
        from harness.backends.hf_facts import choose_device, choose_dtype
        from harness.backends.vllm_engine import Settings

        dtype = str(choose_dtype(getattr(source, "dtype", "auto"), choose_device(source.device)))
        options = dict(self.options)
        if self.tensor_parallel > 1:
            options["tensor_parallel_size"] = self.tensor_parallel
        return Settings(
            folder=source.folder(),
            method=method or {"_target_": "methods.dense.DenseMethod"},
            seed=seed,
            gaps=self.gaps,
            dtype=dtype.removeprefix("torch."),
            context=source.facts().context,
            cache_gib=self.cache_gib,
            store_gib=self.store_gib,
            options=options,
        )


def stop_ids(folder: Path) -> frozenset[int]:
    """Ids that end a turn, by the generation configuration, the configuration and the tokenizer of a model's folder."""
    from types import SimpleNamespace

    from transformers import GenerationConfig

    from harness.backends.hf_facts import stop_ids as found
    from harness.backends.hf_folder import load_tokenizer, read_config

    option = f"model folder {folder}"
    config = read_config(folder, option)
    try:
        generation = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    described = SimpleNamespace(config=config, generation_config=generation)
    return frozenset(found(described, load_tokenizer(folder, option)))


def _never_reuses(method: Any, layers: int) -> bool:
    """Whether the method says that, as it is configured, it recomputes everything."""
    limits = method.limits(layers).dense if hasattr(method, "limits") else None
    return limits is not None and all(getattr(method, option) == value for option, value in limits.items())
