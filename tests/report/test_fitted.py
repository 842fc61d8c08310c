"""The page of a search: its moments, its candidates, and the mistakes of its winner as pictures."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from report_runs import make_run

from steppe.report import write_report
from steppe.report.fitted import draw_search, explain_search, list_mistakes, read_search, tell_search
from steppe.report.page import render
from steppe.report.record import read_records
from steppe.report.studies import StudyRuns, summarise_studies
from steppe.runs import Answers, write_answers

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]


def say(sentence):
    return "".join(text for text, _ in sentence)


@pytest.fixture
def searched(tmp_path):
    """A search of two probes and a fine-tuned network, whose winner made three mistakes among 20 answers."""
    folder = tmp_path / "fit"
    names = ("probe96", "probe288", "tuned")
    tested = {"test": {"accuracy": 0.85, "loss": 0.5, "examples": 20}}
    runs = [
        make_run(
            folder,
            values={"model": {"name": name}},
            summary=tested if name == "probe288" else {"test": None},
            name=name,
        )
        for name in names
    ]
    moments = [
        {"at_s": 45.3, "kind": "probe", "words": "lite0, 96 px", "accuracy": 0.86, "run": "probe96"},
        {"at_s": 111.2, "kind": "probe", "words": "lite0, 288 px", "accuracy": 0.894, "run": "probe288"},
        {"at_s": 403.0, "kind": "fine-tuning", "words": "fine-tuned lite0, 96 px", "accuracy": 0.6, "run": "tuned"},
    ]
    about = {"moments": moments, "best": "probe288", "budget_s": 480.0, "elapsed_s": 470.0, "answer": "As it is."}
    (folder / "fit.json").write_text(json.dumps(about))
    best = runs[1]
    best.write("data.json", best.read("data.json") | {"classes": ["cat", "dog", "grey_fox"]})
    mistakes = [{"label": k, "answer": (k + 1) % 3, "confidence": 0.99 - k / 10} for k in range(3)]
    counts = [[0, 7, 1, 1], [1, 5, 2, 1], [0, 1, 2, 5]]
    best.write("mistakes.json", {"examples": 20, "counts": counts, "mistakes": mistakes})
    sheet = Image.new("RGB", (480, 160))
    for place, colour in enumerate(COLOURS):
        sheet.paste(colour, (160 * place, 0, 160 * place + 160, 160))
    sheet.save(best.path / "mistakes.jpg", quality=95)
    return folder, runs


def part_of(runs):
    return StudyRuns(read_records(runs))


def test_search_is_read_with_its_moments_in_order(searched):
    folder, runs = searched
    search = read_search(part_of(runs))
    assert [one.at_s for one in search.moments] == [45.3, 111.2, 403.0]
    assert [one.name for one in search.moments] == ["lite0, 96 px", "lite0, 288 px", "lite0, 96 px"]
    assert (search.best, search.budget_s, search.elapsed_s) == ("probe288", 480.0, 470.0)
    (folder / "fit.json").write_text('{"moments": [{"at_s": "x"}, 3, {"at_s": 1, "accuracy": 7}]}')
    assert read_search(part_of(runs)) is None, "nothing that could be drawn"
    (folder / "fit.json").write_text("{damaged")
    assert read_search(part_of(runs)) is None
    (folder / "fit.json").unlink()
    assert read_search(part_of(runs)) is None


def test_search_is_told_by_its_test_accuracy(searched):
    _, runs = searched
    part = part_of(runs)
    (head,), more = tell_search(read_search(part), summarise_studies([part]))
    assert say(head) == "lite0, 288 px gets 85.0 % of 20 test images right."
    assert say(more[0]) == "It is the best of 3 candidates: 89.4 % on validation images (probe)."
    assert say(more[1]) == "It was ready after 1 min 51 s; the search took 7 min 50 s of 8 min 00 s."


def test_soup_has_a_mark_of_its_own(searched):
    folder, runs = searched
    about = json.loads((folder / "fit.json").read_text())
    words = "average of 3 fine-tuned lite0, 96 px"
    about["moments"].append({"at_s": 450.0, "kind": "soup", "words": words, "accuracy": 0.95, "run": "soup"})
    (folder / "fit.json").write_text(json.dumps(about | {"best": "soup"}))
    part = part_of(runs)
    search = read_search(part)
    assert draw_search(search, [])["kinds"] == ["probe", "fine-tuning", "soup"]
    (head,), more = tell_search(search, summarise_studies([part]))
    assert say(head) == f"{words} leads so far: 95.0 % of the validation images."
    assert say(more[0]).endswith("(soup).")
    assert "A soup averages the weights of several fine-tuned networks." in explain_search(search)


def test_search_without_a_test_names_its_leader(searched):
    folder, runs = searched
    about = json.loads((folder / "fit.json").read_text())
    del about["best"], about["elapsed_s"]
    (folder / "fit.json").write_text(json.dumps(about))
    part = part_of(runs)
    (head,), _ = tell_search(read_search(part), summarise_studies([part]))
    assert say(head) == "lite0, 288 px leads so far: 89.4 % of the validation images."


def test_mistakes_come_with_their_pictures(searched):
    _, runs = searched
    (found,) = list_mistakes(read_records(runs), {})
    assert [(one["label"], one["answer"]) for one in found["entries"]] == [
        ("cat", "dog"),
        ("dog", "grey fox"),
        ("grey fox", "cat"),
    ]
    assert [one["confidence"] for one in found["entries"]] == [
        "99.0\N{NO-BREAK SPACE}%",
        "89.0\N{NO-BREAK SPACE}%",
        "79.0\N{NO-BREAK SPACE}%",
    ]
    for one, colour in zip(found["entries"], COLOURS, strict=True):
        head, data = one["src"].split(",")
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        assert head == "data:image/jpeg;base64"
        assert picture.size == (160, 160)
        assert np.abs(np.asarray(picture).mean(axis=(0, 1)) - colour).max() < 12


def test_page_says_that_the_pictures_are_gone(searched, tmp_path):
    _, runs = searched
    text = write_report(runs, tmp_path / "with.html").read_text()
    assert text.count("data:image/jpeg") == 3
    assert "The pictures are not in this run folder" not in text
    for content in (None, b"no picture"):
        (runs[1].path / "mistakes.jpg").unlink(missing_ok=True)
        if content:
            (runs[1].path / "mistakes.jpg").write_bytes(content)
        text = write_report(runs, tmp_path / "r.html").read_text()
        assert "data:image/jpeg" not in text
        assert "The pictures are not in this run folder" in text
        assert "taken for <em>grey fox</em>, 89.0" in text


def test_mistakes_that_the_answers_contradict_are_left_out(searched):
    _, runs = searched
    labels = np.array([0, 0, 1], np.int32)
    write_answers(runs[1].path, Answers(np.array([0, 1, 1], np.int32), labels, np.zeros(3, np.float32)))
    (found,) = list_mistakes(read_records(runs), {})
    assert [(one["label"], one["answer"]) for one in found["entries"]] == [("cat", "dog")]


@pytest.mark.parametrize(
    "content", ['{"mistakes": 3}', '{"mistakes": [4, {"label": "x"}], "counts": [[1]]}', "[", "{}"]
)
def test_odd_mistakes_are_tolerated(searched, content):
    _, runs = searched
    (runs[1].path / "mistakes.json").write_text(content)
    assert list_mistakes(read_records(runs), {}) == []
    assert 'id="mistakes"' not in render([part_of(runs)])


def test_confusion_matrix_of_a_search_is_of_its_test(searched):
    _, runs = searched
    text = render([part_of(runs)])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    (found,) = data["confusions"]
    assert found["lines"] == [[0, 7, 1, 1], [1, 5, 2, 1], [0, 1, 2, 5]]
    assert data["class_names"] == [["cat", "dog", "grey_fox"]]
    assert found["accuracy"][0][0] == 0.875


def test_search_in_a_browser(show, searched, tmp_path):
    _, runs = searched
    page = show(write_report(runs, tmp_path / "r.html"))
    assert page.locator("#plot-search .point").count() == 3
    assert page.locator("#search-kinds .key").all_inner_texts() == ["Probe", "Fine-tuning"]
    assert "85.0 % of the test images" in page.locator("#plot-search .annotation").all_text_contents()
    line = page.evaluate("document.getElementById('plot-search').data[0]")
    assert line["x"] == [45.3, 111.2, 470]
    assert line["y"] == pytest.approx([86, 89.4, 89.4])
    assert page.locator(".short tr.best td").first.inner_text() == "lite0, 288 px\nProbe"
    for picture in page.locator("#mistakes img").all():
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("i => i.complete && i.naturalWidth") == 160
