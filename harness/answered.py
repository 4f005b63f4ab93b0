"""The record of a hop that a service ran."""

from __future__ import annotations

from harness.records import HopRecord, Route
from harness.service import Answer, Call


def hop_record(call: Call, answer: Answer, output: str) -> HopRecord:
    """What ``answer`` says of ``call``; ``output`` is its text."""
    return HopRecord(
        agent=call.agent,
        index=call.index,
        route=answer.route,
        warmup=call.warmup,
        source_hop=not call.upstream and answer.route is Route.dense,
        prompt_tokens=len(call.prompt),
        shared_tokens=sum(len(placed) for placed in call.prompt.shared()),
        fresh_token_layers=answer.fresh_token_layers,
        output_tokens=len(answer.output_ids),
        output_ids=list(answer.output_ids),
        output=output,
        ttft_s=answer.first_token_s - call.due_s,
        e2e_s=max(answer.learned_s, answer.ended_s) - call.due_s,
        phases=answer.phases,
        notes=dict(answer.notes),
    )
