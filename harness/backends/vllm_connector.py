"""The connector that vLLM loads, once in its scheduler and once in every worker; see :mod:`harness.backends.vllm`.

    scheduler    Directory    which rows of a request are external, what to order
    worker       Worker       the method on this rank's pages

A hop is planned before it is admitted: the match is answered with "ask again" until the workers have reported the
method's verdict, which takes one engine step (without a forward, if nothing else runs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from harness.backends.vllm_directory import Directory
from harness.backends.vllm_figures import Figures
from harness.backends.vllm_metrics import FiguresProm, FiguresStats
from harness.backends.vllm_model import build_worker, check
from harness.backends.vllm_orders import Load, Order, Report
from harness.backends.vllm_worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(__name__)

ANSWERED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class Orders(KVConnectorMetadata):
    """What goes down in a step."""

    orders: list[Order]

    @property
    def loading(self) -> frozenset[str]:
        """Requests that get rows in this step."""
        return frozenset(order.request for order in self.orders if isinstance(order, Load))


@dataclass
class Reported(KVConnectorWorkerMetadata):
    """What comes up."""

    report: Report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Reported:
        assert isinstance(other, Reported)
        return Reported(self.report.merge(other.report))


class KVCMASConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check(vllm_config, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self.directory: Directory | None = None
        if role is KVConnectorRole.SCHEDULER:
            self.directory = Directory(bool(extra.get("gaps", False)), bool(extra.get("encodes", False)))
        self._told = Figures()
        self.worker: Worker | None = None
        self.rank = int(vllm_config.parallel_config.rank)
        self._report = Report()

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is not kept is computed again

    # Scheduler side

    def on_new_request(self, request: Request) -> None:
        assert self.directory is not None
        ids = request.prompt_token_ids or ()
        self.directory.arrive(request.request_id, request.kv_transfer_params, ids, request.cache_salt is not None)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self.directory is not None
        return self.directory.match(request.request_id, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        assert self.directory is not None
        self.directory.granted(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self.directory is not None
        return Orders(self.directory.orders(_scheduled(scheduler_output), self._blocks))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        assert self.directory is not None
        reported = connector_output.kv_connector_worker_meta
        if isinstance(reported, Reported):
            self.directory.report(reported.report)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self.directory is not None
        if request.request_id not in self.directory.entries:
            return False, None
        if request.status not in ANSWERED:
            self.directory.abort(request.request_id)
            return False, None
        ids, held = request.all_token_ids, request.num_computed_tokens
        return self.directory.finish(request.request_id, ids, held, block_ids[0])

    def has_pending_push_work(self) -> bool:
        return self.directory is not None and self.directory.pending

    def get_kv_connector_stats(self) -> FiguresStats | None:
        if self.directory is None:
            return None
        before, self._told = self._told, replace(self.directory.figures)
        return FiguresStats.between(before, self._told)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> FiguresStats:
        return FiguresStats(data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> FiguresProm:
        return FiguresProm(*args)

    def reset_cache(self) -> bool:
        return True  # what is kept belongs to open trajectories, and pools are no cache

    def _blocks(self, request: str) -> list[int]:
        assert self._kv_cache_manager is not None
        found: list[int] = self._kv_cache_manager.get_blocks(request).get_block_ids()[0]
        return found

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker = build_worker(self._vllm_config, kv_caches, lambda text: logger.error("%s", text))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert self.worker is not None
        assert isinstance(metadata, Orders)
        self._report = self.worker.carry_out(metadata.orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All loads are done before the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows are read when their request has ended."""

    def wait_for_save(self) -> None:
        """Rows are read when their request has ended."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self.worker is None:
            return None, None
        done, self.worker.done = self.worker.done, set()
        return done, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        if self.worker is None:
            return set()
        bad, self.worker.bad_blocks = self.worker.bad_blocks, set()
        return bad

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report, self._report = self._report, Report()
        return Reported(report) if report else None


def ask(vllm_worker: Any, name: str, *args: Any) -> Any:
    """Call a method of this rank's :class:`Worker`, or of its method; for ``collective_rpc``."""
    connector = get_kv_transfer_group()
    assert isinstance(connector, KVCMASConnector)
    worker = connector.worker
    assert worker is not None
    if name == "restore_rank":
        return worker.method.restore(args[0][connector.rank])
    found = getattr(worker if hasattr(worker, name) else worker.method, name)
    return found(*args) if callable(found) else found


def _scheduled(output: SchedulerOutput) -> Iterable[tuple[str, int, int]]:
    """By request of a step, rows held before it and rows it runs."""
    counts = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens, counts[new.req_id]
    cached = output.scheduled_cached_reqs
    for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield name, computed, counts[name]
