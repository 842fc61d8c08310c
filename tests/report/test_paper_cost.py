"""A study's accuracies with their cost: who stands where, how far the seeds reach, and what was spent."""

from __future__ import annotations

import pytest

from steppe.report import summarise
from steppe.report.paper_cost import draw_accuracy_and_cost


def draw(new_run, cells):
    """`cells`: (model, minimizer) -> test accuracies by seed."""
    runs, listed = [], []
    for (model, method), accuracies in cells.items():
        for seed, accuracy in enumerate(accuracies):
            test = {"loss": 0.1, "accuracy": accuracy, "examples": 100}
            values = {"model": {"name": model}, "minimizer": {"name": method}, "seed": seed}
            runs.append(new_run(values=values, summary={"test": test}))
            listed.append({"run_id": runs[-1].id, "labels": {"model": model, "training": method}, "seed": seed})
    rows = summarise(runs, {"runs": listed})
    figure = draw_accuracy_and_cost(rows, "one, two, three, four, five, six, seven, eight, nine, ten, $eleven")
    figure.draw_without_rendering()
    return figure


def names(part):
    return [label.get_text() for label in part.get_yticklabels()]


def test_a_panel_for_each_model_with_the_best_on_top(new_run):
    cells = {("vit_tiny_p2", "base"): [0.5, 0.7], ("vit_tiny_p2", "sam"): [0.9, 0.7]}
    cells |= {("resnet_tiny", "base"): [0.8], ("resnet_tiny", "sam"): [0.4]}
    vit, resnet = draw(new_run, cells).axes
    assert (vit.get_title("left"), resnet.get_title("left")) == ("vit_tiny_p2", "resnet_tiny")
    assert names(vit) == ["base", "sam"]
    assert names(resnet) == ["sam", "base"]
    assert [label.get_text() for label in vit.child_axes[0].get_yticklabels()] == ["400", "800"]
    seeds = {tuple(line.get_xdata()) for line in vit.lines}
    assert seeds >= {(50.0, 70.0), (90.0, 70.0)}, "every seed is shown"


def test_a_lone_row_makes_one_panel_of_all(new_run):
    cells = {("vit_tiny_p2", "base"): [0.5], ("vit_tiny_p2", "sam"): [0.9], ("resnet_tiny", "base"): [0.7]}
    (part,) = draw(new_run, cells).axes
    assert names(part) == ["vit_tiny_p2 · base", "resnet_tiny · base", "vit_tiny_p2 · sam"]


def test_no_deviation_reaches_past_all_images(new_run):
    (part,) = draw(new_run, {("vit_tiny_p2", "base"): [1.0, 1.0, 0.6], ("vit_tiny_p2", "sam"): [0.9]}).axes
    ends = [x for lines in part.collections for path in lines.get_segments() for x, _ in path]
    assert max(ends) == pytest.approx(100.0)


def test_a_hundredth_of_a_point_does_not_look_like_a_lead(new_run):
    (part,) = draw(new_run, {("vit_tiny_p2", "base"): [0.9107], ("vit_tiny_p2", "sam"): [0.9113]}).axes
    low, high = part.get_xlim()
    assert high - low == pytest.approx(2.0)
    assert low < 91.07 < 91.13 < high


@pytest.mark.parametrize(("far", "shared"), [(0.0, True), (0.4, False)])
def test_panels_that_lie_near_each_other_have_one_axis(new_run, far, shared):
    cells = {("vit_tiny_p2", "base"): [0.30], ("vit_tiny_p2", "sam"): [0.34]}
    cells |= {("resnet_tiny", "base"): [0.32 + far], ("resnet_tiny", "sam"): [0.36 + far]}
    vit, resnet = draw(new_run, cells).axes
    assert (vit.get_xlim() == resnet.get_xlim()) == shared
    assert vit.get_xlim()[0] < 30 < 34 < vit.get_xlim()[1]


def test_what_others_begin_from_on_other_data_is_not_among_them(new_run):
    runs, listed = [], []
    for labels, data, accuracy in [
        ({"model": "ViT", "mode": "full"}, "cifar100", 0.2),
        ({"model": "ViT", "mode": "frozen"}, "cifar100", 0.1),
        ({"run": "plain"}, "cifar100", 0.15),
        ({"run": "pretrained"}, "cifar10", 0.9),
    ]:
        test = {"loss": 0.1, "accuracy": accuracy, "examples": 100}
        values = {"data": {"name": data}, "batch_size": 32 + len(runs)}
        runs.append(new_run(values=values, summary={"test": test}))
        listed.append({"run_id": runs[-1].id, "labels": labels, "seed": 0})
    rows = summarise(runs, {"runs": listed})
    assert len(rows) == 4
    (part,) = draw_accuracy_and_cost(rows).axes
    assert len(names(part)) == 3
    assert not any("pretrained" in name for name in names(part))


def test_other_data_are_other_panels(new_run):
    runs, listed = [], []
    for model in ("ViT", "Mixer"):
        for data in ("cifar10", "pets"):
            test = {"loss": 0.1, "accuracy": 0.5, "examples": 100}
            values = {"data": {"name": data}, "batch_size": 32 + len(runs)}
            runs.append(new_run(values=values, summary={"test": test}))
            listed.append({"run_id": runs[-1].id, "labels": {"model": model, "data": data}, "seed": 0})
    parts = draw_accuracy_and_cost(summarise(runs, {"runs": listed})).axes
    assert [part.get_title("left") for part in parts] == ["cifar10", "pets"]
    assert all(sorted(names(part)) == ["Mixer", "ViT"] for part in parts)
