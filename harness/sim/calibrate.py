"""Costs from measured runs: what each method computed in a run of ``task=trace``, and seconds per unit of it by phase.

Phases are best measured where calls seldom overlap: where they do, one call's decoding holds the prefill of others.
Fits are least squares without negative coefficients. They hold where they were measured: sizes beyond those of the runs
are extrapolated, by as many terms as the runs could tell apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.optimize import nnls

from harness.errors import UserError
from harness.folder import CONFIG
from harness.records import HopRecord, Route
from harness.sim.costs import BUDGET, PHASES, TERMS, CostFile, Linear, Recipe, RouteCost, Work
from harness.sim.runs import ran
from harness.traffic.plan import Plan, plan
from harness.traffic.pool import Measured as Ran
from harness.traffic.run import made


@dataclass(frozen=True, eq=False)
class Measured:
    """One run folder: its options, its replayed plan, and its hops with the tokens of their role prompts.

    Attributes:
        slots, budget: calls that its engine runs at once, and tokens of one of its steps.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    planned: Plan
    layers: int
    slots: int
    budget: int
    hops: tuple[tuple[HopRecord, int], ...]


def measured(folders: Sequence[Path]) -> list[Measured]:
    """Runs of traces that really ran. A method is called by its name, with a hash if its options differ among them.

    Raises:
        UserError: for a folder that holds no complete run of a trace, or a simulated one.
    """
    runs = [ran(folder) for folder in folders]
    configs = [_config(folder) for folder in folders]
    labels, hashes = [run.summary.method for run in runs], [_hash(config["method"]) for config in configs]
    variants = {label: {h for other, h in zip(labels, hashes, strict=True) if other == label} for label in labels}
    names = [f"{o}-{h}" if len(variants[o]) > 1 else o for o, h in zip(labels, hashes, strict=True)]
    return [_measured(*each) for each in zip(runs, names, configs, strict=True)]


def calibrate(runs: Sequence[Measured]) -> CostFile:
    """A cost file of the methods of ``runs``. Raises UserError if the runs are of several models or engines."""
    layers = {run.layers for run in runs}
    if len(layers) != 1:
        raise UserError(f"the runs are of models of {sorted(layers)} layers; calibrate on runs of one")
    engines = {(run.slots, run.budget) for run in runs}
    if len(engines) != 1:
        told = " and ".join(sorted(str(slots) for slots, _ in engines))
        raise UserError(f"the runs are of engines with {told} calls at once; calibrate on runs of one engine")
    slots, budget = engines.pop()
    names = list(dict.fromkeys(run.name for run in runs))
    return CostFile(
        about=f"measured: {', '.join(run.folder.name for run in runs)}",
        slots=slots,
        budget=budget,
        layers=layers.pop(),
        methods={name: _recipe([run for run in runs if run.name == name]) for name in names},
    )


def _recipe(runs: Sequence[Measured]) -> Recipe:
    hops = [(hop, role, hop.fresh_token_layers / run.layers) for run in runs for hop, role in run.hops]
    later = [h for h in hops if h[0].index and not h[0].source_hop]
    reused = [h for h in later if h[0].route is Route.reuse]
    dense = [h for h in hops if h[0].route is Route.dense]
    fell_back = sum(h[0].route is Route.fallback for h in later)
    first = [h[0] for h in hops if h[0].index == 0]
    role_reuse = bool(reused) and all(fresh < hop.prompt_tokens - hop.shared_tokens for hop, _, fresh in reused)
    after = [hop.prompt_tokens - hop.shared_tokens - role * role_reuse for hop, role, _ in reused]
    return Recipe(
        reuse="spans" if reused else "nothing",
        refused=fell_back / len(later) if reused else 0.0,
        recompute=_mean([max(0.0, (h[2] - a) / h[0].shared_tokens) for h, a in zip(reused, after, strict=True)]),
        glue=_mean([min(1.0, h[2] / max(1, a)) for h, a in zip(reused, after, strict=True)], 1.0),
        role_dense=bool(dense) and all(fresh < hop.prompt_tokens for hop, _, fresh in dense),
        role_reuse=role_reuse,
        encode_first=_mean([hop.notes.get("encode_tokens", 0.0) / max(1, hop.shared_tokens) for hop in first]),
        encode_later=_mean([h[0].notes.get("encode_tokens", 0.0) / h[0].shared_tokens for h in reused]),
        phases={
            route: _cost([(hop, fresh) for hop, _, fresh in hops if hop.route is route])
            for route in Route
            if any(hop.route is route for hop, _, _ in hops)
        },
    )


def _cost(hops: Sequence[tuple[HopRecord, float]]) -> RouteCost:
    works = [_work(hop, fresh) for hop, fresh in hops]
    return RouteCost(**{phase: _fit(phase, [hop for hop, _ in hops], works) for phase in PHASES})


def _work(hop: HopRecord, fresh: float) -> Work:
    """As :class:`harness.sim.recipe.Accounts` makes it."""
    return Work(
        route=hop.route,
        prompt=hop.prompt_tokens,
        computed=round(fresh),
        reused=hop.shared_tokens if hop.route is Route.reuse else 0,
        attended=fresh * (hop.prompt_tokens - fresh / 2),
        shared=hop.shared_tokens,
        encoded=round(hop.notes.get("encode_tokens", 0.0)),
        decoded=hop.output_tokens - 1,
        context=(hop.output_tokens - 1) * (hop.prompt_tokens + hop.output_tokens / 2),
    )


def _fit(phase: str, hops: Sequence[HopRecord], works: Sequence[Work]) -> Linear:
    """Seconds of a phase on its terms; each column is scaled to a largest entry of 1."""
    terms = TERMS[phase]
    matrix = np.array([[1.0 if t == "fixed" else float(getattr(w, t)) for t in terms] for w in works])
    seconds = np.array([getattr(hop.phases, f"{phase}_s") for hop in hops])
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(matrix / scale, seconds)
    return Linear(**{f"{t}_s": float(c / s) for t, c, s in zip(terms, found, scale, strict=True)})


def _mean(values: Sequence[float], empty: float = 0.0) -> float:
    return float(np.mean(values)) if values else empty


def _config(folder: Path) -> dict[str, Any]:
    whole = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    assert isinstance(whole, dict)  # or the run would not have been read
    return {str(k): v for k, v in whole.items()}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def _measured(run: Ran, name: str, config: dict[str, Any]) -> Measured:
    planned = plan(made(instantiate(config["trace"])), config["task"]["warmup"], config["limit"])
    roles = {}
    for trajectory in planned.trajectories:
        for call in trajectory.calls:
            first = call.request.pieces[0]
            roles[str(trajectory.id), call.request.hop] = first.tokens if first.kind == "private" else 0
    hops = [(hop, roles[row.sample_id, hop.index]) for row in run.rows if row.completed for hop in row.hops]
    if not hops:
        raise UserError(f"{run.folder} has no trajectory that ran to its end, there is nothing to calibrate on")
    layers, engine = run.summary.layers, run.serving.repeats[0].engine
    return Measured(
        run.folder, name, config, planned, layers, engine.slots or 1, engine.step_tokens or BUDGET, tuple(hops)
    )
