"""A vLLM engine in this process, stepped by hand, so that nothing depends on when a thread wakes up."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Read by vLLM when it is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # bound threads spin while another process has the core

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from harness.backends.vllm_call import KEY, Encode, Request, params
from harness.backends.vllm_connector import KVCMASConnector, ask
from harness.backends.vllm_directory import Directory
from harness.backends.vllm_orders import Learned

CONNECTOR = {
    "kv_connector": "KVCMASConnector",
    "kv_connector_module_path": "harness.backends.vllm_connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@dataclass(frozen=True)
class Settings:
    """What the engine is started with.

    Attributes:
        folder: the model's. method: the node of its configuration; seed: the run's.
        gaps: rows in the middle of a prompt can be skipped, by a scheduler of ours.
        cache_gib: of paged cache. store_gib: of rows that are kept for later hops.
        options: further arguments of vLLM's engine.
    """

    folder: Path
    method: Mapping[str, Any]
    seed: int = 0
    gaps: bool = False
    dtype: str = "auto"
    context: int | None = None
    cache_gib: float = 1.0
    store_gib: float = 4.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, encodes: bool) -> dict[str, Any]:
        """Keyword arguments of ``EngineArgs``; ``encodes`` says whether somebody sends the encodes that plans need."""
        extra = {"method": dict(self.method), "seed": self.seed, "gaps": self.gaps, "encodes": encodes}
        found: dict[str, Any] = {
            "model": str(self.folder),
            "dtype": self.dtype,
            "max_model_len": self.context,
            "enforce_eager": True,
            "use_tqdm_on_load": False,
            "enable_prefix_caching": True,
            "kv_cache_memory_bytes": int(self.cache_gib * (1 << 30)),
            "kv_transfer_config": {**CONNECTOR, "kv_connector_extra_config": {**extra, "store_gib": self.store_gib}},
        }
        if self.gaps:
            found["scheduler_cls"] = "harness.backends.vllm_scheduler.GapScheduler"
        return {**found, **self.options}


@dataclass(eq=False)
class Flight:
    """A request on its way.

    Attributes:
        sent_s, first_token_s, ended_s: readings of the engine's clock; facts: what the connector says of it.
        learned: what the method made of it, once the workers have reported.
    """

    request: str
    prompt_tokens: int
    sent_s: float
    first_token_s: float | None = None
    ended_s: float | None = None
    output_ids: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    learned: Learned | None = None
    learned_s: float | None = None
    logprobs: Any = None
    learns: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has its answer, and the method has learned from it."""
        return self.ended_s is not None and (self.learned is not None or not self.learns)


class Engine:
    """See the module; close it when done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.vllm = LLMEngine.from_engine_args(EngineArgs(**settings.arguments(encodes=True)))
        self._core: Any = self.vllm.engine_core.engine_core
        connector = self._core.scheduler.get_kv_connector()
        assert isinstance(connector, KVCMASConnector)
        assert connector.directory is not None
        self.directory: Directory = connector.directory
        self.flights: dict[str, Flight] = {}
        self._learning: dict[str, Flight] = {}
        self._sent = 0

    def now(self) -> float:
        return time.perf_counter()

    def send(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        request: Request | None = None,
        salt: str | None = None,
        logprobs: int | None = None,
    ) -> Flight:
        """Queue a greedy request. ``request`` makes it a hop (or an encode) of the method's; others are plain."""
        self._sent += 1
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_new_tokens,
            ignore_eos=True,
            stop_token_ids=sorted(stop_ids),
            detokenize=False,
            logprobs=logprobs,
            output_kind=RequestOutputKind.CUMULATIVE,
            extra_args={"kv_transfer_params": params(request)} if request is not None else None,
        )
        prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
        if salt is not None:
            prompt["cache_salt"] = salt
        sent = self.now()
        name = str(self._sent)
        internal = self.vllm.add_request(name, prompt, sampling)
        flight = self.flights[name] = Flight(internal, len(ids), sent)
        return flight

    def abort(self, flight: Flight) -> None:
        """Give a request up."""
        self.vllm.abort_request([flight.request], internal=True)
        self.flights = {name: f for name, f in self.flights.items() if f is not flight}

    @property
    def busy(self) -> bool:
        return bool(self._core.scheduler.has_requests())

    @property
    def usage(self) -> float:
        """Share of the cache's blocks that is in use."""
        return float(self._core.scheduler.get_kv_cache_usage())

    def step(self) -> None:
        """One step of the engine: flights move on."""
        outputs = self.vllm.step()
        now = self.now()
        for output in outputs:
            flight = self.flights.get(output.request_id)
            if flight is None:
                continue
            choice = output.outputs[0]
            flight.output_ids = tuple(choice.token_ids)
            if flight.first_token_s is None and flight.output_ids:
                flight.first_token_s, flight.logprobs = now, choice.logprobs
            if output.finished:
                flight.ended_s = now
                facts = (output.kv_transfer_params or {}).get(KEY)
                flight.facts, flight.learns = facts or {}, flight.request in self.directory.entries
                del self.flights[output.request_id]
                if flight.learns:
                    self._learning[flight.request] = flight
        for name in list(self.directory.learned):
            learned = self.directory.learned.pop(name)
            if name in self._learning:
                flight = self._learning.pop(name)
                flight.learned, flight.learned_s = learned, self.now()
        if not self.settings.gaps:  # our own scheduler sends them itself
            for trajectory, ids in self.directory.take_needs():
                self.send(ids, 1, request=Encode(trajectory), salt=f"encode:{self._sent}")

    def run(self, *flights: Flight) -> None:
        """Step until all ``flights`` have ended."""
        while not all(flight.ended for flight in flights):
            if not self.busy:
                raise RuntimeError("the engine is idle while requests wait for it")
            self.step()

    def drain(self) -> None:
        """Step until nothing is left to do."""
        while self.busy:
            self.step()

    def ask(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every rank's worker; see :func:`harness.backends.vllm_connector.ask`."""
        found: list[Any] = self._core.collective_rpc(ask, args=(name, *args))
        return found

    def close(self) -> None:
        self.vllm.engine_core.shutdown()
