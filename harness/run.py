"""One run: check everything, hold the folder, load the model, execute the samples, sum up."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from harness.autoprofile import AUTO, profiled
from harness.backends.hf_facts import ModelFacts as SourceFacts
from harness.backends.hf_facts import choose_device
from harness.config import Choices, of_run
from harness.duplicates import duplicated
from harness.errors import UserError
from harness.execution import Execution
from harness.folder import read_summary
from harness.identity import identify
from harness.profiled import fill
from harness.shard import Shard
from harness.store import RunFolder
from harness.summarise import summarise
from harness.summary import Summary
from harness.table import print_run
from harness.tasks.single_stream import SingleStream
from harness.track import Tracker
from harness.validate import Parts, build
from harness.workload import Workload, check_context, load_benchmark, load_stream, prompts_sha256, warmed
from methods.base import Rope, Shape


def run(cfg: DictConfig, folder: Path) -> int:
    """Execute ``cfg`` in ``folder``, or resume it; returns the exit code.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    return complete(cfg, Choices.current(), folder, load_workload)


def complete(cfg: DictConfig, names: Choices, folder: Path, load: Callable[[Parts, DictConfig], Workload]) -> int:
    """As :func:`run`, for a configuration that was composed elsewhere and a workload that ``load`` makes."""
    identity = identify(cfg, {"method": names.method, "task": names.task}).id
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
    check_fit(parts, names, facts, int(cfg.seed))
    shard = None if cfg.shard is None else Shard.parse(cfg.shard)
    if shard is not None:
        shard.of(cases)
    config_yaml = OmegaConf.to_yaml(OmegaConf.create(of_run(cfg)))
    with RunFolder.open(folder, config_yaml, identity=identity) as store:
        done, mirrored = store.complete, (folder / "wandb").exists()
        with Tracker.open(cfg.tracking, folder, cfg, names) as tracker:
            if not done:
                requests, prompts = duplicated(cases, cfg.duplicates, cfg.seed), prompts_sha256(draft, cases)
                requests = requests if shard is None else shard.of(requests)
                store.check_prompts(prompts)
                execution = Execution(cfg, parts, workload, names, store, requests)
                execution.execute(prompts)
                store.finish(summarise(store.rows, execution.heading))
            summary = read_summary(folder)
            if summary is not None and not (done and mirrored):  # a kill may have come between the two
                tracker.finish(store.rows, summary, _draw)
        print_run(folder)
        if done:
            print("This run was complete already; change an option, or remove its folder to run it again.")
    for warning in tracker.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return _worth(store)


def _draw(summary: Summary, folder: Path) -> list[Path]:
    from harness.report.single import draw_run  # loads matplotlib

    return draw_run(summary, folder)


def check_fit(parts: Parts, names: Choices, facts: SourceFacts, seed: int) -> None:
    """Refuse, before weights are read, what a method or the kernels will not do on this model or device.

    Raises:
        UserError: naming method and model, or the option.
    """
    device = choose_device(parts.model.device)
    if parts.backend.kernels == "triton" and device.type != "cuda":
        raise UserError(f"backend.kernels=triton needs a CUDA device, the model runs on {device}; use auto or torch")
    rope = Rope(torch.ones(facts.head_dim // 2))  # stands in: only sizes are known without the weights
    sizes = (facts.layers, facts.kv_heads, facts.head_dim, facts.hidden)
    try:
        copy.deepcopy(parts.method).bind(Shape(*sizes, torch.float32, torch.device("cpu"), rope), seed)
    except ValueError as error:
        raise UserError(f"method={names.method} does not fit model={names.model}: {error}") from error


def _worth(store: RunFolder) -> int:
    """Exit code of a complete run: 1 if not a single sample ran to its end."""
    return 0 if any(row.completed for row in store.rows) else 1


def load_workload(parts: Parts, cfg: DictConfig) -> Workload:
    """The task's data, checked."""
    if isinstance(parts.task, SingleStream):
        return load_stream(parts.task, parts.workflow, cfg.limit, cfg.seed)
    return load_benchmark(parts.task, parts.workflow, cfg.limit)
