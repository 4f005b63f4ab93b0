"""GSM8K: grade-school word problems, scored by exact equality of the last number (https://arxiv.org/abs/2110.14168)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.errors import UserError
from harness.sandbox import execute
from harness.tasks.base import EXTRACTED, Item, content_hash
from harness.tasks.executing import Executing
from harness.tasks.number import canonical, gold_number, last_number
from harness.tasks.program import script_of
from harness.tasks.source import Hub
from harness.tasks.subset import PaperSubset
from harness.tasks.table import Record
from harness.tasks.tool import OFF, ToolUse

ASKED = (
    "Below is an answer to a word problem. Write the value that it arrives at, as a bare number and nothing else.\n\n{}"
)


@dataclass(frozen=True, kw_only=True)
class Gsm8k(Executing):
    """Rows have ``question`` and ``answer``, whose number follows ``####``. File order (KVCMAS arXiv 2609.34060).

    The paper counts the test split as a whole, 1,319 rows. The target is that number in canonical form; the worked
    answer is kept in ``Item.fields['solution']``.

    Attributes:
        extractor: ``last_number`` of the answer, by rule; or ``model``: one more call, dense and outside all times,
            asks the model for the value, and the last number of what it says counts, as in the published scores (E3).
            Its mistakes then count as the answer's. The row's raw answer holds both.

    Raises:
        UserError: if a field cannot be used.
    """

    extractor: str = "last_number"

    hub: ClassVar[Hub] = Hub("openai/gsm8k", "main", (("train", 7_473), ("test", 1_319)))
    paper: ClassVar[PaperSubset] = PaperSubset(1_319, "test", ids="gsm8k_paper.txt")
    sample: ClassVar[str] = "gsm8k_sample.jsonl"
    columns: ClassVar[tuple[str, ...]] = ("question", "answer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extractor not in ("last_number", "model"):
            raise UserError(f"task.extractor must be last_number or model, got {self.extractor!r}")

    def asked(self, raw: str) -> str | None:
        """The published scores' own extraction (E3): the model is asked for the value alone."""
        return ASKED.format(raw) if self.extractor == "model" else None

    def item(self, index: int, record: Record) -> Item:
        question, answer = record.text("question"), record.text("answer")
        number = gold_number(answer)
        if number is None:
            raise UserError(f"{record.where}: column 'answer' must end in '#### <number>', found {answer[-40:]!r}")
        return Item(
            id=f"gsm8k-{index:04d}-{content_hash(question, answer)}",
            question=question,
            target=canonical(number),
            fields={"solution": answer},
        )

    def question(self, item: Item) -> str:
        return f"{self.lead_in}{item.question}"

    def extract(self, raw: str, item: Item) -> str | None:
        """The last number of ``raw`` in canonical form (:func:`harness.tasks.number.last_number`); of what the model
        extracted, if it was asked."""
        said, mark, extracted = raw.rpartition(EXTRACTED)
        if mark:
            raw = extracted if self.extractor == "model" else said
        number = last_number(raw)
        return None if number is None else canonical(number)

    def score(self, prediction: str, item: Item) -> bool:
        """Exact equality as rational numbers."""
        number = last_number(prediction)
        return number is not None and number == last_number(item.target)

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """The value of ``answer`` after the program in an output has run."""
        if not self.execute:
            return OFF
        program = script_of(output, "answer")
        if program is None:
            return "no program sets answer"
        done = execute.value(program, "answer", self.level, self.limits)
        if done.passed and done.value is not None:
            return f"answer = {done.value}"
        return f"no value ({done.message or 'answer is None'})"
