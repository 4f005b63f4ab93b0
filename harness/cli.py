"""The command line: ``python -m harness method=kvcmas task=gsm8k``.

Whatever the person at the keyboard can mend is one sentence on stderr and exit code 2; a defect of this program is a
traceback and exit code 1. ``HYDRA_FULL_ERROR=1`` shows the traceback in both cases.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.config import CONF, register
from harness.errors import UserError
from harness.explain import CommandLine, explain
from harness.hint import nearest
from harness.output import of_disk
from harness.points import GROUP, expand

_FULL_ERROR = "HYDRA_FULL_ERROR"
BRIDGE = "task=lm_eval:"
MODES = {f"teacher_forcing={value}" for value in ("true", "false", "True", "False")}
_SHOW = frozenset({"--help", "-h", "--cfg", "-c", "--info", "-i", "--hydra-help"})

USAGE, DEFECT, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what ``arguments`` (those of the process by default) ask for; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"kvcmas {version('kvcmas')}")
        return 0
    if any(word.startswith(BRIDGE) for word in given):
        return _bridge([f"tasks={w.removeprefix(BRIDGE)}" if w.startswith(BRIDGE) else w for w in given])
    verbose = os.environ.get(_FULL_ERROR) == "1"
    asked = CommandLine(())
    outcomes = Outcomes(verbose)
    try:
        refuse_foreign_kernels()
        words, asked = _ordered(given)
        register()
        if not _SHOW & set(words):
            words, outcomes.points = expand(words, asked)
            if asked.multirun and not outcomes.points:
                from harness.sweep import refuse_values  # imports this

                refuse_values(asked)
        with _arguments(words), _raw_errors():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(Job(outcomes, tuple(words)))()
    except (UserError, HydraException, OmegaConfBaseException, YAMLError, ValueError, OSError) as error:
        if verbose:
            traceback.print_exc()
        print(f"error: {explain(error, asked)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    outcomes.compare()
    return outcomes.code()


def _bridge(words: Sequence[str]) -> int:
    """``task=lm_eval:<name>``: another harness asks."""
    try:
        from harness.lm_eval import main as evaluate
    except ImportError as error:
        print(f"error: task=lm_eval:<name> needs the extra lm-eval ({error}); install '.[lm-eval]'", file=sys.stderr)
        return USAGE
    return evaluate(words)


@dataclass
class Outcomes:
    """Exit codes of the jobs of one command.

    Attributes:
        verbose: show tracebacks of refused configurations too.
        codes: one for each job that ended here.
        runs: folder and overrides of the jobs that ended well, in order.
        points: labels of an experiment's runs by their choice of the group ``point``.
        process: where they are collected; a launcher may run jobs elsewhere.
    """

    verbose: bool
    codes: list[int] = field(default_factory=list)
    runs: list[tuple[Path, tuple[str, ...]]] = field(default_factory=list)
    points: dict[str, str] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)

    def code(self) -> int:
        """0 if every job succeeded, else the highest code; a summary on stderr when several jobs ran."""
        failed = sum(c != 0 for c in self.codes)
        if failed and len(self.codes) > 1:
            print(f"error: {failed} of {len(self.codes)} runs failed, see above", file=sys.stderr)
        return max(self.codes, default=0)

    def compare(self) -> None:
        """One table over the complete runs of a sweep, named by the overrides in which they differ."""
        from harness.folder import SUMMARY

        complete = [(folder, words) for folder, words in self.runs if (folder / SUMMARY).exists()]
        if len(complete) > 1:
            from harness.comparison import print_comparison

            common = set.intersection(*(set(words) for _, words in complete)) | MODES  # a table each
            labels = [" ".join(self._short(w) for w in words if w not in common) for _, words in complete]
            print_comparison([folder for folder, _ in complete], labels)

    def _short(self, word: str) -> str:
        return self.points.get(word.removeprefix(f"+{GROUP}="), word.removeprefix("method="))


@dataclass(frozen=True)
class Job:
    """One run, with its failure reported at once, so that a sweep goes on to the next; ``words`` are the command's."""

    outcomes: Outcomes
    words: tuple[str, ...] = ()

    def __call__(self, cfg: DictConfig) -> int:
        job = HydraConfig.get()
        folder = Path(job.runtime.output_dir)
        try:
            code = _run(cfg, folder)
        except Exception as failure:  # a defect too is told at once, so that a sweep goes on to its next run
            error = of_disk(failure, folder) or failure
            known = isinstance(error, UserError)
            if self.outcomes.verbose or not known:
                traceback.print_exc()
            which = f"[{' '.join(job.overrides.task)}] " if job.mode == RunMode.MULTIRUN else ""
            if known or which:
                print(f"error: {which}{error}", file=sys.stderr)
            _remove_if_empty(folder)
            code = USAGE if known else DEFECT
            if os.getpid() != self.outcomes.process:
                raise  # the launcher carries it back
        self.outcomes.codes.append(code)
        if code == 0:
            self.outcomes.runs.append((folder, tuple(job.overrides.task)))
        return code

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In another process the folder is resolved before the job is called.
        register()
        self.__dict__.update(state)
        if self.words:
            sys.argv = [sys.argv[0], *self.words]  # for the provenance


def refuse_foreign_kernels() -> None:
    """Stop if the distribution ``kernels`` (Hugging Face) is installed: transformers would take ours for it.

    Raises:
        UserError: if it is there.
    """
    with suppress(PackageNotFoundError):
        found = distribution("kernels")
        raise UserError(
            f"the distribution kernels {found.version} is installed and transformers confuses it with this project's "
            "package kernels, remove it: python -m pip uninstall kernels"
        )


def _run(cfg: DictConfig, folder: Path) -> int:
    # Imported here: --help and --cfg need neither torch nor transformers.
    from harness.validate import validate

    validate(cfg)
    from harness.run import run

    return run(cfg, folder)


def _ordered(arguments: Sequence[str]) -> tuple[list[str], CommandLine]:
    """``arguments`` with all overrides side by side, which Hydra's parser needs, and what they say.

    Raises:
        UserError: for a flag that does not exist or lacks its value.
    """
    words = list(arguments)
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        known, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    flags = sorted({f for action in parser._actions for f in action.option_strings})
    for word in rest:
        if word.startswith("-"):
            raise UserError(f"{word}: there is no such flag, {nearest(word.partition('=')[0], flags)}")
    if rest:
        last = len(words) - 1 - words[::-1].index(known.overrides[-1])
        head, tail = words[: last + 1], words[last + 1 :]
        for word in rest:
            tail.remove(word)
        words = [*head, *rest, *tail]
    return words, CommandLine((*known.overrides, *rest), known.multirun, known.config_dir)


@contextmanager
def _arguments(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads the process's arguments."""
    before = sys.argv
    sys.argv = [before[0], *words]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _raw_errors() -> Iterator[None]:
    """Errors as Hydra raises them, instead of its own report and exit."""
    before = os.environ.get(_FULL_ERROR)
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = before


def _remove_if_empty(folder: Path) -> None:
    """A refused configuration leaves no folders behind, below the working directory or below the results folder."""
    here = Path.cwd()
    made = len(folder.relative_to(here).parts) if folder.is_relative_to(here) else 2
    with suppress(OSError):
        for place in [folder, *folder.parents][:made]:
            place.rmdir()
