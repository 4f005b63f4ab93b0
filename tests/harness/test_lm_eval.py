"""The bridge to lm-eval: as a plain model it equals lm-eval's own, as a workflow it runs any generative task."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from harness.backends.hf_model import SmolLM2, Tiny
from harness.cli import main as run
from harness.folder import read_rows, read_summary
from harness.lm_eval import Kvcmas, main
from harness.records import Status

SUMS = [
    (f"Ann has {n} pens and buys {m} more. How many are there?", n + m) for n, m in ((2, 3), (4, 4), (19, 2), (7, 5))
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
output_type: {kind}
test_split: train
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
{more}
generation_kwargs:
  until: ["Question:", "\\n\\n"]
  max_gen_toks: 12
  {option}
filter_list:
  - name: flexible-extract
    filter:
      - function: regex
        group_select: -1
        regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: ["(?s).*#### "]
"""
QUICK = ["model=tiny", "workflow.max_new_tokens=4", "tracking=none"]


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Path]:
    """Write a task that lm-eval knows from its file alone."""

    def write(name: str = "sums", kind: str = "generate_until", option: str = "", more: str = "") -> Path:
        data, file = tmp_path / "sums.jsonl", tmp_path / f"{name}.yaml"
        rows = [{"question": q, "answer": f"It is {total}.\n#### {total}"} for q, total in SUMS]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if kind == "multiple_choice":
            more = 'doc_to_choice: ["5", "8", "21", "12"]\n' + more
        file.write_text(TASK.format(name=name, data=data, kind=kind, option=option, more=more))
        return file

    return write


def answers(model: Any, file: Path, **options: Any) -> list[str]:
    manager = TaskManager(include_defaults=False)
    tasks = list(manager.load([str(file)])["tasks"].values())
    results = lm_eval.simple_evaluate(model=model, tasks=tasks, task_manager=manager, bootstrap_iters=0, **options)
    return [sample["resps"][0][0] for sample in results["samples"][file.stem]]


def own_model(source: Any) -> HFLM:
    loaded = source.load()
    return HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=1, device="cpu", max_length=2048)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_one_plain_call_under_dense_equals_lm_evals_own_model(
    family: str, chat: bool, task: Callable[..., Path], tmp_path: Path
) -> None:
    file = task()
    options = {"task.prompt": "plain", "tracking": "none", "results_dir": str(tmp_path), "model.family": family}
    ours = answers(Kvcmas(method="dense", model="tiny", **options), file, apply_chat_template=chat)
    theirs = answers(own_model(Tiny(family=family)), file, apply_chat_template=chat)
    assert ours == theirs
    assert len(set(ours)) > 1
    assert all(ours)


@pytest.mark.smollm2
def test_trained_weights_and_examples_in_the_prompt_agree_too(task: Callable[..., Path], tmp_path: Path) -> None:
    file = task(more="fewshot_split: train")
    options = {"task.prompt": "plain", "tracking": "none", "results_dir": str(tmp_path), "model.dtype": "float32"}
    ours = answers(Kvcmas(method="dense", model="smollm2", **options), file, num_fewshot=2, limit=2)
    assert ours == answers(own_model(SmolLM2(dtype="float32")), file, num_fewshot=2, limit=2)
    assert all(ours)


def only(folder: Path) -> Path:
    (found,) = folder.glob("lm_eval*/*/config.yaml")
    return found.parent


