"""Runs calibration requests dense and lets a method's profiler look at every hop that has sources."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from harness.backends.hf import HF
from harness.backends.hf_rope import shape_of
from harness.backends.hf_run import Decoding
from harness.config import Choices
from harness.errors import UserError
from harness.fidelity import kl_divergence
from harness.hint import render
from harness.output import writable
from harness.profiled import Profile, ProfiledModel
from harness.provenance import DataFacts
from harness.tasks.single_stream import SingleStream
from harness.trajectory import Runner
from harness.validate import Parts, build
from harness.workload import Workload, chat, check_context, load_stream
from methods.base import Dense, Engine, Executed, Hop, Plan, Shape, Snapshot, StateBytes
from methods.profile import Findings, Grain, Profiler, Trial

if TYPE_CHECKING:
    from harness.profile import Options

REQUESTS = 50  # as many as DroidSpeak's profile takes


@dataclass
class Observer:
    """A method that runs dense and shows what happened to a profiler; it keeps nothing."""

    profiler: Profiler
    backend: HF
    hops: int = 0
    kept: Mapping[str, float] = field(default_factory=dict)

    def bind(self, shape: Shape, seed: int) -> None:
        """Nothing to do: the profiler has met the model."""

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        return Dense()

    def observe(self, hop: Hop, executed: Executed) -> None:
        if not hop.sources:
            return
        self.hops += 1

        def attempt(plan: Plan) -> Trial:
            run = self.backend.run(hop.prompt, plan, Decoding(1))
            share = sum(run.fresh_rows) / (len(run.fresh_rows) * run.prompt_tokens)
            return Trial(kl_divergence(executed.logits, run.logits), share)

        self.profiler.look(hop, executed, attempt)

    def end(self, trajectory: str) -> None:
        """Nothing is kept."""

    def state_bytes(self) -> StateBytes:
        return StateBytes()

    @property
    def captures(self) -> frozenset[int]:
        return self.profiler.captures

    def snapshot(self) -> Snapshot | None:
        return None

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing is kept."""

    def notes(self) -> Mapping[str, float]:
        return self.kept


def profile(cfg: DictConfig, names: Choices, options: Options) -> Profile:
    """Profile the method of ``cfg``, write the file, print what it says.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    from harness.profile import place

    parts = build(cfg)
    if not getattr(type(parts.method), "profiled", ()):
        raise UserError(f"method={names.method} learns nothing offline; choose a method that has the option profile")
    workload = calibration(parts, cfg.limit, int(cfg.seed), options.calibration is not None)
    facts = parts.model.facts()
    reader = workload.see(parts.model, names.model, names.task)
    draft = workload.write(parts.model.tokenizer(), frozenset(), reader)
    cases = [case for case in draft.cases() if not case.warmup and not case.missing]
    check_context(draft, cases, facts.context, names.task)
    path = writable("out", place(names, options))
    loaded = parts.model.load()
    shape = shape_of(loaded.model)
    parts.backend.attach(loaded.model, shape, loaded.reader)
    grain, stops = Grain(options.step, options.within), frozenset(loaded.stop_ids)
    observer = Observer(parts.method.profiler(shape, grain), parts.backend)
    runner = Runner(observer, parts.backend, workload.write(loaded.tokenizer, stops, loaded.reader), stops)
    console, begin = Console(stderr=True), time.perf_counter()
    for case in track(cases, f"profiling {names.method}", console=console, disable=not console.is_terminal):
        runner.run(case)
    findings = found(observer, names)
    made = Profile(
        method=str(cfg.method._target_),
        model=ProfiledModel(facts.name, facts.revision, facts.layers),
        task=str(parts.task.name),
        data=workload.data,
        workflow=plain(cfg, parts),
        calibration=[case.sample_id for case in cases],
        hops=observer.hops,
        seconds=time.perf_counter() - begin,
        step=grain.step,
        within=grain.within,
        points=[dict(point) for point in findings.points],
        front=list(findings.front),
        picks={name: dict(pick) for name, pick in findings.picks.items()},
    )
    made.write(path)
    show(made, names, str(path))
    return made


def calibration(parts: Parts, limit: int | None, seed: int, own_data: bool) -> Workload:
    """The requests of a profile: the first items of ``own_data``, or else the last ones of the task's, of which at
    least one is left for a run. Text made on the spot comes from another seed than a run's.

    Raises:
        UserError: if no item would be left.
    """
    if isinstance(parts.task, SingleStream):
        return load_stream(parts.task, parts.workflow, limit, seed + 1)
    if not hasattr(parts.task, "load"):
        raise UserError(f"task={parts.task.name} has no items to profile on; choose a benchmark, such as task=gsm8k")
    task, workflow, dataset = parts.task, parts.workflow, parts.task.load()
    total = len(dataset.items)
    if own_data:
        items = dataset.items[: limit or REQUESTS]
    else:
        count = limit or min(REQUESTS, total // 2)
        if not 0 < count < total:
            raise UserError(
                f"limit={render(limit)}: the data has {total} samples, calibration on the last {count} leaves none to "
                "run on; lower limit or give calibration=<path>"
            )
        items = dataset.items[-count:]
    m = dataset.manifest
    data = DataFacts(source=m.source, split=m.split or None, revision=m.revision or None, rows=m.rows, sha256=m.sha256)
    return chat(data, task, items, workflow)


def found(observer: Observer, names: Choices) -> Findings:
    """What the profiler says. Raises UserError if no hop read an earlier one's cache."""
    try:
        return observer.profiler.findings()
    except ValueError as error:
        raise UserError(f"task={names.task} workflow={names.workflow}: {error}") from error


def plain(cfg: DictConfig, parts: Parts) -> dict[str, Any]:
    """Options of the workflow that ran."""
    if isinstance(parts.task, SingleStream):
        return {k: v for k, v in asdict(parts.task.workflow).items() if k not in ("edges", "feedback")}
    node: Any = OmegaConf.to_container(cfg.workflow, resolve=True)
    return {str(key): value for key, value in node.items() if not str(key).startswith("_")}


def show(made: Profile, names: Choices, path: str) -> None:
    """A short table: the front where there is one, else all points; then the picks."""
    console = Console()
    points = [made.points[i] for i in made.front] or made.points
    columns = [k for k, v in points[0].items() if not (isinstance(v, list) and v and isinstance(v[0], float))]
    table = Table(*columns)
    for point in points:
        table.add_row(*(Text(f"{point[c]:.4g}" if isinstance(point[c], float) else render(point[c])) for c in columns))
    console.print(table)
    for name, pick in made.picks.items():
        console.print(Text(f"{name}: {' '.join(f'method.{k}={render(v)}' for k, v in pick.items())}"))
    console.print(Text(f"{len(made.calibration)} requests, {made.hops} hops, {made.seconds:.1f} s"))
    console.print(Text(f"use it: method={names.method} method.profile={path}"), soft_wrap=True)
