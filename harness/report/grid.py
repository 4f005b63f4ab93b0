"""A table as data, and the three forms it is written in: Markdown to read, LaTeX to paste, CSV to compute with."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from harness.report.value import Value, shown

SPECIAL = {
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$", "<": "$<$", ">": "$>$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Attributes:
    text: as read. value: what it is sorted by and what a CSV holds, None for a text.
    mark: ``good``, ``bad`` or ``warn``. title: said in full.
    """

    text: str
    value: Value | None = None
    mark: str = ""
    title: str = ""

    @classmethod
    def of(cls, value: Value | None, digits: int = 3, mark: str = "") -> Cell:
        return cls(shown(value, digits), value, mark)


@dataclass(frozen=True)
class Grid:
    """A table; the first column names the rows. ``numeric`` says which columns are numbers."""

    name: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()
    notes: tuple[str, ...] = field(default=())

    def markdown(self) -> str:
        rule = ["---:" if at in self.numeric else "---" for at in range(len(self.heads))]
        lines = [list(self.heads), rule, *([c.text for c in row] for row in self.rows)]
        body = "\n".join("| " + " | ".join(map(_one_line, line)) + " |" for line in lines)
        return body + "\n" + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self) -> str:
        """A booktabs tabular."""
        columns = "".join("r" if at in self.numeric else "l" for at in range(len(self.heads)))
        rows = [" & ".join(_escaped(c.text) for c in row) + r" \\" for row in self.rows]
        head = " & ".join(map(_escaped, self.heads)) + r" \\"
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*(f"% {note}" for note in self.notes), *lines, r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """Numbers in full, the ends of an interval in columns of their own."""
        spread = {
            at for at in self.numeric
            if any(at < len(row) and (v := row[at].value) is not None and v.low is not None for row in self.rows)
        }  # fmt: skip
        out = io.StringIO()
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow([h for at, head in enumerate(self.heads) for h in _heads(head, at in spread)])
        for row in self.rows:
            lines.writerow([v for at, cell in enumerate(row) for v in _values(cell, at in self.numeric, at in spread)])
        return out.getvalue()

    def save(self, folder: Path) -> None:
        """Write all forms."""
        folder.mkdir(parents=True, exist_ok=True)
        forms = {"md": self.markdown(), "tex": self.latex(), "csv": self.csv()}
        for ending, text in forms.items():
            (folder / f"{self.name}.{ending}").write_text(text, encoding="utf-8", errors="backslashreplace")


def _one_line(text: str) -> str:
    """A row of a Markdown table ends where its line does."""
    return " ".join(text.splitlines()).replace("|", r"\|")


def _heads(head: str, spread: bool) -> list[str]:
    return [head, f"{head} (low)", f"{head} (high)"] if spread else [head]


def _values(cell: Cell, numeric: bool, spread: bool) -> list[str]:
    if not numeric or cell.value is None:
        return [cell.text if not numeric else "", *([""] * 2 if spread else [])]
    ends = [cell.value.low, cell.value.high] if spread else []
    return [repr(cell.value.value), *("" if end is None else repr(end) for end in ends)]


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in text)
