"""The report's plots in a browser: axes, legends, names and marks that do not stand on each other."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image
from report_results import add_results
from report_runs import PLOTTED

from steppe.report import write_report


def test_two_test_sets_are_never_in_one_plot(show, new_run, tmp_path):
    runs = [
        new_run(values={"data": {"name": name}, "minimizer": {"name": m}}, level=level)
        for name, level in (("digits", 0.9), ("mnist", 0.99))
        for m in ("base", "sam")
    ]
    page = show(write_report(runs, tmp_path / "r.html"))
    said = page.locator(".headline").all_inner_texts() + page.locator("#answer .statements li").all_inner_texts()
    assert [text.split(":")[0] for text in said[:2]] == ["On digits", "On mnist"]
    heights = "document.getElementById('plot-cost').data.flatMap((t) => t.y)"
    assert max(page.evaluate(heights)) < 93
    page.locator("#set").select_option("mnist")
    assert min(page.evaluate(heights)) > 96


def test_costs_in_money_and_energy(show, new_run, tmp_path):
    runs = [new_run(values={"minimizer": {"name": m}}) for m in ("base", "sam")]
    runs[0].write("cost.json", runs[0].read("cost.json") | {"training_energy": {"joules": 5400.0, "seconds": 9.0}})
    page = show(write_report(runs, tmp_path / "r.html"))
    xs = "document.getElementById('plot-cost').data.filter((t) => t.mode === 'markers').map((t) => t.x[0])"
    seconds = page.evaluate(xs)
    page.locator("#cost-axis").select_option("joules")
    assert page.evaluate(xs) == [5400]
    page.locator("#cost-axis").select_option("epochs")
    assert page.evaluate(xs) == [20, 20]
    page.locator("#cost-axis").select_option("price")
    assert page.locator("#no-cost").is_visible()
    assert page.locator("#plot-cost").is_hidden()  # no empty axes
    page.locator("#hour").fill("36")
    assert page.evaluate(xs) == pytest.approx([s / 100 for s in seconds])
    assert page.locator("#no-cost").is_hidden()
    assert page.locator("#plot-cost").is_visible()


def test_panels_of_one_plot_have_marks_of_their_own(show, new_run, tmp_path):
    """Nine panels and eight marks: the first and the last panel are of one test set."""
    toys = [{"data": {"name": "toy_rings", "variance": v}, "model": {"name": "mlp_8"}} for v in range(1, 8)]
    settings = [{"model": {"name": "vit_tiny_p2"}}, *toys, {"model": {"name": "resnet_tiny"}}]
    runs = [new_run(values={**one, "minimizer": {"name": m}}) for one in settings for m in ("base", "sam")]
    page = show(write_report(runs, tmp_path / "r.html"))
    page.locator("#set").select_option("digits")
    page.wait_for_function(PLOTTED)
    keys = "[...document.querySelectorAll('#cost .key:not([hidden]) path')].map((p) => p.getAttribute('d'))"
    marks = "document.querySelector('#plot-cost').data.filter((t) => t.mode === 'markers').map((t) => t.marker.symbol)"
    assert len(page.evaluate(keys)) == len(set(page.evaluate(keys))) == 2
    assert set(page.evaluate(marks)) == {0, 1}
    page.locator("#set").select_option("toy_rings · variance 3")
    assert page.evaluate(keys) == []  # one panel alone needs no key
    rows = page.evaluate("document.querySelector('#plot-flatness').data.map((trace) => trace.y[0])")
    assert max(rows) - min(rows) < 9 * 60  # each panel is as tall as its own two series need


def test_the_legend_of_geometry_names_what_was_measured(show, new_run, tmp_path):
    plain, sam, asam = (new_run(values={"minimizer": {"name": name}}) for name in ("base", "sam", "asam"))
    add_results(plain)
    add_results(sam)
    page = show(write_report([plain, sam, asam], tmp_path / "r.html"))
    names = [b.inner_text() for b in page.locator("#geometry .legend button").all() if b.is_visible()]
    assert names == ["base", "sam"]
    page.locator("#geometry .legend button", has_text="sam").first.click()
    assert page.locator("#landscapes canvas").count() == 1
    assert page.locator("#geometry .legend button", has_text="sam").first.is_visible()  # to be switched on again


def test_claims_sort_by_their_difference_as_a_number(show, new_run, tmp_path):
    differences = (-0.5, 0.02, -0.04, 0.1)
    claims = [
        {"text": f"claim {d}", "holds": "test_loss[a=b] > test_loss[a=c]", "verdict": "undecided", "difference": d}
        for d in differences
    ]
    page = show(write_report([new_run()], tmp_path / "r.html", comparison={"claims": claims, "cells": []}))
    page.locator("#claims").get_by_role("button", name="Difference").click()
    shown = [row.split("\n")[0] for row in page.locator("#claims tbody td:nth-child(2)").all_inner_texts()]
    assert shown == [f"claim {d}" for d in sorted(differences, reverse=True)]


def test_names_of_the_front_stand_on_no_point(show, new_run, tmp_path):
    """The cheapest rows lie close together at the left edge, one above the other, as real ones did."""
    found = [
        ("resnet_tiny", "base", 1.84, 0.926),
        ("resnet_tiny", "sam", 1.96, 0.964),
        ("vit_tiny_p2", "base", 1.64, 0.67),
    ]
    found += [
        ("mixer_tiny_p2", "base", 1.6, 0.637),
        ("mixer_tiny_p2", "asam", 9.6, 0.556),
        ("vit_tiny_p2", "sam", 3.7, 0.52),
    ]
    runs = []
    for model, minimizer, seconds, accuracy in found:
        summary = {"time_s": seconds, "test": {"loss": 1.0, "accuracy": accuracy, "examples": 359}}
        runs.append(new_run(values={"model": {"name": model}, "minimizer": {"name": minimizer}}, summary=summary))
    page = show(write_report(runs, tmp_path / "r.html"))
    boxes = "s => [...document.querySelectorAll(`#plot-cost ${s}`)].map((e) => e.getBoundingClientRect().toJSON())"
    names, marks = page.evaluate(boxes, ".annotation"), page.evaluate(boxes, ".points path")
    assert len(names) >= 3
    assert len(marks) == 6
    for name in names:
        for mark in marks:
            beside = name["right"] <= mark["left"] + 3 or mark["right"] <= name["left"] + 3
            assert beside or name["bottom"] <= mark["top"] + 3 or mark["bottom"] <= name["top"] + 3, (name, mark)


def test_an_eigenvalue_that_did_not_converge_has_a_bar(show, new_run, tmp_path):
    run, other = new_run(), new_run(values={"minimizer": {"name": "sam"}})
    add_results(run)
    add_results(other)
    page = show(write_report([run, other], tmp_path / "r.html"))
    plot = page.locator("#plot-blocks .plot").first
    plot.scroll_into_view_if_needed()
    sure = plot.evaluate("p => p.data[0].sure")
    assert False in sure  # report_results: nothing above 90 converges
    assert True in sure
    ink = tuple(int(n) for n in re.findall(r"\d+", plot.evaluate("p => p.data[0].ink"))[:3])
    for bar, converged in zip(plot.locator(".column").all()[: len(sure)], sure, strict=True):
        picture = np.asarray(Image.open(io.BytesIO(bar.screenshot())).convert("RGB")).reshape(-1, 3).astype(int)
        inked = float((np.abs(picture - ink).max(axis=1) < 40).mean())
        assert inked > (0.8 if converged else 0.3), converged
        assert converged or inked < 0.8  # hatched
