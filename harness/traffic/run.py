"""One run of ``task=trace``: check everything, hold the folder, open the service, replay, sum up.

A repeat cannot be taken up in its middle, since what is due depends on what was served before, and since caches and
pools must be cold where it begins: rows of a repeat that was killed are dropped, which is told, and it starts again. An
engine runs at real time: a repeat lasts at least as long as its arrivals. Finished repeats stand in ``repeats.json``.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig

from harness.autoprofile import AUTO
from harness.config import Choices
from harness.errors import UserError
from harness.identity import identify
from harness.profiled import fill
from harness.provenance import DataFacts, collect
from harness.recorded import recorded
from harness.records import Row
from harness.service import Served, Server, Service
from harness.serving import Repeat
from harness.serving_table import print_run
from harness.store import RunFolder
from harness.summarise import Heading, summarise
from harness.summary import Summary
from harness.tasks.trace import TraceTask
from harness.traffic.duration import check_duration, lasts_s, told
from harness.traffic.measure import serving
from harness.traffic.passes import Passes
from harness.traffic.plan import Plan, ids_of, plan
from harness.traffic.rows import Decode
from harness.traffic.text import RANDOM, Text, text
from harness.validate import Parts, build
from harness.verified import verified
from harness.workflow import Workflow
from traces.schema import Trace, TraceError


def replay(cfg: DictConfig, names: Choices, folder: Path) -> int:
    """Execute ``cfg`` in ``folder``, or resume it; returns the exit code: 1 if no trajectory ran to its end, or if an
    output had another length than the trace fixes.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    identity = identify(cfg, {"method": names.method, "task": names.task}).id
    _refuse(cfg, names)
    cfg, profile = fill(cfg)
    parts = build(cfg)
    task, server = parts.task, parts.backend
    assert isinstance(task, TraceTask)
    if parts.workflow != Workflow("full"):
        raise UserError(
            f"workflow={parts.workflow.name}: task=trace has the workflow of its trace; leave workflow alone and set "
            "trace.graph, trace.agents and trace.output_tokens"
        )
    if not isinstance(server, Server):
        raise UserError(f"backend={names.backend} does not serve, so that task=trace cannot load it; use backend=hf")
    seed = int(cfg.seed)
    planned = plan(made(parts.trace), task.warmup, cfg.limit)
    served = server.check(parts.model, parts.method, names.method, seed)
    check_context(planned, served.context)
    if not served.simulated:
        check_duration(planned, cfg.trace)
    if profile is not None:
        profile.check(str(cfg.method.profile), parts.model.facts(), [])
    words = text(task.source if served.tokenizer else RANDOM, served.tokenizer, served.vocab, planned.trace.seed)
    prompts = _prompts_sha256(planned, words)

    def execute(store: RunFolder) -> None:
        store.check_prompts(prompts)
        with server.serve(parts.model, parts.method, names.method, seed) as service:
            passes = Passes(store, planned, words, service, _decode(served))
            session = collect(service.model, _data(planned, parts, prompts), prompts)
            store.begin(session)
            store.warn()
            if not served.simulated:
                left = int(cfg.repeats) - len(passes.finished)
                print(f"calls arrive over {told(lasts_s(planned))} of real time, {left} x", file=sys.stderr)
            passes.run(int(cfg.repeats), f"{names.method} on {planned.trace.made_by.get('generator', 'trace')}")
            heading = _heading(cfg, names, service, session.command)
            store.finish(_summary(store.rows, passes.finished, heading, planned, task, service))

    _, summary = recorded(cfg, names, folder, identity, execute, print_run)
    return _worth(summary)


def check_context(planned: Plan, context: int | None) -> None:
    """Refuse a trace whose longest call outgrows the model. Raises UserError naming it and the remedy."""
    calls = [c.request for t in planned.trajectories for c in t.calls]
    longest = max(calls, key=lambda r: r.prompt_tokens + r.output_tokens)
    if context is not None and longest.prompt_tokens + longest.output_tokens > context:
        raise UserError(
            f"task=trace: request {longest.id} has a prompt of {longest.prompt_tokens} tokens and generates "
            f"{longest.output_tokens} more, but the model's context is {context}; shorten the trace or choose a model "
            "with a longer context"
        )


