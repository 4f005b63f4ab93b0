"""The expensive part of ``python -m harness.verify``: a model is loaded once, every method is judged on it."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track

from harness.backends.hf import HF
from harness.backends.hf_facts import LoadedModel
from harness.backends.hf_rope import shape_of
from harness.errors import UserError
from harness.invariants.base import Invariant
from harness.invariants.catalogue import INVARIANTS
from harness.invariants.script import REQUESTS, PrefixScript, ShortScript
from harness.invariants.subject import Bench, Inapplicable, Subject
from harness.profiled import fill
from harness.tasks.single_stream import SingleStream
from harness.validate import Parts, build
from harness.verified import Outcome, Verdict, Verified, code
from harness.verified_table import show
from harness.workload import check_context, load_benchmark

if TYPE_CHECKING:
    from harness.verify import Chosen


def verify(chosen: Sequence[Chosen]) -> bool:
    """Judge, store and show; whether everything that applies has passed.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    ready = [(one, prepared(one)) for one in chosen]
    first = ready[0][1]
    requests = load_benchmark(first.task, first.workflow, REQUESTS)
    requests.see(first.model, chosen[0].names.model, str(first.task.name))
    loaded = first.model.load()
    bench = opened(first, loaded)
    check_context(bench.short, bench.short.cases(), loaded.facts.context, str(first.task.name))
    with bench.engine.showing([medium for medium in requests.media if not medium.missing]):
        return judged(ready, bench, loaded)


def judged(ready: Sequence[tuple[Chosen, Parts]], bench: Bench, loaded: LoadedModel) -> bool:
    """Judge every method on the bench, store and show; whether everything that applies has passed."""
    console, done = Console(stderr=True), list[Verified]()
    for one, parts in track(
        ready, f"verifying on {ready[0][0].names.model}", console=console, disable=not console.is_terminal
    ):
        begin = time.perf_counter()
        subject = Subject(bench, parts.method)
        outcomes = {invariant.id: judge(invariant, subject) for invariant in INVARIANTS}
        node: Any = OmegaConf.to_container(one.cfg.method, resolve=True)
        found = Verified(
            method=one.names.method,
            target=str(node["_target_"]),
            options=hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest(),
            model=one.names.model,
            revision=loaded.facts.revision,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            code=code(str(node["_target_"])),
            versions={name: version(name) for name in ("kvcmas", "torch", "transformers")},
            outcomes=outcomes,
            seconds=time.perf_counter() - begin,
        )
        found.write()
        done.append(found)
    show(done)
    return all(found.passed for found in done)


def prepared(one: Chosen) -> Parts:
    """The parts of a configuration, the method's profile read if it names one.

    Raises:
        UserError: as :func:`harness.validate.build`, or for another backend or a task without agents.
    """
    cfg = fill(one.cfg)[0] if one.cfg.method.get("profile") is not None else one.cfg
    parts = build(cfg)
    if not isinstance(parts.backend, HF):
        raise UserError(f"backend={one.names.backend}: invariants are checked in the transformers engine; backend=hf")
    if isinstance(parts.task, SingleStream):
        raise UserError(f"task={one.names.task}: verification needs roles and questions; choose a benchmark")
    return parts


def opened(parts: Parts, loaded: LoadedModel) -> Bench:
    """The bench on a loaded model; unset cache rows are NaN."""
    engine: HF = parts.backend
    engine.poison = True
    engine.attach(loaded.model, shape_of(loaded.model), loaded.reader)
    model = (loaded.tokenizer, frozenset(loaded.stop_ids), loaded.reader)
    return Bench(engine, ShortScript(parts.task, *model), PrefixScript(parts.task, *model))


def judge(invariant: Invariant, subject: Subject) -> Outcome:
    """What an invariant says about a method; one that raises has failed."""
    tolerance = invariant.tolerance.of(subject.bench.engine.shape.dtype)
    try:
        error = invariant.error(subject)
    except Inapplicable as why:
        return Outcome(verdict=Verdict.inapplicable, reason=str(why))
    except Exception as problem:  # whatever a method does wrong here is its outcome, not the end of the others
        said = str(problem).strip().splitlines() or ["no message"]
        return Outcome(
            verdict=Verdict.failed, tolerance=tolerance, reason=f"raised {type(problem).__name__}: {said[0]}"
        )
    if not math.isfinite(error):
        return Outcome(verdict=Verdict.failed, tolerance=tolerance, reason="measured something that is no number")
    verdict = Verdict.passed if error <= tolerance else Verdict.failed
    return Outcome(verdict=verdict, error=error, tolerance=tolerance)
