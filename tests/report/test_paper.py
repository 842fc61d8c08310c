"""The figures for a paper: that they show the numbers they are given, and are written whole and alike."""

from __future__ import annotations

import io
import itertools
import math
import warnings

import numpy as np
import pytest
from PIL import Image

from steppe.report import paper, paper_robustness
from steppe.report.paper_study import draw_points, draw_study

STEPS = [-1.0, 0.0, 1.0]
SQUARE = {"steps": STEPS, "loss": [[3.0, 2.0, None], [2.0, 0.1, 2.0], [3.0, 2.0, 3.0]], "centre": 0.1}
SCORES = {
    "reliability": [
        {"count": 0, "accuracy": None, "confidence": None},
        {"count": 4, "accuracy": 0.5, "confidence": 0.9},
    ],
    "examples": 4,
    "ece": 0.4,
    "confusion": [[2, 0, 0], [1, 1, 0], [0, 0, 0]],
}
TABLE = {"table": {"fog": [0.9, 0.8, 0.7, 0.6, 0.5], "snow": [0.5, 0.4, 0.3, 0.2, 0.1]}, "mean": 0.5}


def figures():
    pictures = np.random.default_rng(0).integers(0, 255, (2, 3, 8, 8)).astype(np.uint8)
    heat = np.linspace(0, 1, 128).reshape(2, 8, 8)
    return {
        "landscape": paper.draw_landscape(SQUARE, "a run"),
        "flat": paper.draw_landscape({"steps": STEPS, "loss": [[1.0] * 3] * 3, "centre": None}),
        "line": paper.draw_line({"steps": STEPS, "loss": [2.0, 0.1, None], "centre": 0.1}),
        "between": paper.draw_between({"shares": [0, 0.5, 1], "loss": [1.0, 4.0, 2.0], "barrier": 2.5}),
        "spectrum": paper.draw_spectrum([0, 1, 2], [1.0, 0.1, 0.0], [2.0], "density"),
        "bars": paper.draw_bars({"SGD": {"stem": 100.0, "head": 1.0}, "SAM": {"stem": 10.0, "head": None}}, "λmax"),
        "attention": paper.draw_attention(pictures, {"last layer": heat, "rollout": heat}),
        "grey": paper.draw_attention(pictures[:1, :1], {"rollout": heat[:1]}),
        "series": paper.draw_series({"one": [1.0, None, 3.0], "two": [1.0, 2.0, 3.0]}, "step", "loss"),
        "corruptions": paper_robustness.draw_corruptions(TABLE, "a run"),
        "reliability": paper_robustness.draw_reliability(SCORES),
        "confusion": paper_robustness.draw_confusion(SCORES, ("a", "b", "c")),
    }


def test_are_written_as_png_and_pdf_and_twice_alike(tmp_path):
    for name, figure in figures().items():
        written = paper.save(figure, tmp_path / "one" / f"{name}.v1")
        assert [path.name for path in written] == [f"{name}.v1.png", f"{name}.v1.pdf"]
        with Image.open(written[0]) as image:
            assert min(image.size) > 200, name
            assert len(image.convert("L").getcolors(10**6)) > 10, f"{name} is blank"
        assert written[1].read_bytes().startswith(b"%PDF")
    for name, figure in figures().items():
        for path in paper.save(figure, tmp_path / "two" / f"{name}.v1"):
            assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes(), path.name


def test_show_the_numbers():
    (heat, *_) = paper_robustness.draw_corruptions(TABLE).axes
    assert [text.get_text() for text in heat.texts][:7] == ["90.0", "80.0", "70.0", "60.0", "50.0", "70.0", "50.0"]
    assert "50.0 %" in heat.get_title()
    (curve, straight) = (
        paper.draw_between({"shares": [0, 0.5, 1], "loss": [1.0, 4.0, 2.0], "barrier": 2.5}).axes[0].lines
    )
    assert list(curve.get_ydata()) == [1.0, 4.0, 2.0]
    assert list(straight.get_ydata()) == [1.0, 2.0]
    (table, *_) = paper_robustness.draw_confusion(SCORES, ("a", "b", "c")).axes
    assert [text.get_text() for text in table.texts] == ["100", "50", "50"]


