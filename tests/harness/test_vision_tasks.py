"""MathVista and Video-MME: data in every form, their samples, whole runs, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness import media
from harness.cli import main
from harness.decode import check
from harness.errors import UserError
from harness.records import Row, Status
from harness.tasks.base import Task, items_sha256
from tests.harness.films import film, picture
from tests.harness.real_data import ROOT

CONF = Path(__file__).parents[2] / "conf" / "task"
REAL = ROOT / "mathvista" / "testmini_text.jsonl"
COMMON = ["model=tiny_vlm", "model.language=random", "workflow.max_new_tokens=6", "tracking=none"]
FIVE = ["dense", "full_reuse", "kvcmas", "kvcomm", "cacheblend"]
ROW = {"question": "How many?", "answer": "3", "question_type": "free_form", "answer_type": "integer", "image": "a.png"}
CLIP = {"question": "Which?", "options": ["A. one", "B. two"], "answer": "B", "video": "a.mp4"}


def task(name: str, **options: Any) -> Task:
    made: Task = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), **options)
    return made


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(folder: Path) -> list[Row]:
    (found,) = folder.glob("*/*/rows.jsonl")
    return [msgspec.json.decode(line, type=Row) for line in found.read_text().splitlines()]


@pytest.mark.parametrize(("name", "count"), [("mathvista", 30), ("videomme", 36)])
def test_the_sample_loads_and_every_medium_can_be_opened(name: str, count: int) -> None:
    made = task(name)
    items = made.load().items
    assert len(items) == len({item.id for item in items}) == count
    for item in items:
        (medium,) = item.media
        check(medium)
        assert made.question(item).startswith(f"Q:\n{media.MARK}\n{item.question}")
        assert item.target in (item.choices or (item.target,)) or name == "videomme"
    assert len({item.media[0].key for item in items}) == (16 if name == "mathvista" else 12)
    assert [i.media[0].sha256 for i in items[:4]] == [i.media[0].sha256 for i in task(name).load().items[:4]]


def test_pictures_come_as_paths_bytes_lists_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.png").write_bytes(picture(1))
    found = task(
        "mathvista",
        source=write(
            tmp_path / "rows.jsonl",
            ROW | {"image": "deep/a.png"},
            ROW | {"image": ["deep/a.png", "b.png"]},
            {k: v for k, v in ROW.items() if k != "image"},
            ROW | {"image": None},
            ROW | {"image": str(tmp_path / "deep" / "a.png"), "question": f"a {media.MARK} b"},
        ),
    )
    one, two, none, null, absolute = found.load().items
    assert [(m.missing, m.alone) for m in one.media] == [(False, True)]
    assert [(m.missing, m.alone) for m in two.media] == [(False, False), (True, False)]
    assert none.media == null.media == ()
    assert one.media[0].key == absolute.media[0].key != two.media[0].key
    for item in (one, two, none, absolute):
        assert found.question(item).count(media.MARK) == len(item.media)


@pytest.mark.parametrize("kind", ["image", "struct", "list"])
def test_parquet_holds_bytes_as_the_hub_does(kind: str, tmp_path: Path) -> None:
    cell = {"bytes": picture(1), "path": "1.jpg"}
    of_kind = {
        "image": (cell, datasets.Image()),
        "list": ([cell, {"bytes": picture(2), "path": "2.jpg"}], datasets.List(datasets.Image())),
        "struct": (cell, {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}),
    }
    value, feature = of_kind[kind]
    texts = {k: datasets.Value("string") for k in ROW}
    made = datasets.Dataset.from_dict(
        {k: [v] for k, v in ROW.items()} | {"decoded_image": [value]},
        features=datasets.Features(texts | {"decoded_image": feature}),
    )
    made.to_parquet(str(tmp_path / "rows.parquet"))
    (item,) = task("mathvista", source=str(tmp_path / "rows.parquet")).load().items
    assert [m.data for m in item.media] == [picture(i + 1) for i in range(2 if kind == "list" else 1)]


def test_the_manifest_tells_media_apart(tmp_path: Path) -> None:
    one, other = (
        task("mathvista", source=write(tmp_path / f"{n}.jsonl", ROW | {"image": n})).load() for n in ("a", "b")
    )
    assert one.manifest.sha256 != other.manifest.sha256
    plain = task("gsm8k").load()
    assert plain.manifest.sha256 == items_sha256(plain.items)


def test_the_papers_clips_are_every_second_one_of_each_class(tmp_path: Path) -> None:
    source = write(
        tmp_path / "rows.jsonl",
        *(
            CLIP | {"video": None, "videoID": f"v{i}", "video_id": f"{i:03}", "duration": d, "question": f"{i} {q}?"}
            for i, d in zip(range(900), ["long"] * 300 + ["short"] * 300 + ["medium"] * 300, strict=True)
            for q in range(3)
        ),
    )
    items = task("videomme", source=source, subset="paper").load().items
    assert len(items) == 1350
    assert [item.fields["video"] for item in items[::3]] == [
        f"{i:03}" for start in (300, 600, 0) for i in range(start, start + 300, 2)
    ]
    assert len(task("videomme", source=source).load().items) == 2700


@pytest.mark.parametrize(
    ("name", "count"), [("videomme", "not the 1,350"), ("mathvista", "the paper's 1,000 questions")]
)
def test_the_papers_questions_are_not_in_the_sample(name: str, count: str) -> None:
    with pytest.raises(UserError, match=f"task.subset=paper: .*task.source=sample.*{count}"):
        task(name, subset="paper").load()


def test_clips_are_found_by_their_name_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "xyz.mkv").write_bytes(film(form="matroska"))
    row = {k: v for k, v in CLIP.items() if k != "video"} | {"videoID": "xyz"}
    source = write(tmp_path / "rows.jsonl", row, row | {"videoID": "gone"})
    found, gone = task("videomme", source=source, videos=str(tmp_path / "clips"), frames=7).load().items
    assert (found.media[0].missing, found.media[0].frames) == (False, 7)
    assert gone.media[0].missing
    assert found.choices == ("one", "two")


@pytest.mark.parametrize("name", ["mathvista", "videomme"])
@pytest.mark.parametrize("method", FIVE)
def test_every_method_ends_with_complete_rows(name: str, method: str, tmp_path: Path) -> None:
    code = main([*COMMON, f"task={name}", f"method={method}", "limit=1", f"results_dir={tmp_path}"])
    assert code == 0
    for row in rows(tmp_path):
        assert row.status in (Status.ok, Status.invalid)
        assert [hop.index for hop in row.hops] == [0, 1, 2, 3]
        (shown,) = row.media
        assert shown.rows == (129 if name == "videomme" else 37)
        assert len(shown.frames) == (32 if name == "videomme" else 0)
        assert sum(hop.notes["media_encoded"] for hop in row.hops) == 1


def test_missing_media_are_rows_and_leave_the_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    source = write(tmp_path / "rows.jsonl", ROW | {"image": "gone.png"}, ROW, {**ROW, "image": None})
    words = [*COMMON, "task=mathvista", "method=full_reuse", f"task.source={source}", f"results_dir={tmp_path / 'r'}"]
    assert main(words) == 0
    assert "1 of 2 pictures and clips are not there" in capsys.readouterr().err
    found = rows(tmp_path / "r")
    assert [row.status == Status.missing for row in found] == [True, False, False]
    assert found[0].message == "the image gone.png is not there"
    assert [len(row.media) for row in found] == [0, 1, 0]
    assert all(len(row.hops) == 4 for row in found[1:])


def test_rows_of_one_run_show_the_same_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "rows.jsonl", ROW, ROW | {"question": "And now?"})
    (tmp_path / "a.png").write_bytes(picture(1))
    words = [*COMMON, "task=mathvista", "method=dense", f"task.source={source}", f"results_dir={tmp_path / 'r'}"]
    assert main(words) == 0
    (run,) = (tmp_path / "r").glob("*/*")
    (run / "summary.json").unlink()
    first = (run / "rows.jsonl").read_text().splitlines()[0] + "\n"
    (run / "rows.jsonl").write_text(first)
    (tmp_path / "a.png").write_bytes(picture(2))
    assert main(words) == 2
    assert "have changed" in capsys.readouterr().err
    (tmp_path / "a.png").write_bytes(picture(1))
    assert main(words) == 0
    assert len(rows(tmp_path / "r")) == 2


def test_a_question_about_text_runs_on_a_model_that_sees(tmp_path: Path) -> None:
    assert main([*COMMON, "task=gsm8k", "method=full_reuse", "limit=1", f"results_dir={tmp_path}"]) == 0
    (row,) = rows(tmp_path)
    assert row.media == []
    assert "media_encoded" not in row.hops[0].notes


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """What is said; no weights may be read."""
    with pytest.MonkeyPatch.context() as patch:
        for source in ("hf_tiny.Tiny", "hf_tiny_vlm.TinyVLM", "hf_smollm2.SmolLM2"):
            patch.setattr(f"harness.backends.{source}.load", lambda _: pytest.fail("weights were loaded"))
        assert main([*words, "tracking=none", f"results_dir={folder / 'r'}"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["mathvista", "videomme"])
@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_a_model_that_reads_text_only_is_refused(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, tmp_path, f"task={name}", f"model={model}", "limit=1")
    assert f"model={model} reads text only; choose model=llava_ov_7b, or model=tiny_vlm" in said


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "corrupt picture": ("mathvista", ROW | {"image": "bad"}, "rows.jsonl:1: the image bad cannot be decoded"),
    "corrupt clip": ("videomme", CLIP | {"video": "bad"}, "rows.jsonl:1: the video bad cannot be decoded"),
    "no frame": ("videomme", CLIP | {"video": "empty.avi"}, "rows.jsonl:1: the video empty.avi has no frame"),
    "no answer": ("mathvista", ROW | {"answer": ""}, "rows.jsonl:1: column 'answer' is empty"),
    "question type": ("mathvista", ROW | {"question_type": "essay"}, "must be one of multi_choice, free_form"),
    "choices": ("mathvista", ROW | {"question_type": "multi_choice"}, "must hold a list of 2 to 10 texts"),
    "precision": ("mathvista", ROW | {"precision": "high"}, "column 'precision' must hold a number"),
    "picture": ("mathvista", ROW | {"image": 3}, "column 'image' must hold a path"),
    "letter": ("videomme", CLIP | {"answer": "C"}, "column 'answer' must be A to B, found 'C'"),
    "options": ("videomme", CLIP | {"options": "one, two"}, "column 'options' must hold a list"),
    "columns": ("videomme", ROW, "missing column options; expected question, options, answer, found question"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_before_any_weights(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, row, says = BAD[case]
    (tmp_path / "bad").write_bytes(b"no picture, no clip")
    (tmp_path / "empty.avi").write_bytes(film(0, codec="ffv1", form="avi"))
    said = refused(capsys, tmp_path, *COMMON, f"task={name}", f"task.source={write(tmp_path / 'rows.jsonl', row)}")
    assert says in said
    assert said.count("\n") == 1


def test_other_columns_in_parquet_are_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"query": ["a"], "label": [1]}).to_parquet(str(tmp_path / "x.parquet"))
    with pytest.raises(UserError, match=r"missing column question, answer, .* found query, label"):
        task("mathvista", source=str(tmp_path / "x.parquet")).load()


def test_a_gated_set_says_how_to_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(*_: object, **__: object) -> None:
        cause = RuntimeError("401 Client Error. Access to dataset is restricted")
        raise datasets.exceptions.DatasetNotFoundError(
            "Dataset 'AI4Math/MathVista' is a gated dataset on the Hub. You must be authenticated to access it."
        ) from cause

    monkeypatch.setattr(datasets, "load_dataset", gated)
    with pytest.raises(UserError, match=r"is gated: accept its licence at .*AI4Math/MathVista and run `hf auth login`"):
        task("mathvista", source="hub").load()
    with pytest.raises(UserError, match=r"task.split=test is not a split of AI4Math/MathVista"):
        task("mathvista", source="hub", split="test").load()


@pytest.mark.skipif(not REAL.exists(), reason="the real data is not here")
def test_every_real_row_loads_and_lacks_its_picture() -> None:
    items = task("mathvista", source=str(REAL)).load().items
    assert len(items) == 500
    assert all(len(item.media) == 1 and item.media[0].missing for item in items)
