"""Video-MME without subtitles: multiple choice about clips, the letter as chosen (https://arxiv.org/abs/2405.21075)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness import media
from harness.errors import UserError
from harness.media import Media
from harness.tasks.animation import draw
from harness.tasks.attachment import attached
from harness.tasks.base import Dataset, Item, content_hash
from harness.tasks.benchmark import Benchmark
from harness.tasks.letter import LETTERS, chosen_letter
from harness.tasks.lookup import EXTRACTS, FROZEN, LIVE, answer, live, read_extracts
from harness.tasks.source import Hub
from harness.tasks.table import Record
from harness.tasks.tool import ToolUse

CLASSES = ("short", "medium", "long")
PER_CLASS = 150
PAPER_RULE = 1_350  # questions that the paper's rule selects; its scores count the 1,296 whose clips could be had
ENDINGS = (".mp4", ".mkv", ".webm")
_LABEL = re.compile(r"^\s*\(?([A-J])[.):]\s*")


@dataclass(frozen=True, kw_only=True)
class VideoMME(Benchmark):
    """Rows have ``question``, ``options`` (texts, with or without "A. " in front) and ``answer`` (a letter). Their clip
    stands in ``video``: a path relative to the data file, or bytes; or it is the file of ``videos`` named after
    ``videoID``. Clips of the hub's data set come apart from its rows: put them into that folder.

    Attributes:
        frames: frames shown of a clip, at (i + 0.5) / frames of its duration (KVCMAS arXiv 2609.34060).
        videos: folder with ``<videoID>.mp4`` (.mkv, .webm); None is the data file's, or the working directory.
        subset: ``all``, or ``paper``: every second clip of each class of duration, 150 at most, by class and then clip.
            That makes 1,350 questions; the published scores cover 1,296 of them, whose ids are not known (those whose
            clips could be obtained), so that clips which are missing here are rows that say so.
        lookup: where marked terms are looked up, as for MMLU (:class:`harness.tasks.mmlu.Mmlu`).

    Raises:
        UserError: if a field cannot be used.
    """

    frames: int = 32
    videos: str | None = None
    lookup: str = FROZEN

    hub: ClassVar[Hub] = Hub("lmms-eval/Video-MME", "videomme", (("test", 2_700),))
    sample: ClassVar[str] = "videomme_sample.jsonl"
    frozen: ClassVar[str] = EXTRACTS
    columns: ClassVar[tuple[str, ...]] = ("question", "options", "answer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.frames, bool) or not isinstance(self.frames, int) or self.frames < 1:
            raise UserError(f"task.frames must be a positive integer, got {self.frames!r}")

    @property
    def extractor(self) -> str:
        return "letter"

    def load(self) -> Dataset:
        """As every benchmark. Raises UserError too if the lookup table cannot be used."""
        if self.lookup != LIVE:
            read_extracts(self.lookup)
        return super().load()

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """Extracts for the terms that an output marks with @."""
        return answer(output, live if self.lookup == LIVE else read_extracts(self.lookup))

    def item(self, index: int, record: Record) -> Item:
        question, choices = record.text("question"), _choices(record)
        target = record.text("answer").strip().upper()
        letters = LETTERS[: len(choices)]
        if target not in letters:
            raise UserError(f"{record.where}: column 'answer' must be A to {letters[-1]}, found {target!r}")
        video = str(record.values.get("video_id") or record.values.get("videoID") or "")
        duration = str(record.values.get("duration") or "")
        return Item(
            id=f"videomme-{index:04d}-{content_hash(video, question, *choices, target)}",
            question=question,
            target=target,
            choices=choices,
            fields={"subject": duration, "video": video},
            media=self._clips(record),
        )

    def of_paper(self, items: list[Item]) -> list[Item]:
        chosen = []
        for duration in CLASSES:
            of_class = [item for item in items if item.fields["subject"] == duration]
            videos = sorted({item.fields["video"] for item in of_class})[::2][:PER_CLASS]
            chosen += [item for video in videos for item in of_class if item.fields["video"] == video]
        if len(chosen) != PAPER_RULE:
            raise UserError(
                f"task.subset=paper: every second clip of each class of duration in task.source={self.source} makes "
                f"{len(chosen):,} questions, not the {PAPER_RULE:,} of the whole test split; set task.source=hub or "
                "task.subset=all"
            )
        return chosen

    def question(self, item: Item) -> str:
        shown = media.MARK * len(item.media) + "\n" if item.media else ""
        options = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=False))
        return f"{self.lead_in}{shown}" + f"{item.question}\n{options}".replace(media.MARK, " ")

    def extract(self, raw: str, item: Item) -> str | None:
        """The chosen letter, upper case (:func:`harness.tasks.letter.chosen_letter`)."""
        return chosen_letter(raw, item.choices)

    def score(self, prediction: str, item: Item) -> bool:
        """Equality of letters."""
        return prediction.strip().upper() == item.target

    def _clips(self, record: Record) -> tuple[Media, ...]:
        beside = Path(self.source).expanduser().parent
        found = attached(record, ("videos", "video"), "video", beside, draw, self.frames)
        name = record.values.get("videoID")
        if found or not name:
            return found
        folder = beside if self.videos is None else Path(self.videos).expanduser()
        paths = [folder / f"{name}{ending}" for ending in ENDINGS]
        path = next((path for path in paths if path.is_file()), paths[0])
        return (Media("video", str(name), record.where, path=path, frames=self.frames),)


def _choices(record: Record) -> tuple[str, ...]:
    value = record.values.get("options")
    if isinstance(value, str) or not isinstance(value, Sequence) or not 2 <= len(value) <= len(LETTERS):
        raise UserError(
            f"{record.where}: column 'options' must hold a list of 2 to {len(LETTERS)} texts, found {value!r}"
        )
    texts = [str(choice) for choice in value]
    labels = [match.group(1) if (match := _LABEL.match(text)) else "" for text in texts]
    if labels == list(LETTERS[: len(texts)]):
        texts = [_LABEL.sub("", text) for text in texts]
    return tuple(texts)
