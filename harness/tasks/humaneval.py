"""HumanEval: complete a Python function, scored by hidden tests (https://arxiv.org/abs/2107.03374)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.errors import UserError
from harness.sandbox import execute
from harness.sandbox.base import Execution
from harness.tasks.base import Dataset, Item, content_hash
from harness.tasks.examples import examples_of
from harness.tasks.executing import Executing
from harness.tasks.program import program_of
from harness.tasks.source import Hub
from harness.tasks.subset import PaperSubset
from harness.tasks.table import Record
from harness.tasks.tool import OFF, ToolUse

NO_CODE = "there is no code to run"


@dataclass(frozen=True, kw_only=True)
class HumanEval(Executing):
    """Rows have ``task_id``, ``prompt``, ``entry_point`` and ``test``, perhaps ``canonical_solution``. File order.

    The paper behind KVCMAS (arXiv 2609.34060) counts 161 problems: a reworded Python set of MultiPL-E, not a subset of
    these 164. Their ids are not known, so that ``subset=paper`` is refused; a file of that set runs as
    ``source=<path>``.

    The target is the prompt with its canonical solution (the tests, where a row has none).
    """

    hub: ClassVar[Hub] = Hub("openai/openai_humaneval", "openai_humaneval", (("test", 164),))
    paper: ClassVar[PaperSubset] = PaperSubset(
        161,
        unknown="the paper counts 161 problems of a reworded MultiPL-E file, which are no subset of HumanEval's 164 "
        "and whose ids are not known; give that file as task.source=<path> with task.subset=all",
    )
    sample: ClassVar[str] = "humaneval_sample.jsonl"
    columns: ClassVar[tuple[str, ...]] = ("task_id", "prompt", "entry_point", "test")

    @property
    def extractor(self) -> str:
        return "last_program"

    def load(self) -> Dataset:
        """As every benchmark. Raises UserError, before any model is loaded, unless execution is allowed."""
        if not self.execute:
            raise UserError(
                f"task={self.name} runs programs that the model writes, in a sandbox; allow that with task.execute=true"
            )
        return super().load()

    def item(self, index: int, record: Record) -> Item:
        name, prompt, test = record.text("task_id"), record.text("prompt"), record.text("test")
        entry_point = record.text("entry_point").strip()
        if not entry_point.isidentifier():
            raise UserError(f"{record.where}: column 'entry_point' must name a function, found {entry_point!r}")
        solution = record.values.get("canonical_solution")
        return Item(
            id=f"humaneval-{index:04d}-{content_hash(name, prompt, entry_point, test)}",
            question=prompt,
            target=prompt + solution if isinstance(solution, str) and solution.strip() else test,
            fields={"entry_point": entry_point, "test": test},
        )

    def question(self, item: Item) -> str:
        return f"{self.lead_in}{item.question}"

    def extract(self, raw: str, item: Item) -> str | None:
        """The program (:func:`harness.tasks.program.program_of`)."""
        return program_of(raw, item.question, item.fields["entry_point"])

    def execution(self, prediction: str, item: Item) -> Execution:
        """What became of the item's tests. Raises UserError unless execution is allowed."""
        if not self.execute:
            raise UserError(f"task={self.name}: task.execute=true is needed to run a program")
        tests, entry_point = item.fields["test"], item.fields["entry_point"]
        return execute.tests(prediction, tests, entry_point, item.question, self.level, self.limits)

    def score(self, prediction: str, item: Item) -> bool:
        """Whether all tests of the item pass."""
        return self.execution(prediction, item).passed

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """The examples in the item's own description, tried on the program of an output."""
        if not self.execute:
            return OFF
        program, entry_point = self.extract(output, item), item.fields["entry_point"]
        if program is None:
            return NO_CODE
        found = examples_of(item.question, entry_point)
        if not found:
            return "the description has no example to run"
        done = execute.examples(program, found, entry_point, item.question, self.level, self.limits)
        wrong = [e for e in done.examples if e.got is not None]
        words = [f"{len(done.examples) - len(wrong)} of {len(found)} examples pass"]
        words += [f"{e.call} gave {e.got} instead of {e.expected}" for e in wrong]
        return "\n".join(words if done.passed else [*words, f"the program stopped: {done.message}"])
