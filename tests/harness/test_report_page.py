"""The page in a real browser: no errors, everything visible, nothing wider than the screen, tables that sort."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import write_experiment, write_run

from harness.report.__main__ import main
from harness.report.exhibit import Point

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra kvcmas[test])")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    for name in ("ablate_rank", "shared_length"):
        write_experiment(root / "runs", name, n=4)
    broken = write_run(root / "runs", Point(("method=kvcmas",)), n=3)
    (broken / "summary.json").unlink()
    assert main([str(root / "runs"), "--out", str(root / "out"), "--analyses", str(root)]) == 0
    return root / "out" / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_everything_is_shown_without_an_error(page_file: Path, browser: Any, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, errors = context.new_page(), list[str]()
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else errors.append(asked.url))
    page.goto(page_file.as_uri())
    assert page.locator("figure svg").count() >= 8
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for kind in ("figure svg", "table"):
        for found in page.locator(kind).all():
            box = found.bounding_box()
            assert box is not None
            assert box["width"] > 150
            assert box["height"] > 50
    # tables scroll inside their frames; the page itself does not
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    assert not errors
    context.close()


def test_tables_of_runs_fit_a_wide_screen(page_file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(page_file.as_uri())
    boxes = page.locator(".scroll:has(table[data-name^=ablate_rank]), .scroll:has(table[data-name^=shared_length])")
    assert boxes.count() == 2
    for box in boxes.all():
        assert box.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    page.close()


def test_all_runs_fit_a_wide_screen_and_show_their_commands_whole_when_asked(page_file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details:has(table)').forEach(d => d.open = true)")
    box = page.locator(".scroll:has(table[data-name=runs])")
    assert box.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert max(row.bounding_box()["height"] for row in box.locator("tbody tr").all()) < 60  # two lines
    command = box.locator("tbody tr code").first
    assert not command.is_visible()
    box.locator("tbody tr summary").first.click()
    assert command.inner_text().startswith("python -m harness -m +experiment=")
    assert command.bounding_box()["width"] > 250
    assert command.evaluate("e => e.scrollWidth <= e.clientWidth")
    page.close()


def test_figures_can_be_read_on_a_small_screen(page_file: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(page_file.as_uri())
    assert page.evaluate(SMALLEST) >= 10
    page.close()


SMALLEST = """() => Math.min(...[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll('text')].map(text => scale * parseFloat(getComputedStyle(text).fontSize)); }))"""


CONTRAST = """() => {
  const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255).map(x => x <= .03928 ? x / 12.92
    : ((x + .055) / 1.055) ** 2.4); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const worst = [...document.querySelectorAll('p, td, th, h2, a, figure svg text')].map(e => {
    const style = getComputedStyle(e), own = e.tagName === 'text' && style.fill !== 'none' ? style.fill : style.color;
    const x = light(own); return (Math.max(x, page) + .05) / (Math.min(x, page) + .05); });
  return Math.min(...worst);
}"""


def test_a_table_sorts_by_number_and_back(page_file: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    table = page.locator("table[data-name^=ablate_rank]").first
    heads = table.locator("th button").all_inner_texts()
    at = heads.index("KL, nats")
    for turn, sign in (("ascending", 1), ("descending", -1)):
        table.locator("th button").nth(at).click()
        cells = [row.locator("td").nth(at).get_attribute("data-v") for row in table.locator("tbody tr").all()]
        values = [float(cell) for cell in cells if cell is not None]
        assert values == sorted(values, key=lambda v: sign * v)
        assert table.locator("th").nth(at).get_attribute("aria-sort") == turn
    page.close()


@pytest.mark.parametrize("width", [400, 1400])
def test_sections_are_reached_from_the_top(page_file: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(page_file.as_uri())
    links = page.locator("nav a")
    if width == 400:
        assert not links.first.is_visible()
        page.locator("nav summary").click()
    assert links.count() == page.locator("main section").count()
    for link in links.all():
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    last = links.nth(links.count() - 2)
    target = last.get_attribute("href")
    last.click()
    page.wait_for_function(f"Math.abs(document.querySelector('{target}').getBoundingClientRect().top) < 600")
    assert links.first.is_visible() is (width == 1400)
    page.close()


@pytest.mark.parametrize("name", ["paper", "ablate_rank"])
def test_a_wide_table_scrolls_in_its_box_beside_its_first_column(page_file: Path, browser: Any, name: str) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(page_file.as_uri())
    box = page.locator(f".scroll:has(table[data-name^={name}])").first
    assert box.evaluate("e => e.scrollWidth > e.clientWidth + 100")
    box.evaluate("e => { e.scrollLeft = 200; }")
    first, frame = box.locator("tbody td").first.bounding_box(), box.bounding_box()
    assert first is not None
    assert frame is not None
    assert abs(first["x"] - frame["x"]) <= 2
    assert 90 <= first["width"] <= 200
    page.close()


def test_a_broken_folder_and_missing_runs_are_on_the_page(page_file: Path) -> None:
    text = page_file.read_text()
    assert "not complete: 3 rows and no summary.json" in text
    assert "No runs yet. This makes them" in text