def _refuse(cfg: DictConfig, names: Choices) -> None:
    """Options that mean nothing under open-loop load. Raises UserError naming the first."""
    for option in ("shadow", "teacher_forcing"):
        if cfg[option]:
            raise UserError(
                f"{option}=true: a dense run beside every call would hold up the others; measure fidelity with another "
                "task, such as task=single_stream"
            )
    if cfg.warmup:
        raise UserError(f"warmup={cfg.warmup}: task=trace fills pools from its own trace; set task.warmup instead")
    if cfg.duplicates:
        raise UserError(f"duplicates={cfg.duplicates}: task=trace runs its trace as it is; leave duplicates at 0")
    if cfg.trace is None:
        raise UserError("task=trace has no trace; choose one with trace=agents, paper, file or mooncake")
    if cfg.method.get("profile") == AUTO:
        raise UserError(
            f"method.profile=auto: a trace has no items to profile method={names.method} on; make a profile with "
            "python -m harness.profile and name its file"
        )


def made(trace: Any) -> Trace:
    """The trace of a choice of the group ``trace``. Raises UserError if it cannot be made, naming the option."""
    try:
        found = trace.trace()
    except TraceError as error:
        path = getattr(trace, "path", None)
        named = path is not None and str(error).startswith(str(Path(path).expanduser()))
        raise UserError(f"trace.path={error}" if named else f"trace: {error}") from error
    assert isinstance(found, Trace)
    return found


def _decode(served: Served) -> Decode:
    tokenizer: Any = served.tokenizer
    if tokenizer is None:
        return lambda ids: ""
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


def _prompts_sha256(planned: Plan, words: Text) -> str:
    """Hash of all requests and of the text behind their names; outputs count by name."""
    found, seen = hashlib.sha256(), set[tuple[str, int, int]]()
    for trajectory in planned.trajectories:
        for request in (c.request for c in trajectory.calls):
            found.update(repr(request).encode())
            for piece in request.pieces:
                key = (piece.name, piece.offset, piece.tokens)
                if key not in seen and not piece.name.startswith("output:"):
                    found.update(repr(ids_of(piece, words, {})).encode())
                seen.add(key)
    return found.hexdigest()


def _data(planned: Plan, parts: Parts, sha256: str) -> DataFacts:
    rows = sum(len(t.calls) for t in planned.trajectories)
    return DataFacts(source=described(planned.trace), rows=rows, sha256=sha256, extractor=None)


def described(trace: Trace) -> str:
    """A short name of where the trace comes from."""
    origin = trace.made_by
    return str(origin.get("file") or origin.get("generator") or "trace")


def _heading(cfg: DictConfig, names: Choices, service: Service, command: str) -> Heading:
    target, model = str(cfg.method._target_), service.model
    known = None if service.simulated else verified(names.method, names.model, model.revision or "", target)
    return Heading(
        task=names.task,
        method=names.method,
        model=model.id if service.simulated else names.model,
        backend=names.backend,
        layers=service.layers,
        command=command,
        verified=known,
        built_from=str(cfg.method.get("fidelity") or ""),
        glue=str(cfg.method.get("glue") or "recompute"),
    )


def _summary(
    rows: tuple[Row, ...], passes: list[Repeat], heading: Heading, planned: Plan, task: TraceTask, service: Service
) -> Summary:
    found = serving(
        rows,
        passes,
        layers=service.layers,
        slo_ttft_s=task.slo_ttft_s,
        trace=described(planned.trace),
        engine=service.label,
        warmup_trajectories=planned.warmup,
        simulated=service.simulated,
    )
    return msgspec.structs.replace(summarise(rows, heading), serving=found)


def _worth(summary: Summary | None) -> int:
    found = summary.serving if summary is not None else None
    return 0 if found is not None and found.failed < found.trajectories and not found.wrong_lengths else 1
