"""The row of a trajectory that was replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from harness.answered import hop_record
from harness.records import HopRecord, Row, StateSize, Status, Timing
from harness.service import Answer, Call, Service
from harness.traffic.replay import Done, Outcome

Decode = Callable[[Sequence[int]], str]


def row(outcome: Outcome, repeat: int, service: Service, decode: Decode) -> Row:
    """A trajectory as a row, whatever became of it; ``decode`` makes text of ids."""
    hops = [_hop(d.call, d.result, service.simulated, decode) for d in outcome.done if isinstance(d.result, Answer)]
    state = service.state_bytes()
    status, message = _status(outcome)
    ended_s = max((h.timing.ended_s for h in hops if h.timing is not None), default=outcome.arrival_s)
    return Row(
        sample_id=str(outcome.trajectory.id),
        repeat=repeat,
        status=status,
        prediction=hops[-1].output if status is Status.ok else None,
        raw=hops[-1].output if hops else "",
        message=message,
        e2e_s=max(0.0, ended_s - outcome.arrival_s),
        state_bytes=StateSize.of(state.base, state.correction),
        hops=hops,
    )


def wrong_length(done: Done) -> bool:
    """Whether a call generated another number of tokens than the trace fixes, so that its times mean nothing."""
    return isinstance(done.result, Answer) and len(done.result.output_ids) != done.call.output_tokens


def _status(outcome: Outcome) -> tuple[Status, str]:
    skipped = f"; hops {', '.join(map(str, outcome.skipped))} were not run" if outcome.skipped else ""
    if outcome.failures:
        first = outcome.failures[0]
        index = next(d.call.index for d in outcome.done if d.result is first)
        return Status.oom if first.out_of_memory else Status.error, f"hop {index}: {first.message}{skipped}"
    if outcome.skipped:
        return Status.error, f"a call that it waits for failed{skipped}"
    if wrong := [d for d in outcome.done if wrong_length(d)]:
        call, result = wrong[0].call, wrong[0].result
        found = len(result.output_ids) if isinstance(result, Answer) else 0
        return Status.error, f"hop {call.index} generated {found} tokens, the trace fixes {call.output_tokens}"
    return Status.ok, ""


def _hop(call: Call, answer: Answer, simulated: bool, decode: Decode) -> HopRecord:
    timing = Timing(
        due_s=call.due_s,
        dispatched_s=answer.dispatched_s,
        started_s=answer.started_s,
        first_token_s=answer.first_token_s,
        ended_s=answer.ended_s,
        simulated=simulated,
    )
    return msgspec.structs.replace(hop_record(call, answer, decode(answer.output_ids)), timing=timing)
