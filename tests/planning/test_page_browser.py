"""The page in a real browser: with the mouse, with the keyboard alone, narrow, dark, printed, and without scripts."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mila.planning import PlanReport
from mila.planning.page import write_page
from tests.planning.page_reports import inference_report, sweep_report, training_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
MISSING = (
    "playwright is not installed (pip install '.[browser]')"
    if importlib.util.find_spec("playwright") is None
    else "no chromium on this machine"
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason=MISSING),
]

LONG = "an_owner_with_a_name/" + "a_model_with_a_name_without_an_end_" * 8
REPORTS: dict[str, Callable[[], PlanReport]] = {
    "inference": inference_report,
    "training": training_report,
    "126 layers": lambda: inference_report(layers=126),
    "no budget": lambda: inference_report(layers=3, budget=None),
    "long name": lambda: inference_report(layers=3, target=LONG),
    "script": lambda: inference_report(layers=3, target="<script>alert(1)</script><img src=x onerror=alert(1)>"),
}
Open = Callable[..., AbstractContextManager[Any]]

# Every text that is shown, with its contrast against what is behind it (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
  const rgba = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return { r, g, b, a }; };
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ({ r, g, b }) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour.a === 1) return colour;
      if (colour.a !== 0) throw new Error('a background that shines through');
    }
    throw new Error('no background');
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode, element = text.parentElement;
    if (!text.data.trim() || element.closest('script, style, title, .said')) continue;
    if (!element.checkVisibility({ opacityProperty: true })) continue;
    const style = getComputedStyle(element);
    const ink = luminance(rgba(element.closest('svg') ? style.fill : style.color));
    const page = luminance(behind(element));
    const contrast = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    found.push([Math.round(contrast * 100) / 100, text.data.trim().slice(0, 40), element.className.toString()]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def open_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens the page of a report; when it is closed, nothing must have gone wrong or left the machine."""
    folder = tmp_path_factory.mktemp("pages")

    @contextmanager
    def opened(name: str = "inference", **options: Any) -> Iterator[Any]:
        file = folder / f"{name}.html"
        if not file.exists():
            report = REPORTS[name]()
            write_page(report, file, sweep=sweep_report(report))
        said: list[str] = []
        with browser.new_context(**options) as context:
            page = context.new_page()
            page.set_default_timeout(10_000)
            page.on("console", lambda message: said.append(f"console: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
            page.on("request", lambda request: said.append(f"request: {request.url}"))
            page.goto(file.as_uri())
            yield page
        assert said == [f"request: {file.as_uri()}"]

    return opened


def focused(page: Any) -> str:
    """The text, or the label, of what has the focus."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))


def column(page: Any, table: str, number: int) -> list[tuple[int, int]]:
    """Depths and bytes of the rows of a table, as they are shown."""
    rows = page.eval_on_selector_all(
        f"{table} tbody tr", f"rows => rows.map(row => [+row.dataset.depth || 0, +row.cells[{number}].dataset.b])"
    )
    return [(depth, size) for depth, size in rows]


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_opens_without_a_word(open_page: Open, name: str) -> None:
    with open_page(name) as page:
        assert page.locator("h1").inner_text() == REPORTS[name]().target.name
        assert page.locator(".map .view.shown").count() == 1


@pytest.mark.parametrize("with_keyboard", [False, True])
def test_a_head_sorts_and_turns_round(open_page: Open, with_keyboard: bool) -> None:
    with open_page() as page:
        head = page.locator("table.tree thead th", has_text="parameters")
        before = column(page, "table.tree", 2)
        for direction in ("descending", "ascending"):
            if with_keyboard:
                head.get_by_role("button").focus()
                page.keyboard.press("Enter" if direction == "descending" else "Space")
            else:
                head.get_by_role("button").click()
            assert head.get_attribute("aria-sort") == direction
            rows = column(page, "table.tree", 2)
            assert sorted(rows) == sorted(before) and rows[0] == before[0]
            for depth in (1, 2):
                siblings = [size for each, size in rows if each == depth]
                assert siblings == sorted(siblings, reverse=direction == "descending")
        assert page.locator("table.tree [aria-sort]").count() == 1
        page.get_by_role("button", name="component").first.click()
        assert page.locator("table.tree [aria-sort]").inner_text().startswith("component")


def test_children_stay_below_their_parents(open_page: Open) -> None:
    with open_page() as page:
        page.locator("table.tree thead").get_by_role("button", name="class").click()
        names = page.locator("table.tree tbody th").all_inner_texts()
        mlp = next(index for index, name in enumerate(names) if name.startswith("mlp"))
        assert {name.split()[0] for name in names[mlp + 1 : mlp + 3]} == {"fc_down", "fc_gate_up"}


def test_every_component_is_there_and_sorts(open_page: Open) -> None:
    with open_page("126 layers") as page:
        page.locator("#components summary").focus()
        page.keyboard.press("Enter")
        page.locator("#components details thead").get_by_role("button", name="parameters").click()
        sizes = [size for _, size in column(page, "#components details table", 2)]
        assert len(sizes) == len(REPORTS["126 layers"]().tree) and sizes == sorted(sizes, reverse=True)


def test_the_tree_opens_and_closes_with_the_keyboard(open_page: Open) -> None:
    with open_page() as page:
        rows = page.locator("table.tree tbody tr:visible")
        count = rows.count()
        group = page.locator("table.tree").get_by_role("button", name="block_0")
        group.focus()
        page.keyboard.press("Enter")
        assert group.get_attribute("aria-expanded") == "false" and rows.count() == count - 8
        page.locator("table.tree thead").get_by_role("button", name="parameters").click()
        assert rows.count() == count - 8
        group.press("Space")
        assert group.get_attribute("aria-expanded") == "true" and rows.count() == count


def test_the_map_is_walked_with_the_keyboard_alone(open_page: Open) -> None:
    with open_page() as page:
        here, top = page.locator(".view.shown"), page.evaluate("scrollY")
        page.locator(".view.shown .measures a").last.focus()
        page.keyboard.press("Tab")
        assert focused(page).startswith("block_0 … block_31")
        page.keyboard.press("Enter")
        assert here.get_attribute("aria-label").startswith("block_0 … block_31") and focused(page).startswith("mlp")
        page.keyboard.press("Enter")
        assert here.locator(".trail li").all_inner_texts()[2].startswith("mlp")
        page.keyboard.press("Escape")
        assert focused(page).startswith("mlp")
        page.keyboard.press("Escape")
        assert focused(page).startswith("block_0 … block_31")
        page.keyboard.press("Escape")
        assert here.get_attribute("aria-label").startswith("model: everything")
        here.locator(".measures a", has_text="state").focus()
        page.keyboard.press("Enter")
        assert here.get_attribute("aria-label").startswith("model: state") and focused(page) == "state"
        assert page.evaluate("scrollY") >= top and page.evaluate("location.hash") == ""


def test_the_map_is_walked_with_the_mouse(open_page: Open) -> None:
    with open_page("training") as page:
        here = page.locator(".view.shown")
        assert here.locator(".trail").inner_text().split() == ["all", "model"]
        here.locator("a.tile").first.click(position={"x": 5, "y": 5})
        assert here.locator(".trail a").count() == 2
        here.locator(".trail a").first.click()
        assert here.get_attribute("aria-label").startswith("all")
        for name in ("parameters", "gradients", "state", "fullest step", "everything"):
            here.locator(".measures a", has_text=name).click()
            assert here.locator(".measures [aria-current]").inner_text() == name


def test_areas_are_in_proportion_on_the_screen(open_page: Open) -> None:
    with open_page(viewport={"width": 1280, "height": 900}) as page:
        boxes = page.eval_on_selector_all(
            ".view.shown .tiles li",
            "items => items.map(li => [li.getBoundingClientRect(), li.querySelector('.tile').title])",
        )
        shares = [float(title.split("\n")[0].rsplit(", ", 1)[1].removesuffix(" %")) for _, title in boxes]
        areas = [box["width"] * box["height"] for box, _ in boxes]
        for share, area in zip(shares, areas, strict=True):
            assert area / sum(areas) * 100 == pytest.approx(share, abs=0.2)


def test_the_budget_covers_no_label_and_is_where_its_bytes_are(open_page: Open) -> None:
    with open_page(viewport={"width": 1280, "height": 900}) as page:
        line, bar = page.locator(".budget").bounding_box(), page.locator(".segments").bounding_box()
        verdict = REPORTS["inference"]().verdict
        assert verdict.budget_bytes is not None
        assert (line["x"] - bar["x"]) / bar["width"] == pytest.approx(
            verdict.budget_bytes / verdict.needed_bytes, abs=0.003
        )
        for label in page.locator(".segment .label b").all():
            box = label.bounding_box()
            assert box is None or box["x"] > line["x"] or box["x"] + box["width"] < line["x"] + line["width"]


@pytest.mark.parametrize(
    ("name", "width"), [("inference", 360), ("training", 320), ("training", 768), ("long name", 360)]
)
def test_no_window_is_too_narrow(open_page: Open, name: str, width: int) -> None:
    with open_page(name, viewport={"width": width, "height": 740}) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        views = page.locator(".view").count()
        for number in range(views):
            page.evaluate(
                "number => document.querySelectorAll('.view')"
                ".forEach((view, index) => view.classList.toggle('shown', index === number))",
                number,
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            "() => [...document.querySelectorAll('body *')]"
            ".filter(each => !each.closest('.scroll, .said, .tiles, .segments'))"
            ".filter(each => each.getBoundingClientRect().right > innerWidth + 1)"
            ".map(each => each.outerHTML.slice(0, 80))"
        )
        assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["inference", "training"])
def test_every_text_stands_out(open_page: Open, name: str, scheme: str) -> None:
    with open_page(name, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 200 and [each for each in contrasts if each[0] < 4.5] == []
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark is (scheme == "dark")


def test_the_focus_goes_through_the_page_in_order_and_is_seen(open_page: Open) -> None:
    with open_page() as page:
        places: list[int] = []
        while True:
            page.keyboard.press("Tab")
            place, outline, kind = page.evaluate(
                "() => { const here = document.activeElement, style = getComputedStyle(here);"
                " return [[...document.querySelectorAll('*')].indexOf(here),"
                " style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth), here.tagName]; }"
            )
            if kind == "BODY" or (places and place <= places[0]):
                break
            assert outline >= 2, page.evaluate("document.activeElement.outerHTML")
            places.append(place)
            assert len(places) < 200
        assert places == sorted(places)
        missed = page.evaluate(
            "() => [...document.querySelectorAll('a, button, input, summary, [tabindex=\"0\"]')]"
            ".filter(each => each.checkVisibility()).length"
        )
        assert len(places) == missed
        assert page.evaluate("() => [...document.querySelectorAll('button, a')].every(each => each.textContent.trim())")


def test_without_scripts_everything_is_there(open_page: Open) -> None:
    with open_page(java_script_enabled=False, viewport={"width": 1280, "height": 900}) as page:
        report = REPORTS["inference"]()
        assert page.locator("button").count() == 0
        for selector in (".segments", "table.lines >> nth=0", "svg.plot.wide", "table.tree", ".view.first"):
            assert page.locator(selector).is_visible()
        assert page.locator("table.tree tbody tr:visible").count() == 13
        assert page.locator(".view:visible").count() == 1
        page.locator(".view.first a.tile").first.focus()
        page.keyboard.press("Enter")
        assert page.locator(".view:visible .trail").inner_text().split()[:2] == ["model", "block_0"]
        page.go_back()
        assert page.locator(".view:visible .trail").inner_text() == "model"
        page.locator("#components summary").click()
        assert page.locator("#components details tbody tr:visible").count() == len(report.tree)


def test_printed_it_is_light_and_without_controls(open_page: Open) -> None:
    with open_page(color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator(".options").is_hidden() and page.locator(".withcopy button").first.is_hidden()
        assert [each for each in page.evaluate(CONTRASTS) if each[0] < 4.5] == []
        assert page.pdf().startswith(b"%PDF-")


def test_nothing_moves_where_that_is_not_wanted(open_page: Open) -> None:
    with open_page(reduced_motion="reduce") as page:
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        durations = page.evaluate(
            "() => [...document.querySelectorAll('*')].map(each => getComputedStyle(each))"
            ".flatMap(style => [style.transitionDuration, style.animationDuration])"
        )
        assert {*durations} == {"0s"}


def test_exact_bytes_and_back(open_page: Open) -> None:
    with open_page() as page:
        cell, box = page.locator("table.tree tbody tr:first-child td >> nth=1"), page.get_by_label("exact bytes")
        before, size = cell.inner_text(), REPORTS["inference"]().parameter_bytes
        box.focus()
        page.keyboard.press("Space")
        assert cell.inner_text() == f"{size:,}"
        page.keyboard.press("Space")
        assert cell.inner_text() == before


def test_a_command_is_copied(open_page: Open, tmp_path: Path) -> None:
    with open_page(permissions=["clipboard-read", "clipboard-write"]) as page:
        row = page.locator(".remedies .withcopy").first
        row.get_by_role("button").press("Enter")
        row.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == row.locator("code").inner_text()
