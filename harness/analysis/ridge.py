"""The expensive part of ``python -m harness.analyse ridge``: hops are recorded once, every method is judged on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis.bench import SHIFTED, Bench
from harness.analysis.contenders import GATE, Contender, contenders
from harness.analysis.dense import Asked, tracked
from harness.analysis.file import place, write
from harness.analysis.ridge_file import Analysis
from harness.analysis.show import show
from harness.errors import UserError
from harness.explain import CommandLine
from harness.script import Case
from harness.tasks.single_stream import SingleStream

if TYPE_CHECKING:
    from harness.analysis.ridge_options import Options


def analyse(asked: CommandLine, options: Options) -> Analysis:
    """Record, judge, write, show.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    dense = Asked.of(asked.overrides)
    cases, shifted = _cases(dense, asked, options)
    path = place("ridge", dense.names, options.out)
    ready = dense.load(cases, options.hops)
    engine, recorder = ready.engine, ready.recorder()  # one for all, so that a role prompt is kept once
    by_case = [ready.record(recorder, case) for case in tracked([*cases, *shifted], "running dense")]
    most = options.observed[-1]
    bench = Bench(engine, by_case[:most], by_case[most : len(cases)], by_case[len(cases) :], options)
    for contender in tracked(list(contenders(most)), "judging"):
        bench.judge(contender, contender.method(asked, engine.shape, dense.seed))
    entropy = Contender(GATE, "method=kvcmas method.gate=entropy method.gate_question=true").method(
        asked, engine.shape, 0
    )
    found = Analysis(
        model=ready.loaded.facts.name,
        revision=ready.loaded.facts.revision,
        dtype=ready.dtype,
        task=str(dense.parts.task.name),
        shift=options.shift,
        observed=list(options.observed),
        held_out=options.held_out,
        remaining=bench.remaining,
        downstream=bench.downstream(),
        foreseen=bench.foreseen(entropy),
        gates=bench.gates(entropy),
    )
    write(found, path)
    show(found, str(path))
    return found


def _cases(dense: Asked, asked: CommandLine, options: Options) -> tuple[list[Case], list[Case]]:
    """Cases to learn from and held out; questions of the other task.

    Raises:
        UserError: for a task without agents, or data that is too short.
    """
    task = dense.parts.task
    if isinstance(task, SingleStream):
        raise UserError(f"task={task.name}: an analysis needs roles and questions; choose a benchmark")
    needed, cases = options.observed[-1] + options.held_out, dense.cases()
    if len(cases) < needed:
        raise UserError(
            f"observed={options.observed[-1]} held_out={options.held_out}: {needed} samples are needed, task="
            f"{task.name} has {len(cases)}; lower them, or give task.source=<path>"
        )
    if options.shift is None:
        return cases[:needed], []
    source = () if options.shift_source is None else (f"task.source={options.shift_source}",)
    kept = [w for w in asked.overrides if w.partition("=")[0] != "task" and not w.startswith("task.")]
    other = Asked.of((*kept, f"task={options.shift}", *source))
    found = other.cases()[: SHIFTED + min(options.held_out, 64)]
    if len(found) <= SHIFTED:
        raise UserError(f"shift={options.shift}: more than {SHIFTED} samples are needed, its data has {len(found)}")
    # Their answers are nobody's concern: they are judged as if they answered the first sample.
    return cases[:needed], [Case(f"shift-{c.sample_id}", c.question, None, repeat_of=cases[0].sample_id) for c in found]
