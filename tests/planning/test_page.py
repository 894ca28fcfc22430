"""The page of a plan: one file that says what the report says, whatever stands in the names."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mila.errors import ConfigurationError
from mila.memory import format_bytes
from mila.planning import PlanReport
from mila.planning.page import page_html, write_page
from mila.planning.page.commands import plan_words, shell_word
from mila.planning.report import Outcome
from tests.planning.page_reports import GIB, inference_report, sweep_report, training_report

REPORTS = {
    "inference": inference_report(),
    "training": training_report(),
    "126 layers": inference_report(layers=126),
    "no budget": inference_report(budget=None),
    "nothing to say": inference_report().model_copy(
        update={"tree": [], "limits": [], "remedies": [], "elsewhere": [], "assumptions": []}
    ),
}
VOID = {"meta", "br", "input"}
EVIL = "<script>alert('a&b')</script>\"\x1b[2J\u202ex\x00\ud800"


class Page(HTMLParser):
    """Elements that are opened and closed in turn, with attributes and texts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.rows and self.open and {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@cache
def page_of(name: str) -> Page:
    return Page(page_html(REPORTS[name]))


def plan_command(report: PlanReport, options: str = "") -> str:
    return " ".join(map(shell_word, plan_words(report, options)))


def text_of(html: str) -> str:
    return " ".join(Page(html).texts)


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_well_formed_and_alone(name: str) -> None:
    html = page_html(REPORTS[name], sweep=sweep_report(REPORTS["inference"]))
    page = Page(html)
    assert page.open == []
    identifiers = page.values("id")
    assert len(identifiers) == len({*identifiers})
    links = page.values("href")
    assert all(link[0] == "#" and link[1:] in identifiers for link in links)
    assert not page.values("src") and not re.search(r"url\(|@import|https?://", html)
    assert [name for _, name, _ in page.attributes if name.startswith("on")] == []


def test_the_policy_allows_the_script_of_the_page_and_nothing_else() -> None:
    html = page_html(REPORTS["inference"])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for value in Page(html).values("content") if value.startswith("default-src"))
    assert policy.split("; ")[:3] == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{checksum}'",
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_shows_every_exact_line_and_their_sum(name: str) -> None:
    report = REPORTS[name]
    shown = {row[0]: row[1] for row in page_of(name).rows if len(row) == 4}
    for line in report.lines:
        assert shown[f"{line.label}{line.detail}"] == f"{line.bytes:,}"
    assert sum(line.bytes for line in report.lines) == report.reserved_bytes
    assert shown["Reservedexactly what Mila takes from the system"] == f"{report.reserved_bytes:,}"
    for line in report.fullest_step.lines:
        assert shown[line.label] == f"{line.bytes:,}"
    assert shown[f"Alive{report.fullest_step.step}"] == f"{report.fullest_step.bytes:,}"
    for other in report.elsewhere:
        (size,) = [size for label, size in shown.items() if label.startswith(other.label)]
        assert size == ("not measured" if other.bytes is None else f"{other.bytes:,}")


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_says_what_the_report_says(name: str) -> None:
    report = REPORTS[name]
    said = " ".join(page_of(name).texts)
    for text in (
        report.target.name,
        f"{report.target.parameters:,}",
        format_bytes(report.verdict.needed_bytes),
        report.fullest_step.step,
        *report.assumptions,
        *report.target.notes,
        *(remedy.label for remedy in report.remedies),
    ):
        assert text in said
    for options in ("", *(remedy.options for remedy in report.remedies)):
        assert plan_command(report, options) in "".join(page_of(name).texts)


def test_a_command_breaks_between_its_words_only() -> None:
    report = inference_report(target="my-model/$(x) <b>")
    expected = [shlex.quote(word) for word in shlex.split(plan_command(report))]
    words = re.findall(r'<span class="word">(.*?)</span>', page_html(report).partition("<footer>")[2])
    assert [unescape(word) for word in words] == expected
    assert re.search(r"\.command \.word \{[^}]*display: inline-block", page_html(report))


def test_what_fits_without_something_that_nobody_measured_says_so() -> None:
    words = "without CUDA context (not measured)"
    assert f"Fits, {words}: needs " in text_of(page_html(inference_report(budget=64 * GIB)))
    assert words not in text_of(page_html(inference_report()))


