"""Scripts over tiny models for tests of whole trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.backends.hf import HF
from harness.chat import ChatScript
from harness.tasks.agent import Agent
from harness.tasks.base import Dataset, Item, Manifest
from harness.trajectory import Finished, Runner
from harness.workflow import Workflow
from methods.base import Method


def _agent(name: str, system: str) -> Agent:
    return Agent(name, name.title(), system, instruction=f"Answer as {name}.")


class EchoTask:
    """Three agents over short questions; every non-empty answer counts."""

    name, source, split, revision = "echo", "sample", "", None
    tau, tau_distance, lead_in, extractor = 0.3, None, "Q: ", "text"
    agents = (
        _agent("first", "You add things up."),
        _agent("second", "You are the second one and you doubt everything that others say."),
        _agent("third", "You write programs, short ones."),
    )
    final = _agent("final", "You decide.")

    def __init__(self, questions: Sequence[str]) -> None:
        self.items = tuple(Item(f"q{i}", text, "1") for i, text in enumerate(questions))

    def load(self) -> Dataset:
        return Dataset(self.items, Manifest("sample", "", "", len(self.items), ""))

    def question(self, item: Item) -> str:
        return self.lead_in + item.question

    def extract(self, raw: str, item: Item) -> str | None:
        return raw or None

    def score(self, prediction: str, item: Item) -> bool:
        return prediction == item.target


QUESTIONS = [
    "How many apples are left when four of nine are eaten?",
    "Ann has 3 dogs and 2 cats. How many legs walk in her garden at noon?",
    "A train needs 2 hours for 160 km. How fast is it on the way?",
    "Five boxes hold 12 pencils each. How many pencils are there?",
]


def script(tokenizer: Any, workflow: Workflow, questions: Sequence[str] = QUESTIONS) -> ChatScript:
    task = EchoTask(questions)
    return ChatScript(task, task.items, workflow, tokenizer, frozenset())


def run_all(
    method: Method, engine: HF, chat: ChatScript, *, shadow: bool = False, seed: int = 0, bound: bool = False
) -> list[Finished]:
    if not bound:
        method.bind(engine.shape, seed)
    runner = Runner(method, engine, chat, frozenset(), shadow)
    return [runner.run(case) for case in chat.cases()]


def ids(finished: Sequence[Finished]) -> list[list[list[int]]]:
    return [[hop.output_ids for hop in f.hops] for f in finished]
