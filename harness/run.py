"""One run: check everything, hold the folder, load the model, execute the samples, sum up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from harness.autoprofile import AUTO, profiled
from harness.config import Choices
from harness.duplicates import duplicated
from harness.errors import UserError
from harness.execution import Execution
from harness.fit import check_abilities
from harness.identity import identify
from harness.profiled import fill
from harness.recorded import recorded
from harness.served import BatchServer, Served, refuse
from harness.shard import Shard
from harness.signature import locate
from harness.store import RunFolder
from harness.summarise import summarise
from harness.summary import Summary
from harness.table import print_run
from harness.tasks.single_stream import SingleStream
from harness.tasks.trace import TraceTask
from harness.traffic.run import replay
from harness.validate import Parts, build
from harness.workload import Workload, check_context, load_benchmark, load_stream, prompts_sha256, warmed


def run(cfg: DictConfig, folder: Path) -> int:
    """Execute ``cfg`` in ``folder``, or resume it; returns the exit code.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    names = Choices.current()
    if locate("task", cfg.task._target_) is TraceTask:
        if cfg.shard is not None:
            raise UserError(f"shard={cfg.shard}: the load of a trace is one stream and cannot be split; leave it out")
        return replay(cfg, names, folder)
    if cfg.get("trace") is not None:
        raise UserError(f"trace: nothing but task=trace replays a trace; leave it out, or replace task={names.task}")
    if getattr(locate("backend", cfg.backend._target_), "traces_only", False):
        raise UserError(f"backend={names.backend} replays traces and nothing else; choose task=trace, or backend=hf")
    return complete(cfg, names, folder, load_workload)


def complete(cfg: DictConfig, names: Choices, folder: Path, load: Callable[[Parts, DictConfig], Workload]) -> int:
    """As :func:`run`, for a configuration that was composed elsewhere and a workload that ``load`` makes."""
    identity = identify(cfg, {"method": names.method, "task": names.task}).id
    draft_parts = build(cfg)
    check_abilities(draft_parts.method, names.method, names.backend, draft_parts.backend.offers)
    if cfg.method.get("profile") == AUTO:
        cfg = profiled(cfg, names, build(cfg).model.facts().layers)
    cfg, profile = fill(cfg)
    parts = build(cfg)
    workload = load(parts, cfg)
    facts = parts.model.facts()
    reader = workload.see(parts.model, names.model, str(parts.task.name))
    draft = workload.write(parts.model.tokenizer(), frozenset(), reader)
    cases = warmed(draft.cases(), int(cfg.warmup))
    check_context(draft, cases, facts.context, str(parts.task.name))
    if profile is not None:
        profile.check(str(cfg.method.profile), facts, [case.sample_id for case in cases])
    if isinstance(parts.backend, BatchServer):
        refuse(cfg, names, workload)
    parts.backend.check(parts.model, parts.method, names.method, int(cfg.seed))
    shard = None if cfg.shard is None else Shard.parse(cfg.shard)
    if shard is not None:
        shard.of(cases)

    def execute(store: RunFolder) -> None:
        requests, prompts = duplicated(cases, cfg.duplicates, cfg.seed), prompts_sha256(draft, cases)
        requests = requests if shard is None else shard.of(requests)
        store.check_prompts(prompts)
        engine = Served if isinstance(parts.backend, BatchServer) else Execution
        execution: Served | Execution = engine(cfg, parts, workload, names, store, requests)
        execution.execute(prompts)
        store.finish(summarise(store.rows, execution.heading))

    rows, _ = recorded(cfg, names, folder, identity, execute, print_run, _draw)
    return 0 if any(row.completed for row in rows) else 1  # 1 if not a single sample ran to its end


def _draw(summary: Summary, folder: Path) -> list[Path]:
    from harness.report.single import draw_run  # loads matplotlib

    return draw_run(summary, folder)


def load_workload(parts: Parts, cfg: DictConfig) -> Workload:
    """The task's data, checked."""
    if isinstance(parts.task, SingleStream):
        return load_stream(parts.task, parts.workflow, cfg.limit, cfg.seed)
    return load_benchmark(parts.task, parts.workflow, cfg.limit)