def test_an_overlay_keeps_the_image_and_shows_the_map():
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    strength = np.zeros((4, 4))
    strength[1, 2] = 1
    laid = paper.overlay(image, strength)
    assert laid.sum(axis=2).argmax() == 6
    assert laid.min() >= 0
    assert laid.max() <= 1
    white = paper.overlay(np.full((4, 4, 3), 255, np.uint8), strength)
    assert (white > laid + 0.1).any(axis=2).all()


@pytest.mark.parametrize("name", ["bars"])
def test_a_missing_bar_is_no_bar(name):
    (axes,) = figures()[name].axes
    heights = [patch.get_height() for patch in axes.patches]
    assert heights[:3] == [100.0, 1.0, 10.0]
    assert np.isnan(heights[3])


def test_a_sheet_is_bare_cells(tmp_path):
    images = np.zeros((2, 3, 8, 8), dtype=np.uint8)
    images[1, 0] = 200  # the second is red
    maps = np.stack([np.zeros((8, 8)), np.ones((8, 8))])
    paper.save_sheet(images, {"last layer": maps}, tmp_path / "figures" / "sheet.png", cell=16)
    with Image.open(tmp_path / "figures" / "sheet.png") as picture:
        sheet = np.asarray(picture)
    assert sheet.shape == (32, 32, 3)
    assert (sheet[:16, :16] == 0).all()
    assert (sheet[:16, 16:] == [200, 0, 0]).all()
    assert sheet[16:, 16:].astype(int).sum() > 10 * sheet[16:, :16].astype(int).sum()  # hot where attention is high


@pytest.mark.parametrize("name", ["$\\frac$", "\udcff\udcfe", "a\x1bb", "two\nlines", "$a$"])
def test_any_name_can_be_drawn(name, tmp_path):
    found = {"confusion": [[3, 1], [0, 4]]}
    figure = paper_robustness.draw_confusion(found, [paper.plain(name), "other"], paper.plain(name))
    for path in paper.save(figure, tmp_path / "figure"):
        assert path.stat().st_size > 1000


def shifted(at: float) -> dict:
    points = {f"variance_{v}": {"variance": float(v), "error": v / 200, "loss": at * v} for v in (0, 15, 80)}
    return {**points, "settings": {"examples": 10}}


def test_many_cells_are_drawn_in_panels_that_can_be_told_apart():
    """25 lines in one panel had colours twice, and a legend that left the axes no room."""
    ways = ("Adam", "SAM", "ASAM", "Adam, same time", "SAM, ρ = 0.05")
    cells = {
        f"{variance}, {way}": {
            "labels": {"variance": str(variance), "training": way},
            "metrics": [{"train_loss": 0.5, "train_accuracy": 0.9, "val_accuracy": 0.8, "lr": 0.1}] * epochs,
            "shift": shifted(variance),
        }
        for variance, epochs in ((1, 1), (5, 2), (15, 3), (25, 4), (30, 5))
        for way in ways
    }
    figures = draw_study(cells)
    assert list(figures) == ["train_loss", "train_accuracy", "val_accuracy", "lr", "shift_error", "shift_loss"]
    for figure in figures.values():
        assert [axes.get_title() for axes in figure.axes] == [f"variance {v}" for v in (1, 5, 15, 25, 30)]
        assert all([line.get_label() for line in axes.lines] == list(ways) for axes in figure.axes)
        assert all(len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 5 for axes in figure.axes)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == list(ways)
    assert figures["shift_loss"].axes[2].lines[0].get_xydata().tolist() == [[0, 0], [15, 225], [80, 1200]]
    assert figures["train_loss"].axes[0].lines[0].get_marker() == ".", "a single epoch can be seen"
    assert figures["train_loss"].axes[2].lines[0].get_xdata().tolist() == [1, 2, 3], "epochs count from 1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures["train_loss"].savefig(io.BytesIO())