def test_a_workflow_answers_any_generative_task(
    task: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"tasks={task()}", "method=kvcmas", *QUICK, "limit=3", f"results_dir={tmp_path}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    folder = only(tmp_path)
    rows, summary = read_rows(folder).rows, read_summary(folder)
    assert folder.parent.name == "lm_eval-sums"
    assert [row.status for row in rows] == [Status.ok] * 3
    assert {len(row.hops) for row in rows} == {4}
    assert all(row.hops[3].output_tokens > 4 for row in rows)  # the request's limit, not the workflow's
    assert all(len(row.hops[0].output_ids) <= 4 for row in rows)
    assert summary is not None
    assert summary.accuracy is None  # lm-eval scores
    told = json.loads((folder / "lm_eval.json").read_text())
    assert [s["resps"][0][0] for s in told["samples"]["sums"]] == [row.prediction for row in rows]
    assert all("doc_hash" in s and "prompt_hash" in s and "target_hash" in s for s in told["samples"]["sums"])
    assert "exact_match,flexible-extract" in told["results"]["sums"]
    assert told["kvcmas"]["sums"]["n"] == 3
    assert "flexible-extract" in out
    assert "last_number" in out
    # The same again finds its answers and loads no model.
    monkeypatch.setattr(Tiny, "load", None)
    assert main(words) == 0
    assert read_rows(folder).rows == rows


def test_both_scores_of_the_same_answers_stand_side_by_side(
    task: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["It is 5", "8.", "20", "none"]
    monkeypatch.setattr(Kvcmas, "generate_until", lambda self, requests, **_: said)
    words = [f"tasks={task()}", "method=dense", *QUICK, f"results_dir={tmp_path}"]
    seen: dict[str, Any] = {}
    monkeypatch.setattr("harness.lm_eval._table", lambda results: seen.update(results) or "")
    assert main(words) == 0
    assert seen["kvcmas"]["sums"] == {"extractor": "last_number", "n": 4, "right": 2, "invalid": 1}
    assert seen["results"]["sums"]["exact_match,flexible-extract"] == 0.25  # "8." keeps its point there


def test_equal_requests_run_once_and_every_request_gets_its_answer(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    def ask(text: str, room: int) -> Instance:
        return Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": room}), 0, ("t", 0, 1))

    model = Kvcmas(method="dense", model="tiny", tracking="none", results_dir=str(tmp_path), **{"task.prompt": "plain"})
    found = model.generate_until([ask("one", 3), ask("two", 3), ask("one", 3), ask("one", 5)])
    assert found[0] == found[2] != found[1]
    assert found[3].startswith(found[0])
    assert sorted(len(read_rows(folder).rows) for folder in model.folders) == [1, 2]


REFUSED: list[tuple[dict[str, str], list[str], str]] = [
    ({"kind": "multiple_choice"}, [], "tasks=sums asks for multiple_choice; a workflow writes text"),
    ({"option": "do_sample: true\n  temperature: 0.7"}, [], "task sums samples"),
    ({"option": "num_beams: 4"}, [], "sets generation_kwargs.num_beams"),
    ({}, ["chat=true"], "chat=true needs task.prompt=plain"),
    ({}, ["chat=maybe"], "chat=maybe: expected true or false"),
    ({}, ["limit=0"], "limit=0: expected an integer of at least 1"),
    ({}, ["fewshot=x"], "fewshot=x: expected an integer of at least 0"),
    ({}, ["method=nothing"], "method"),
    ({}, ["task=gsm8k"], "task=gsm8k: expected options such as tasks="),
    ({}, ["-m"], "-m: expected options such as tasks="),
    ({}, ["task.prompt=loud"], "task.prompt=loud: expected one of workflow, plain"),
    ({}, ["model.context=64", "task.prompt=plain"], "context is 64"),
]


@pytest.mark.parametrize(("change", "words", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_what_is_not_supported_is_refused_before_the_model_loads(
    change: dict[str, str],
    words: list[str],
    message: str,
    task: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tiny, "load", None)
    given = [f"tasks={task(**change)}", *QUICK, f"results_dir={tmp_path}", *words]
    assert main(given) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tasks=", "tasks is missing"),
        ("tasks=gone.yaml", "tasks=gone.yaml is no file"),
        ("include=gone", "include=gone is no folder"),
        ("tasks=no_such_task_at_all", "lm-eval knows no such task"),
    ],
)
def test_tasks_that_are_not_there(
    word: str, message: str, task: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"include={task().parent}", "tasks=sums", *QUICK, word]) == 2
    assert message in capsys.readouterr().err


def test_data_that_cannot_be_had_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "far.yaml"
    file.write_text(TASK.format(name="far", data=tmp_path / "gone.jsonl", kind="generate_until", option="", more=""))
    assert main([f"tasks={file}", *QUICK]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith(f"error: tasks={file} cannot be loaded (")
    assert "only tasks with local data" in err


def test_likelihoods_are_refused_by_the_model_itself() -> None:
    from lm_eval.api.instance import Instance

    model = Kvcmas(method="dense", model="tiny")
    request = Instance("loglikelihood", {}, ("a", "b"), 0, ("arc", 0, 1))
    for ask in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(Exception, match=r"task arc asks for log-likelihoods"):
            ask([request])


def test_the_harness_names_the_bridge(
    task: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([f"task=lm_eval:{task()}", "method=dense", *QUICK, "limit=1", f"results_dir={tmp_path}"]) == 0
    assert (only(tmp_path) / "lm_eval.json").exists()
    capsys.readouterr()
    assert run(["task=lm_eval", "method=dense", *QUICK, f"results_dir={tmp_path}"]) == 2
    assert "python -m harness.lm_eval tasks=<name>" in capsys.readouterr().err


def test_lm_eval_knows_the_model_by_name(task: Callable[..., Path], tmp_path: Path) -> None:
    given = f"method=dense,model=tiny,tracking=none,workflow.max_new_tokens=4,results_dir={tmp_path}"
    assert len(answers("kvcmas", task(), model_args=given, limit=1)) == 1
    (row,) = read_rows(only(tmp_path)).rows
    assert len(row.hops) == 4


def test_lm_evals_own_command_line_is_handed_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv))
    words = ["--model", "kvcmas", "--model_args", "method=dense,model=tiny", "--tasks", "sums"]
    assert main(words) == 0
    assert seen == [["lm_eval", *words]]
