"""A scheduler that skips rows in the middle of a prompt, where the connector has them: true gaps, several a request.

vLLM's own scheduler takes rows from a connector at the beginning of a prompt only. This one ends a chunk where reused
rows begin, and goes on where they end; the rows between are loaded in the step that computes what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harness.backends.vllm_call import Encode, params
from harness.backends.vllm_connector import KVCMASConnector, Orders
from harness.backends.vllm_directory import Directory

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
    from vllm.v1.core.sched.output import SchedulerOutput


class GapScheduler(Scheduler):
    """Synchronous, on every device: a skip must be seen before the next step is scheduled."""

    @property
    def directory(self) -> Directory:
        assert isinstance(self.connector, KVCMASConnector)
        assert self.connector.directory is not None
        return self.connector.directory

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        room = self.directory.room(request.request_id, num_computed_tokens)
        if room is not None:
            num_new_tokens = min(num_new_tokens, room)
        left: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return left

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        for request in self.running:
            end = self.directory.skip(request.request_id, request.num_computed_tokens)
            if end is not None:
                request.num_computed_tokens = end
        for trajectory, ids in self.directory.take_needs():
            self._encode(trajectory, ids)
        return super().schedule(*args, **kwargs)

    def _encode(self, trajectory: str, ids: tuple[int, ...]) -> None:
        """A request of our own, whose answer nobody waits for but the plan that asked for it."""
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": params(Encode(trajectory))},
        )
        self._encodes = getattr(self, "_encodes", 0) + 1
        waiting = next(iter(self.requests.values()))  # the plan's request at least is there
        hasher = waiting._block_hasher
        self.add_request(Request(f"kvcmas-encode-{self._encodes}", list(ids), sampling, None, block_hasher=hasher))

    def _build_kv_connector_meta(
        self, connector: KVConnectorBase_V1, scheduler_output: SchedulerOutput
    ) -> KVConnectorMetadata:
        metadata = super()._build_kv_connector_meta(connector, scheduler_output)
        if isinstance(metadata, Orders) and metadata.loading:
            scheduler_output.has_sync_kv_loads = True  # else the rows would come after the forward that reads them
            if self.use_v2_model_runner:
                self._emit_again(scheduler_output, metadata.loading)
        return metadata

    def _emit_again(self, output: SchedulerOutput, loading: frozenset[str]) -> None:
        """That runner keeps the number of computed rows on the device, where a skip does not show: a request that
        skipped enters again, as if new."""
        cached = output.scheduled_cached_reqs
        for index in reversed(range(len(cached.req_ids))):
            name = cached.req_ids[index]
            if name not in loading:
                continue
            request = self.requests[name]
            blocks = self.kv_cache_manager.get_blocks(name).get_block_ids()
            new = NewRequestData.from_request(request, blocks, list(request.all_token_ids))
            new.num_computed_tokens = cached.num_computed_tokens[index]
            output.scheduled_new_reqs.append(new)
            for field in ("req_ids", "new_token_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"):
                parallel = getattr(cached, field)
                if parallel:
                    del parallel[index]