def test_the_page_of_a_sweep_begins_with_all_of_its_plans() -> None:
    report = inference_report(context=1024)
    sweep = sweep_report(report)
    html = page_html(report, sweep=sweep, of_sweep=True)
    text = text_of(html[html.index("<header>") : html.index("</footer>")] + "</footer>")
    places = [
        text.index(words)
        for words in (
            "of 17 plans fit in 40.00 GiB, without CUDA context (not measured)",
            "Over context and dtype",
            "The first of 17 plans: context 1,024, float32",
            "needs ",
            "What it takes",
            "The first of these plans again",
        )
    ]
    assert places == sorted(places)
    assert text.count(" varies ") == 2
    assert " prefill " not in text.partition("Over context")[0]
    unknown = sweep.model_copy(update={"budget_bytes": None})
    assert "17 plans: cannot tell" in text_of(page_html(report, sweep=unknown, of_sweep=True))
    assert "The first of" not in text_of(page_html(report, sweep=sweep))


def test_the_page_of_a_sweep_over_modes_has_the_choices_of_each() -> None:
    training = training_report()
    sweep = sweep_report(training)
    choices = [training.choices, inference_report().choices]
    points = [
        point.model_copy(update={"options": {"mode": each.mode.value}, "choices": each})
        for point, each in zip(sweep.points[:2], choices, strict=True)
    ]
    sweep = sweep.model_copy(update={"varied": ["mode"], "points": points})
    text = " ".join(text_of(page_html(training, sweep=sweep, of_sweep=True)).split())
    for words in ("mode varies", "prefill in inference 512", "optimizer in training adamw", "accumulate in training 4"):
        assert words in text


def test_a_point_that_no_memory_addresses_is_called_that() -> None:
    sweep = sweep_report(inference_report())
    points = [
        point.model_copy(update={"outcome": outcome, "problem": "too much"})
        for point, outcome in zip(sweep.points[-1:] * 2, (Outcome.DOES_NOT_FIT, Outcome.UNKNOWN), strict=True)
    ]
    page = Page(page_html(inference_report(), sweep=sweep.model_copy(update={"points": [*sweep.points[:1], *points]})))
    assert [row[-1] for row in page.rows if row[-1].endswith("too much")] == ["does not fit: too much", "too much"]


def test_what_is_elsewhere_can_be_told_apart() -> None:
    """In the bar and in the table, which are filled alike."""
    report = inference_report(budget=64 * GIB)
    lines = [each.model_copy(update={"bytes": GIB, "is_counted": True}) for each in report.elsewhere]
    html = page_html(report.model_copy(update={"elsewhere": lines}))
    filled = [re.findall(rf'class="{kind} elsewhere (hatch-\d)', html) for kind in ("segment", "swatch")]
    assert filled == [["hatch-0", "hatch-1", "hatch-2"]] * 2
    assert all(f".{name} {{" in html for name in (*filled[0], "hatch-3"))
    plain = page_html(report)
    assert (plain.count("elsewhere hatch-"), plain.count("swatch elsewhere")) == (2, 3)


def test_that_nothing_helps_is_said_where_something_was_looked_for() -> None:
    tight = inference_report(budget=GIB).model_copy(update={"remedies": []})
    assert tight.limits
    words = "No change of up to 3 options makes it fit."
    assert words in text_of(page_html(tight))
    assert words not in text_of(page_html(tight.model_copy(update={"limits": []})))


@pytest.mark.parametrize("name", ["inference", "training", "126 layers"])
def test_a_page_has_a_row_for_every_component(name: str) -> None:
    report = REPORTS[name]
    rows = {row[0]: row[1:] for row in page_of(name).rows if row and "." in row[0]}
    for row in report.tree:
        if "." in row.path:
            assert rows[row.path][:2] == [
                row.component,
                format_bytes(row.parameter_bytes) if row.parameter_bytes else "0",
            ]


def test_repeated_layers_are_one_row_with_their_sum() -> None:
    report = REPORTS["126 layers"]
    layers = [row for row in report.tree if row.component == "LlamaBlock"]
    row = next(row for row in page_of("126 layers").rows if row[0].startswith("block_0 … block_125"))
    assert row[1:4] == [
        "LlamaBlock",
        format_bytes(sum(layer.parameter_bytes for layer in layers)),
        format_bytes(sum(layer.state_bytes for layer in layers)),
    ]


