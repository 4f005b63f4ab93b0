"""Which questions of a benchmark the KVCMAS paper (arXiv 2609.34060) counts: a list of ids or a rule, never a slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from harness.errors import UserError
from harness.tasks.base import Item

SUBSETS = ("all", "paper")


@dataclass(frozen=True)
class PaperSubset:
    """What is known of the paper's questions.

    Attributes:
        rows: how many the paper counts.
        split: the hub split that they are, as a whole; empty if they are none.
        ids: file below ``harness/data`` with one content hash a line, in running order; empty if no list is known.
        rule: how a file can be told to hold them, in words, and as a test of its items; for what has no list.
        unknown: why they cannot be told at all, with what to run instead.
    """

    rows: int
    split: str = ""
    ids: str = ""
    rule: tuple[str, Callable[[Sequence[Item]], bool]] | None = None
    unknown: str = ""

    def select(self, items: list[Item], source: str, split: str) -> list[Item]:
        """The paper's questions among ``items``.

        Raises:
            UserError: if they are not known, or not all of them are there.
        """
        if self.unknown:
            raise UserError(f"task.subset=paper: {self.unknown}")
        if source == "hub" and split == self.split:  # the reader has checked its size
            return items
        if source == "hub":
            raise UserError(
                f"task.subset=paper: the paper's {self.rows:,} questions are the split {self.split}, not {split}; set "
                f"task.split={self.split} or task.subset=all"
            )
        if self.ids:
            return self._listed(items, source)
        if self.rule is not None and self.rule[1](items):
            return items
        told = f", or {self.rule[0]}" if self.rule else ", and no list of their ids is known to find them in a file"
        raise UserError(
            f"task.subset=paper: task.source={source} does not hold the paper's {self.rows:,} questions (it has "
            f"{len(items):,} rows); they are the split {self.split} of the hub{told}; set task.source=hub or "
            "task.subset=all"
        )

    def _listed(self, items: list[Item], source: str) -> list[Item]:
        wanted = (resources.files("harness") / "data" / self.ids).read_text(encoding="ascii").split()
        found = {content_of(item): item for item in reversed(items)}
        missing = [key for key in wanted if key not in found]
        if missing:
            raise UserError(
                f"task.subset=paper: task.source={source} lacks {len(missing):,} of the paper's {self.rows:,} "
                f"questions (the first has the content hash {missing[0]}); set task.source=hub or a file that holds "
                "them, or task.subset=all"
            )
        return [found[key] for key in wanted]


def content_of(item: Item) -> str:
    """The part of an item's id that depends on its contents alone."""
    return item.id.rpartition("-")[2]
