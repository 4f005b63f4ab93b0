"""``python -m harness.lm_eval tasks=<name> method=kvcmas model=...``: lm-eval asks and scores, the workflow answers.

Every generative task of the lm-evaluation-harness runs under every method. All its requests form one run, with a run
folder of its own as of any other run; lm-eval's results are put beside it as lm_eval.json. Options besides those of a
run:

    tasks=<name>,...      names that lm-eval knows, or YAML files
    include=<folder>      further task YAMLs; with it lm-eval's own tasks are not searched
    fewshot=<n>           examples before each question (default: as the task says)
    limit=<n>             documents per task
    chat=true             with task.prompt=plain: render requests by the model's chat template
    task.prompt=plain     one call, the request alone as its prompt, as a model without agents gets it

lm-eval's own command line works too: python -m harness.lm_eval --model kvcmas --model_args method=kvcmas,model=tiny
--tasks <name>. Decoding is greedy; requests for log-likelihoods, sampling or pictures are refused. A stop string ends
an answer but not its decoding, which goes on to the token limit or the end of the turn.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from harness import atomic
from harness.command import attempt, composed, split
from harness.config import GROUPS, Choices
from harness.errors import UserError
from harness.explain import CommandLine
from harness.folder import read_rows
from harness.identity import identify
from harness.records import Status
from harness.run import complete
from harness.tasks.number import gold_number, last_number
from harness.tasks.requests import Request, Requests, of
from harness.validate import Parts, build
from harness.workload import Workload, load_benchmark

try:
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import handle_non_serializable
except ImportError as missing:
    if __name__ == "__main__":
        sys.exit(f"error: lm-eval is not here ({missing}); install the extra: python -m pip install -e '.[lm-eval]'")
    raise

OWN = ("tasks", "include", "fewshot", "limit", "chat")
MAX_NEW_TOKENS = 256  # where a task says nothing, as lm-eval's own models
GREEDY = frozenset({"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"})


@register_model("kvcmas")  # type: ignore[untyped-decorator,unused-ignore]
class Kvcmas(LM):  # type: ignore[misc,unused-ignore]
    """A workflow of agents under a method, as a model of lm-eval. The weights load with the first requests.

    Args:
        overrides: of a run, by their names (``method``, ``workflow.max_new_tokens``); ``task`` is not among them.
        batch_size, device: as lm-eval passes them on; the batch is 1.
    """

    def __init__(self, batch_size: Any = 1, max_batch_size: Any = None, device: Any = None, **overrides: Any) -> None:
        super().__init__()
        if str(batch_size) not in ("1", "None"):
            raise UserError(f"batch_size={batch_size}: requests run one at a time; leave it out")
        given = {**overrides} if device is None else {"model.device": device, **overrides}
        words = [f"{name}={_word(value) if value is not None else _nothing(name)}" for name, value in given.items()]
        self.cfg, chosen = composed(CommandLine(("task=lm_eval", *words)))
        self.names: Choices = chosen
        self.parts = build(self.cfg)  # every mistake in the options is found here
        self.asked = ""
        self.folders: list[Path] = []

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; equal requests run once, and finished ones not again."""
        wanted = [_request(instance) for instance in requests]
        answers: dict[tuple[Request, int], str] = {}
        for room in sorted({room for _, room in wanted}):
            group = list(dict.fromkeys(request for request, other in wanted if other == room))
            answers |= {(request, room): answer for request, answer in self._answers(group, room).items()}
        for instance, key in zip(requests, wanted, strict=True):
            self.cache_hook.add_partial("generate_until", instance.args, answers[key])
        return [answers[key] for key in wanted]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        raise _likelihoods(requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        raise _likelihoods(requests)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if self.parts.task.prompt != "plain":
            raise UserError("chat templates are the workflow's own affair; set task.prompt=plain to use lm-eval's")
        return str(
            self.parts.model.tokenizer().apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return str(self.parts.model.tokenizer().chat_template or "")

    @property
    def tokenizer_name(self) -> str:
        return str(self.parts.model.facts().name)

    def _answers(self, requests: Sequence[Request], room: int) -> dict[Request, str]:
        """Run distinct requests whose last agent may write ``room`` tokens."""
        items = of(requests)
        facts = {"max_new_tokens": room, "asked_by": self.asked, "requests_sha256": _sha256(requests)}
        cfg = OmegaConf.merge(self.cfg, {"task": {**facts, "name": "-".join(filter(None, ("lm_eval", self.asked)))}})
        assert isinstance(cfg, DictConfig)
        folder = Path(
            str(cfg.results_dir), identify(cfg, {"method": self.names.method, "task": self.names.task}).folder
        )

        def load(parts: Parts, _: DictConfig) -> Workload:
            task: Requests = replace(parts.task, items=items)
            workload = load_benchmark(task, parts.workflow, None)
            return replace(workload, write=lambda *model: task.script(parts.workflow, *model))

        complete(cfg, self.names, folder, load)
        self.folders.append(folder)
        rows = {row.sample_id: row for row in read_rows(folder).rows if row.repeat == 0}
        failed = sum(row.status is not Status.ok for row in rows.values())
        if failed == len(rows):
            raise RuntimeError(f"none of the {failed} requests ran to its end, see {folder / 'errors.log'}")
        if failed:
            print(f"warning: {failed} requests failed and count as empty answers, see {folder}", file=sys.stderr)
        return {request: rows[item.id].prediction or "" for request, item in zip(requests, items, strict=True)}


def evaluate(cfg_words: Sequence[str], own: Mapping[str, str]) -> dict[str, Any]:
    """Run lm-eval's tasks on the workflow, print its table, and write its results beside the run.

    Raises:
        UserError: for options, tasks or data that cannot be used, before any weights are loaded.
    """
    given = dict(word.partition("=")[::2] for word in cfg_words)
    model = Kvcmas(**given)
    chat = _flag(own, "chat")
    if chat and model.parts.task.prompt != "plain":
        raise UserError("chat=true needs task.prompt=plain: the agents of a workflow have prompts of their own")
    manager, tasks = _tasks(own)
    model.asked = "-".join(sorted(tasks))
    try:
        results = lm_eval.simple_evaluate(
            model=model,
            tasks=list(tasks.values()),
            task_manager=manager,
            num_fewshot=_count(own, "fewshot", 0),
            limit=_count(own, "limit", 1),
            apply_chat_template=chat,
            bootstrap_iters=0,
        )
    except (UserError, KeyboardInterrupt):
        raise
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"tasks={own['tasks']}: lm-eval stopped: {_first_line(error)}") from error
    assert results is not None
    results["kvcmas"] = {name: strict for name in tasks if (strict := _strict(results["samples"].get(name, [])))}
    Console().print(_table(results))
    for folder in model.folders:
        text = json.dumps(results, indent=1, default=handle_non_serializable, ensure_ascii=False)
        atomic.replace(folder / "lm_eval.json", text.encode())
        print(f"files: {folder}")
    return dict(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate as ``arguments`` (those of the process by default) say; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    with attempt() as tried:
        if "--model" in words:
            return _their_command_line(words)
        own, rest = split(words, OWN)
        tried.asked = CommandLine(tuple(rest))
        if odd := [word for word in rest if "=" not in word or word.startswith(("-", "task="))]:
            raise UserError(f"{odd[0]}: expected options such as tasks=<name> method=kvcmas model=tiny")
        if not own.get("tasks"):
            raise UserError("tasks is missing; name one of lm-eval's tasks or a YAML file: tasks=<name>")
        evaluate(rest, own)
    return tried.code


def _their_command_line(words: Sequence[str]) -> int:
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm_eval", *words]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
    return 0


def _tasks(own: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """lm-eval's index of tasks, and those asked for by name, all of which must be generative."""
    include = own.get("include")
    if include is not None and not Path(include).is_dir():
        raise UserError(f"include={include} is no folder; give one that holds task YAMLs")
    named = [name.strip() for name in own["tasks"].split(",") if name.strip()]
    files = [name for name in named if name.endswith((".yaml", ".yml"))]
    if lost := [name for name in files if not Path(name).is_file()]:
        raise UserError(f"tasks={lost[0]} is no file; give a task YAML or the name of a task")
    try:
        manager = TaskManager(include_path=include, include_defaults=include is None and len(files) < len(named))
        if unknown := [n for n in named if n not in files and not manager.match_tasks([n])]:
            raise UserError(f"tasks={unknown[0]}: lm-eval knows no such task; python -m lm_eval ls tasks lists them")
        loaded: dict[str, Any] = manager.load(named)["tasks"]
    except UserError:
        raise
    except Exception as error:  # whatever lm-eval or datasets raise, the remedy is the same
        raise UserError(
            f"tasks={own['tasks']} cannot be loaded ({_first_line(error)}); offline, only tasks with local data can run"
        ) from error
    for name, task in loaded.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise UserError(
                f"tasks={name} asks for {task.OUTPUT_TYPE}; a workflow writes text, so that only tasks with "
                "output_type: generate_until can run"
            )
    return manager, loaded


def _request(instance: Any) -> tuple[Request, int]:
    """What is asked, and how many tokens the answer may have."""
    if len(instance.args) != 2:
        raise UserError(f"task {instance.task_name} brings pictures or sound, which requests cannot have here")
    context, options = instance.args
    kwargs = normalize_gen_kwargs(options, MAX_NEW_TOKENS)
    if kwargs.get("do_sample"):
        raise UserError(f"task {instance.task_name} samples (do_sample: true); decoding here is greedy")
    if odd := sorted(set(kwargs) - GREEDY):
        raise UserError(f"task {instance.task_name} sets generation_kwargs.{odd[0]}, which greedy decoding has not")
    until = kwargs.get("until") or []
    return Request(context, tuple(until if isinstance(until, list) else [until])), int(kwargs["max_gen_toks"])


def _strict(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Answers scored by the last number, if all targets are worked GSM8K answers."""
    by_document = {sample["doc_id"]: sample for sample in samples}
    gold = {key: gold_number(str(sample["target"])) for key, sample in by_document.items()}
    if not gold or None in gold.values():
        return None
    answers = {key: last_number(str(sample["resps"][0][0])) for key, sample in by_document.items()}
    return {
        "extractor": "last_number",
        "n": len(gold),
        "right": sum(answers[key] == number for key, number in gold.items()),
        "invalid": sum(number is None for number in answers.values()),
    }


def _table(results: Mapping[str, Any]) -> Table:
    """lm-eval's metrics, and our own score of the same answers beside them where there is one."""
    table = Table("task", "filter", "metric", "value", box=None, pad_edge=False)
    for name, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, comma, rule = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                table.add_row(name, rule, metric, f"{value:.4f}" if isinstance(value, float) else str(value))
        if strict := results["kvcmas"].get(name):
            share = strict["right"] / strict["n"]
            table.add_row(name, "last_number (as task=gsm8k)", "accuracy", f"{share:.4f}")
    return table


def _likelihoods(requests: Sequence[Any]) -> UserError:
    name = requests[0].task_name if requests else "?"
    return UserError(
        f"task {name} asks for log-likelihoods; a workflow writes text, so that only tasks with output_type: "
        "generate_until can run"
    )


def _sha256(requests: Sequence[Request]) -> str:
    return hashlib.sha256(json.dumps([[r.text, r.until] for r in requests]).encode()).hexdigest()


def _word(value: Any) -> str:
    """As it is typed in an override; lm-eval reads ``none`` as None, which is a choice of some groups."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nothing(name: str) -> str:
    return "none" if name in GROUPS else "null"


def _flag(own: Mapping[str, str], name: str) -> bool:
    value = own.get(name, "false").lower()
    if value not in ("true", "false"):
        raise UserError(f"{name}={value}: expected true or false")
    return value == "true"


def _count(own: Mapping[str, str], name: str, least: int) -> int | None:
    value = own.get(name)
    if value is None or value == "null":
        return None
    if not value.isdecimal() or int(value) < least:
        raise UserError(f"{name}={value}: expected an integer of at least {least}")
    return int(value)


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