def test_a_page_of_many_layers_is_small() -> None:
    assert len(page_html(REPORTS["126 layers"], sweep=sweep_report(REPORTS["126 layers"])).encode()) < 1_500_000


def test_names_cannot_break_out() -> None:
    report = inference_report(layers=2, target=EVIL)
    tree = [row.model_copy(update={"path": f"{row.path}{EVIL}", "component": EVIL}) for row in report.tree]
    line = report.lines[0].model_copy(update={"label": EVIL, "detail": EVIL, "key": '" onload="x'})
    step = report.fullest_step.model_copy(update={"step": EVIL})
    remedy = report.remedies[0].model_copy(update={"label": EVIL})
    report = report.model_copy(
        update={
            "tree": tree,
            "lines": [line, *report.lines[1:]],
            "fullest_step": step,
            "assumptions": [EVIL],
            "remedies": [remedy],
            "elsewhere": [each.model_copy(update={"label": EVIL, "source": EVIL}) for each in report.elsewhere],
        }
    )
    sweep = sweep_report(report)
    point = sweep.points[-1].model_copy(update={"options": {"context": 1, "dtype": EVIL}, "problem": EVIL})
    html = page_html(report, sweep=sweep.model_copy(update={"points": [*sweep.points, point]}))
    page = Page(html)
    assert page.open == [] and html.count("<script") == 1
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert not set(html) & set("\x1b\x00\u202e\ud800")
    assert "<script>alert('a&b')</script>\"\\x1b[2J\\u202ex\\x00\\ud800" in text_of(html)
    html.encode()


def test_a_page_is_written_whole_and_replaces_pages_only(tmp_path: Path) -> None:
    report, file = REPORTS["inference"], tmp_path / "plan.html"
    write_page(report, file)
    first = file.read_text("utf-8")
    assert first == page_html(report)
    write_page(REPORTS["training"], file)
    assert file.read_text("utf-8") != first
    file.write_bytes(b"")
    write_page(report, str(file))
    assert file.read_text("utf-8") == first and [each.name for each in tmp_path.iterdir()] == ["plan.html"]
    for content in (b"<!doctype html>\n<html>mine</html>", b"notes", first.encode()[1:]):
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match="expected a free name or a page of a plan to replace"):
            write_page(report, file)
        assert file.read_bytes() == content
    with pytest.raises(
        ConfigurationError, match=r"expected a file that ends in \.html for the page, got 'model\.json'"
    ):
        write_page(report, tmp_path / "model.json")


def with_choices(report: PlanReport, *, tied: bool, prefill: int) -> PlanReport:
    target = report.target.model_copy(update={"tie_word_embeddings": tied, "ignore_fields": ["a", "-b"]})
    choices = report.choices.model_copy(update={"prefill": prefill})
    return report.model_copy(update={"target": target, "choices": choices})


@pytest.mark.parametrize(
    ("report", "options", "command"),
    [
        (
            inference_report(target="my model/$(x)"),
            "--context 256",
            "mila plan 'my model/$(x)' --batch 1 --dtype bfloat16 --device cuda:0 --budget 16GiB --context 256",
        ),
        (
            inference_report(budget=16 * GIB + 1),
            "--dtype float16 --batch 2",
            "mila plan llama-3.1-8b --context 32768 --device cuda:0 --budget 17179869185 --dtype float16 --batch 2",
        ),
        (
            with_choices(inference_report(target="-x\n"), tied=False, prefill=700),
            "--context 256",
            "mila plan --batch 1 --dtype bfloat16 --prefill 256 --device cuda:0 --budget 16GiB --context 256"
            " --no-tie-word-embeddings --ignore-field=a --ignore-field=-b -- $'-x\\012'",
        ),
        (
            training_report(),
            "",
            "mila plan small --mode training --context 1024 --batch 1 --dtype bfloat16 --accumulate 4 --budget 640GiB",
        ),
    ],
)
def test_a_command_asks_for_the_same_plan_with_a_change(report: PlanReport, options: str, command: str) -> None:
    assert plan_command(report, options) == command