def test_spectra_of_a_study_are_smoothed_alike_on_one_axis():
    sharp = {"nodes": [[0.0, 50.0]], "weights": [[0.9, 0.1]], "probes": 1}
    flat = {"nodes": [[0.0, 10.0]], "weights": [[0.9, 0.1]], "probes": 1}
    figure = draw_study({"SGD": {"geometry": {"spectrum": sharp}}, "SAM": {"geometry": {"spectrum": flat}}})["spectra"]
    [axes] = figure.axes
    assert axes.get_yscale() == "log"
    for line, end in zip(axes.lines, (50, 10), strict=True):
        x, y = line.get_data()
        assert x[-1] == pytest.approx(end, abs=3)
        assert y.max() == pytest.approx(0.9 / (0.5 * math.sqrt(2 * math.pi)), rel=0.1), "a width of a hundredth of 50"
        assert 1e-9 * y.max() < axes.get_ylim()[0] < 1e-7 * y.max()


def test_long_names_of_runs_do_not_lie_on_each_other():
    found = {"shares": [0, 0.5, 1], "loss": [1.0, 4.0, 2.0], "barrier": 2.5}
    figure = paper.draw_between(
        found, ends=("cifar10-resnet18-base-s0-8948898d00", "cifar10-resnet18-sam-s0-42c6fd859f")
    )
    figure.draw_without_rendering()
    ticks = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(ticks))
    name = figure.axes[0].xaxis.label
    assert name.get_text().split("\n") == [
        "cifar10-resnet18-base-s0-8948898d00",
        "to cifar10-resnet18-sam-s0-42c6fd859f",
    ]
    assert name.get_window_extent().width < figure.bbox.width


def test_outputs_are_drawn_through_rescalings():
    losses = {kind: [1.0, 2.0] for kind in ("sam", "asam_weights", "asam_weights_eta", "asam_all", "asam_all_eta")}
    case = {"outputs": [[[0.1, 0.2], [0.3, 0.4]]] * 2, "sharp_loss": losses}
    geometry = {"rescaling": {"weights": case, "weights_and_biases": case}}
    figure = draw_study({"net": {"geometry": geometry}})["rescaling_weights_outputs"]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[v, v] for v in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize("count", [2, 12, 26])
def test_the_names_of_bars_lie_beside_them(count):
    """They lay on the bars of a study with twelve cells, and 26 left the axes no room."""
    groups = {f"model {n}, SAM": {"whole": 10.0, "head": 1.0 + n} for n in range(count)}
    figure = paper.draw_bars(groups, "λmax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    assert len({bars.patches[0].get_facecolor() for bars in axes.containers}) == min(count, 20)


def test_bars_of_blocks_stand_in_their_order_after_the_other_parts():
    groups = {"ResNet": {"whole": 1.0, "block1": 1.0, "block8": 1.0}, "ViT": {"whole": 1.0, "head": 1.0, "block3": 1.0}}
    (axes,) = paper.draw_bars(groups, "λmax").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["whole", "head", "block1", "block3", "block8"]


def test_points_of_every_set_are_drawn_on_one_scale():
    inner, outer = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 40.0], [-40.0, 0.0]])
    figure = draw_points({"variance 0": (inner, [0, 1]), "variance 80": (outer, [0, 1])})
    assert [axes.get_title() for axes in figure.axes] == ["variance 0", "variance 80"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert figure.axes[1].collections[0].get_offsets().tolist() == outer.tolist()
    first, second = figure.axes[0].collections[0].get_facecolors()
    assert (first != second).any(), "a class has a colour of its own"


def test_a_landscape_says_what_its_directions_are():
    about = {"directions": {"eigenvalues": []}}
    assert paper.draw_landscape(SQUARE).axes[0].get_xlabel() == "first direction"
    assert paper.draw_landscape({**SQUARE, **about}).axes[0].get_ylabel() == "second eigenvector"
    line = {"steps": STEPS, "loss": [2.0, 0.1, 1.0], "centre": 0.1}
    assert paper.draw_line({**line, **about}).axes[0].get_xlabel() == "step along the eigenvector"
