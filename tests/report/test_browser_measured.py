"""Geometry, robustness and published figures in a real browser: what a person turns, chooses, sorts and reads."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from report_results import add_results, confusion, name_classes
from report_runs import PLOTTED, make_run

from steppe.report import write_report

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
PICTURE = "n => document.querySelectorAll('#landscapes canvas')[n].toDataURL()"
TOYS = Path(__file__).parents[2] / "results" / "toys" / "compare.json"


@pytest.fixture(scope="module")
def measured_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    runs = []
    for model, height in (("vit_tiny_p2", 1.0), ("resnet_tiny", 3.0)):
        for minimizer, sharpness in (("base", 2.0), ("sam", 0.5)):
            for seed in (0, 1):
                run = make_run(
                    folder, values={"model": {"name": model}, "minimizer": {"name": minimizer}, "seed": seed}
                )
                add_results(run, sharpness * height * (1 + 0.1 * seed))
                runs.append(run)
    return write_report(runs, folder / "report.html", comparison=json.loads(TOYS.read_text()))


def test_landscapes_stand_side_by_side_on_one_scale(show, measured_page):
    page = show(measured_page)
    names = page.locator("#landscapes h4").all_inner_texts()
    assert names == [f"{m} · {o} · seed 0" for m in ("vit_tiny_p2", "resnet_tiny") for o in ("base", "sam")]
    tops = {box["y"] for c in page.locator("#landscapes canvas").all() if (box := c.bounding_box())}
    assert len(tops) == 1
    ticks = page.locator("#loss-scale .ticks span").all_inner_texts()
    assert ticks == ["0.03", "0.1", "0.3", "1", "3"]  # up to 9 at the rim of the steepest
    pictures = [page.evaluate(PICTURE, n) for n in range(4)]
    assert len(set(pictures)) == 4  # on one scale a flat valley does not look like a steep one
    page.locator("#geo-panel").select_option(label="vit_tiny_p2")
    assert page.locator("#landscapes canvas").count() == 2
    assert page.locator("#loss-scale .ticks span").all_inner_texts() == ["0.03", "0.1", "0.3", "1", "3"]
    page.locator("label:has(input[name=geo-seeds])", has_text="All").click()
    assert page.locator("#landscapes canvas").count() == 4


def test_turning_one_turns_all(show, measured_page):
    page = show(measured_page)
    first = page.locator("#landscapes canvas").first
    first.scroll_into_view_if_needed()
    before = [page.evaluate(PICTURE, n) for n in range(4)]
    box = first.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 130, steps=3)
    page.mouse.up()
    page.wait_for_timeout(100)
    turned = [page.evaluate(PICTURE, n) for n in range(4)]
    assert all(a != b for a, b in zip(before, turned, strict=True))
    first.focus()
    page.keyboard.press("0")
    page.wait_for_timeout(100)
    assert [page.evaluate(PICTURE, n) for n in range(4)] == before
    for key in ("ArrowLeft", "ArrowUp", "+"):
        page.keyboard.press(key)
        page.wait_for_timeout(60)
        after = page.evaluate(PICTURE, 3)
        assert after != turned[3]
        turned[3] = after
    page.get_by_role("button", name="From above").click()
    page.wait_for_timeout(100)
    assert page.evaluate(PICTURE, 3) != turned[3]
    page.get_by_role("button", name="Turn slowly").click()
    page.wait_for_timeout(100)
    moving = page.evaluate(PICTURE, 0)
    page.wait_for_timeout(200)
    assert page.evaluate(PICTURE, 0) != moving
    page.get_by_role("button", name="Stop turning").click()
    page.wait_for_timeout(100)
    still = page.evaluate(PICTURE, 0)
    page.wait_for_timeout(200)
    assert page.evaluate(PICTURE, 0) == still


def test_blocks_and_spectra_follow_what_is_chosen(show, measured_page):
    page = show(measured_page)
    bars = "[...document.querySelectorAll('#plot-blocks .plot')].map((p) => p.data.map((t) => t.y))"
    plain, sharp = page.evaluate(bars)[0]
    assert plain[0] == pytest.approx(42, rel=0.01)  # mean of two seeds
    assert sharp[0] == pytest.approx(10.5, rel=0.01)
    page.locator("#geometry label", has_text="Active neurons").click()
    assert page.evaluate(bars)[0][0] == [40, 60]
    assert page.evaluate("document.querySelectorAll('#plot-spectrum .plot')[1].data[0].x.length") == 260
    page.locator("#geometry .legend button", has_text="sam").click()
    page.wait_for_function(PLOTTED)
    assert len(page.evaluate(bars)[0]) == 1
    assert page.locator("#landscapes canvas").count() == 2


def test_corruptions_of_one_row_and_against_another(show, measured_page):
    page = show(measured_page)
    cells = page.locator("#corruption-table tbody tr")
    assert cells.count() == 20  # 19 and their mean
    assert cells.first.locator("td").count() == 6
    assert cells.first.locator("td").first.inner_text() == "84.5"
    page.locator("#corruption-row").select_option(label="vit_tiny_p2 · sam")
    assert cells.first.locator("td").first.inner_text() == "92.4"
    page.locator("#corruption-other").select_option(label="vit_tiny_p2 · base")
    assert cells.first.locator("td").first.inner_text() == "+7.9"
    assert "less vit_tiny_p2 · base" in page.locator("#corruption-said").inner_text()


MAP = "document.getElementById('plot-confusion').data.map((t) => ({x: t.x, y: t.y, z: t.z, text: t.text}))"


def test_classes_taken_for_others(show, measured_page):
    page = show(measured_page)
    heat, numbers = page.evaluate(MAP)
    assert heat["y"] == [str(k) for k in range(10)]
    assert heat["z"][0][:3] == [pytest.approx(41 / 45), pytest.approx(4 / 45), 0]
    written = dict(zip(zip(numbers["y"], numbers["x"], strict=True), numbers["text"], strict=True))
    assert (written["0", "0"], written["0", "1"]) == ("91", "9")
    assert ("0", "2") not in written
    assert "0 taken for 1, 8 of 90 answers of 2 seeds" in page.locator("#class-said").inner_text()
    lines = page.locator("#class-table tbody tr")
    assert lines.first.locator("td:visible").all_inner_texts() == ["0", "91.1", "45", "1 (8.9 %)"]  # the hardest first
    page.locator("#class-table").get_by_role("button", name="Class").click()
    page.locator("#class-row").select_option(label="vit_tiny_p2 · sam")
    page.locator("#class-other").select_option(label="vit_tiny_p2 · base")
    less, numbers = page.evaluate(MAP)
    assert less["z"][0][:2] == [pytest.approx(2 / 45), pytest.approx(2 / 45)]  # both better, so both blue
    assert numbers["text"][:2] == ["+4", "−4"]
    assert lines.nth(1).locator("td").nth(2).inner_text() == "+2.2"
    assert lines.locator("td:first-child").all_inner_texts() == [str(k) for k in range(10)]  # sorted as it was
    assert "More accurate in 10 of 10 classes" in page.locator("#class-said").inner_text()


def hundred_classes(new_run, names, **values):
    run = new_run(values=values)
    add_results(run)
    found = run.read("robustness.json")
    found["scores"]["confusion"] = confusion(100, mistakes=3)
    for label in range(80):
        found["scores"]["confusion"][label][label] += 1
        found["scores"]["confusion"][label][(label + 1) % 100] -= 1
    run.write("robustness.json", found)
    name_classes(run, names)
    return run


@pytest.mark.parametrize("width", [1280, 390])
def test_a_hundred_classes_are_readable(show, new_run, tmp_path, width):
    runs = [hundred_classes(new_run, [f"a class with a long name {k % 50}" for k in range(100)])]
    page = show(write_report(runs, tmp_path / "r.html"), width=width)
    right = page.evaluate(MAP)[0]
    assert len(right["y"]) == len(set(right["y"])) == 20  # two of a name stay two
    assert right["x"][-1] == "others"
    shown = page.locator("#plot-confusion .ytick").all_inner_texts()
    assert len(shown) == 20  # every line has its name
    assert page.locator("#class-table tbody tr").count() == 100
    page.locator("label:has(input[name=class-part])", has_text="All").click()
    right = page.evaluate(MAP)[0]
    assert len(right["y"]) == len(right["x"]) == 100
    assert 5 < page.locator("#plot-confusion .ytick").count() < 100
    box = page.locator("#plot-confusion").bounding_box()
    assert box["width"] <= width
    assert box["height"] < 1300
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.getElementById('plot-confusion').area.width") == pytest.approx(box["width"], abs=1)


def test_only_classes_of_the_same_images_compare(show, new_run, tmp_path):
    runs = [
        new_run(values={"data": {"name": d}, "minimizer": {"name": m}})
        for d in ("digits", "mnist")
        for m in ("base", "sam")
    ]
    for run in runs:
        add_results(run)
    page = show(write_report(runs, tmp_path / "r.html"))
    choices = "[...document.getElementById('class-other').options].filter((o) => !o.disabled).map((o) => o.textContent)"
    assert page.evaluate(choices) == ["nothing: its own mistakes", "digits · sam"]
    page.locator("#class-other").select_option(label="digits · sam")
    page.locator("#class-row").select_option(label="mnist · base")
    assert page.evaluate(choices) == ["nothing: its own mistakes", "mnist · sam"]
    assert page.locator("#class-other").input_value() == "-1"


def test_attention_maps_change_with_the_choice(show, measured_page):
    page = show(measured_page)
    maps = page.locator("#attention-maps .scroll").first.locator("tr")
    assert maps.locator("th").all_inner_texts() == ["the image", "base", "sam"]
    assert maps.first.locator(".map").count() == 4
    place = maps.nth(1).locator(".map").nth(2)
    at = "e => getComputedStyle(e).backgroundPosition"
    assert place.evaluate(at) == "66.6667% 50%"
    page.locator("#geometry label", has_text="Rollout").click()
    assert maps.nth(1).locator(".map").nth(2).evaluate(at) == "66.6667% 100%"
    loaded = "async (m) => { const i = new Image(); i.src = getComputedStyle(m).backgroundImage.slice(5, -2);"
    assert maps.nth(1).locator(".map").first.evaluate(loaded + " await i.decode(); return i.naturalWidth; }") == 384


def test_figures_sort_and_every_single_one_can_be_found(show, measured_page):
    page = show(measured_page)
    page.locator("#figure-table").get_by_role("button", name="λmax").click()
    first = page.locator("#figure-table tbody tr").first
    assert first.inner_text().startswith("resnet_tiny · base")
    page.get_by_text("Every single figure, with its settings").click()
    rows = page.locator("#scalars tbody tr")
    page.wait_for_function("() => document.querySelectorAll('#scalars tbody tr').length > 100")
    page.locator("#scalar-filter").fill("resnet base seed whole lambda max value")
    assert rows.count() == 4  # λmax and λmin of two seeds
    page.locator("#scalars").get_by_role("button", name="Value").click()
    values = [float(cell) for cell in page.locator("#scalars tbody td.number").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert values[:2] == [132, 120]
    assert "examples 256" in rows.first.inner_text()


def test_published_figures_and_verdicts(show, measured_page):
    page = show(measured_page)
    claims = page.locator("#claims tbody tr")
    assert claims.count() == len(json.loads(TOYS.read_text())["claims"])
    page.locator("#claims").get_by_role("button", name="Verdict").click()
    words = page.locator("#claims .chip").all_inner_texts()
    assert words == sorted(words)
    assert set(words) <= {"holds", "does not hold", "undecided", "not measured yet", "not at this scale"}
    page.get_by_text("published figures beside ours").click()
    page.locator("#published-filter").fill("section II")
    shown = page.locator("#published-table tbody tr:visible").all_inner_texts()
    assert 0 < len(shown) < page.locator("#published-table tbody tr").count()
    assert all("section II" in line for line in shown)


def test_hostile_names_in_results(show, new_run, tmp_path):
    runs = [new_run(values={"model": {"name": f"{HOSTILE}{n}"}}) for n in (1, 2)]
    for run in runs:
        add_results(run)
        name_classes(run, [f"{HOSTILE}{k}" for k in range(10)])
        for name in ("geometry.json", "robustness.json"):
            text = (run.path / name).read_text().replace("<other>", HOSTILE).replace("gaussian_noise", HOSTILE)
            (run.path / name).write_text(
                text.replace("<b>block1</b>", HOSTILE).replace('"probes"', json.dumps(HOSTILE))
            )
    claim = {"text": HOSTILE, "holds": HOSTILE, "verdict": HOSTILE, "reason": HOSTILE}
    cell = {"measure": HOSTILE, "value": HOSTILE, "row": HOSTILE, "note": HOSTILE, "measured": HOSTILE}
    page = show(write_report(runs, tmp_path / "r.html", comparison={"claims": [claim], "cells": [cell]}))
    page.get_by_text("Every single figure, with its settings").click()
    page.wait_for_timeout(200)
    page.locator("#plot-blocks .column").last.hover(force=True)
    page.wait_for_timeout(100)
    area = page.evaluate(
        "(({left, top}) => ({x: left + 20, y: top + 20}))(document.getElementById('plot-confusion').area)"
    )
    page.locator("#plot-confusion").hover(force=True, position=area)
    page.wait_for_timeout(100)
    assert "recognised" in page.locator("#plot-confusion .tip").text_content()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    assert page.locator("#corruption-table tbody th").first.inner_text() == HOSTILE
    assert page.locator("#class-table td.label").first.inner_text() == f"{HOSTILE}0"
    assert HOSTILE in page.locator("#claims tbody").inner_text()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (320, "light"), (760, "light")])
def test_on_a_phone(show, measured_page, width, scheme):
    page = show(measured_page, width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for choice in page.locator("#geometry .options label:nth-child(2)").all():
        choice.click()


def test_everything_can_be_reached_by_keyboard(show, measured_page):
    page = show(measured_page)
    seen = set()
    page.locator("#geo-panel").focus()
    for _ in range(60):
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName || ''"))
        page.keyboard.press("Tab")
    assert {
        "geo-panel",
        "aside",
        "above",
        "turn",
        "CANVAS",
        "corruption-row",
        "corruption-other",
        "robust-panel",
    } <= seen


def test_a_narrow_landscapes_ticks_do_not_stand_on_each_other(show, measured_page):
    page = show(measured_page, width=900)
    said = """() => {
        const found = [], pen = CanvasRenderingContext2D.prototype, write = pen.fillText;
        pen.fillText = function (text, x, y) { found.push([this.canvas, y]); write.call(this, text, x, y); };
        document.querySelector('#aside').click();
        const ofFirst = () => found.filter(([canvas]) => canvas === found[0][0]).map(([, y]) => y);
        return new Promise((done) => setTimeout(() => done(ofFirst()), 300));
    }"""
    heights = page.evaluate(said)
    assert len(heights) >= 2
    assert all(abs(a - b) >= 12 for a, b in pairwise(heights))
