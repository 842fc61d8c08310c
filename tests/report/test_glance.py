"""What is seen without scrolling, and how the page speaks: one sentence, one chart, one table; short sentences."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from report_results import add_results
from report_runs import make_run

from steppe.report import write_report

MOST_WORDS = 25


@pytest.fixture(scope="module")
def study_page(study_runs, tmp_path_factory):
    runs, study = study_runs
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html", study=study)


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_sentence_chart_and_table_are_above_the_fold(show, study_page, width, height):
    page = show(study_page, width=width)
    for part in (".headline", "#plot-cost", ".short table"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= height, part
    assert page.locator(".headline").count() == 1
    assert page.locator(".short tbody tr").count() == 6
    assert page.locator("#answer details[open]").count() == 0


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_single_run_shows_its_curve_and_figures(show, new_run, tmp_path, width, height):
    page = show(write_report([new_run()], tmp_path / "r.html"), width=width)
    for part in (".headline", "#plot-curves .plot", ".short table"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= height, part
    assert page.locator(".short tbody tr").first.inner_text().startswith("Test accuracy")


def test_explanations_open(show, study_page):
    page = show(study_page)
    details = page.locator("#cost details", has_text="How is this computed?")
    assert not details.locator("p").first.is_visible()
    details.locator("summary").click()
    assert "Each point is a row of the table" in details.inner_text()


class Paragraphs(HTMLParser):
    """Collects the texts of paragraphs and the like, without code."""

    BLOCKS = ("p", "li", "figcaption", "dd", "th", "td", "h1", "h2", "h3", "summary")

    def __init__(self):
        super().__init__()
        self.found, self.depth = [], []

    def handle_starttag(self, tag, attrs):
        self.depth.append(tag) if tag not in ("meta", "link", "input", "img", "path", "br") else None
        if tag in self.BLOCKS:
            self.found.append("")

    def handle_endtag(self, tag):
        while self.depth and self.depth.pop() != tag:
            pass

    def handle_data(self, data):
        if self.found and not {"script", "style", "pre", "code", "q"} & set(self.depth):
            self.found[-1] += data


def test_no_sentence_is_longer_than_25_words(study_runs, tmp_path):
    runs, study = study_runs
    measured = [make_run(tmp_path, values={"minimizer": {"name": m}}) for m in ("base", "sam")]
    for run, sharpness in zip(measured, (2.0, 0.5), strict=True):
        add_results(run, sharpness)
    claims = [{"text": "a", "verdict": "holds"}, {"text": "b", "verdict": "undecided"}]
    pages = [
        write_report(runs[:-1], tmp_path / "a.html", study=study, comparison={"claims": claims}),
        write_report(measured, tmp_path / "b.html"),
    ]
    sentences = []
    for page in pages:
        reader = Paragraphs()
        reader.feed(page.read_text())
        sentences += [
            part for text in reader.found for part in re.split(r"(?<=[.?!])\s+(?=[A-Z★])", " ".join(text.split()))
        ]
    assert len(sentences) > 200
    assert [one for one in sentences if len(one.split()) > MOST_WORDS] == []


# -- charts ---------------------------------------------------------------------------------------------------------


def test_dragging_zooms_and_a_double_click_resets(show, study_page):
    page = show(study_page)
    ticks = "[...document.querySelectorAll('#plot-cost .xtick')].map((t) => Number(t.textContent))"
    before = page.evaluate(ticks)
    box = page.locator("#plot-cost").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 320, box["y"] + 200, steps=4)
    page.mouse.up()
    inside = page.evaluate(ticks)
    assert max(inside) < max(before)
    assert min(inside) > min(before)
    page.locator("#plot-cost").dblclick(position={"x": 300, "y": 150})
    assert page.evaluate(ticks) == before


def test_pointer_names_the_nearest_point(show, study_page):
    page = show(study_page)
    page.locator("#plot-cost .point").last.hover(force=True)
    tip = page.locator("#plot-cost .tip")
    assert tip.is_visible()
    assert "training time, seconds" in tip.inner_text()
    page.mouse.move(2, 2)
    assert tip.is_hidden()


def test_a_figure_is_saved_as_a_picture(show, study_page):
    page = show(study_page)
    page.locator("#plot-cost").hover()
    with page.expect_download() as download:
        page.locator("#plot-cost .save").click()
    assert download.value.suggested_filename == "plot-cost.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_charts_follow_the_width_of_the_window(show, study_page):
    page = show(study_page)
    drawn = "document.querySelector('#plot-cost svg').getAttribute('width')"
    wide = float(page.evaluate(drawn))
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(f"() => {drawn} < 500")
    assert float(page.evaluate(drawn)) < wide


def test_short_table_says_which_rows_differ(new_run, tmp_path):
    found = [("best", (0.96, 0.97, 0.98)), ("near", (0.96, 0.965, 0.97)), ("far", (0.80, 0.81, 0.82)), ("one", (0.9,))]
    runs = [
        new_run(
            values={"model": {"name": name}, "seed": seed},
            summary={"test": {"accuracy": accuracy, "examples": 100_000}},
        )
        for name, accuracies in found
        for seed, accuracy in enumerate(accuracies)
    ]
    text = write_report(runs, tmp_path / "r.html").read_text()
    table = text.split('<div class="short')[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr")[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("best", "–"),
        ("near", "not significant"),
        ("one", "one seed"),
        ("far", "significant"),
    ]
    assert json.dumps(rows[0][1]) == json.dumps("97.0 ± 1.0")
