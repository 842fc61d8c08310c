"""`steppe study publish` on the results that come with the project."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steppe.cli.main import app
from steppe.report.results_page import BEGIN, END

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(RESULTS / "resnet18", folder / "resnet18")
    shutil.copy(RESULTS / "epoch_h200.csv", folder)
    return folder


def publish(*words: str):
    result = CliRunner().invoke(app, ["study", "publish", *words])
    return result, result.output + (str(result.exception) if result.exception else "")


def test_kept_studies_say_which_run_is_which():
    """Without `study.json` the rows of a report would read "base" and "sam" instead of the study's labels."""
    kept = [path.parent for path in RESULTS.glob("*/compare.json")]
    assert {"resnet18", "wrn"} <= {folder.name for folder in kept}
    for folder in kept:
        listed = {one["run_id"] for one in json.loads((folder / "study.json").read_text())["runs"]}
        assert {path.parent.name for path in folder.glob("*/config.toml")} <= listed, folder.name


def test_a_study_in_several_folders_has_a_heading_and_a_picture_for_each(results, tmp_path):
    for name in ("resnet18-again", "resnet18-more"):
        shutil.copytree(results / "resnet18", results / name)
    page = tmp_path / "docs/results.md"
    result, _ = publish(str(results), "-o", str(page))
    assert result.exit_code == 0
    headings = [line for line in page.read_text().splitlines() if line.startswith("## ResNet-18")]
    assert [line.partition("SAM")[2] for line in headings] == ["", " (scale paper)", " (resnet18-more)"]
    pictures = {path.stem for path in (page.parent / "images/results").iterdir()}
    assert {name.partition("_")[0] for name in pictures} == {"resnet18", "resnet18-again", "resnet18-more"}
    assert {"resnet18_landscapes", "resnet18-again_landscapes", "resnet18-more_landscapes"} <= pictures


def test_figures_of_other_data_say_so(tmp_path):
    shutil.copytree(RESULTS / "sharp-minima", tmp_path / "results" / "sharp-minima")
    page = tmp_path / "results.md"
    result, _ = publish(str(tmp_path / "results"), "-o", str(page))
    assert result.exit_code == 0
    text = page.read_text()
    assert "Figures of imagenet stand beside ours of cifar10 without a difference." in text
    assert "| on imagenet: ResNet, plain 78.5 %" in text
    assert "| on cifar10, scale small: ResNet, plain 93." in text


def test_what_is_smaller_than_published_is_said(tmp_path):
    shutil.copytree(RESULTS / "swin-finetune-laptop", tmp_path / "results" / "swin")
    shutil.copytree(RESULTS / "cost-effective-own", tmp_path / "results" / "own")
    shutil.copytree(RESULTS / "wrn", tmp_path / "results" / "wrn")
    page = tmp_path / "results.md"
    assert publish(str(tmp_path / "results"), "-o", str(page))[0].exit_code == 0
    assert "| scale laptop (images at 16 px): head alone 20.55 %" in page.read_text()
    assert "| scale own (images at 16 px, 0.2 of them): ResNet, full, SGD 13.14 %" in page.read_text()
    assert "| Adam 93.07 %" in page.read_text(), "at paper nothing is smaller"
    assert "13 runs at scale `laptop` (images at 16 px) on" in page.read_text()


def test_curvature_by_part_and_the_studys_figures_are_on_the_page(tmp_path, monkeypatch):
    """Tables 4 and 6 and figures 1 to 3 of source 003; attention maps lie over images, which may not be here."""
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    folder, page = tmp_path / "results" / "sharp-minima", tmp_path / "results.md"
    shutil.copytree(RESULTS / "sharp-minima", folder)
    result, said = publish(str(tmp_path / "results"), "-o", str(page))
    assert result.exit_code == 0
    lines = page.read_text().splitlines()
    heads = [at for at, line in enumerate(lines) if "| λmax: first block |" in line]
    assert len(heads) == 1
    names = [name.strip() for name in lines[heads[0]].split("|")[1:-1]]
    rows = [dict(zip(names, map(str.strip, line.split("|")[1:-1]), strict=True)) for line in lines[heads[0] + 2 :][:8]]
    (run,) = folder.glob("*vit_6l_8h_384-sam*")
    found = json.loads((run / "geometry.json").read_text())
    (shown,) = [row for row in rows if (row["Model"], row["Training"]) == ("ViT", "SAM")]
    parts, activations = found["lambda_max"]["parts"], found["norms"]["activations"]
    for name, value in {
        "λmax: embedding": parts["embedding"]["lambda_max"]["value"],
        "λmax: first block": parts["block1"]["lambda_max"]["value"],
        "λmax: middle block": parts["block3"]["lambda_max"]["value"],
        "λmax: last block": parts["block6"]["lambda_max"]["value"],
        "‖w‖": found["norms"]["weights"]["whole"],
        "‖a‖: middle block": activations["block3"]["norm"],
    }.items():
        assert float(shown[name]) == pytest.approx(value, rel=5e-3), name
    assert any(line.startswith("| Model | Training |") and "| κ at first | missing rate |" in line for line in lines)
    pictures = page.parent / "images/results"
    for name in ("landscapes", "active_neurons"):
        assert f"(images/results/sharp-minima_{name}.png)" in page.read_text()
        assert (pictures / f"sharp-minima_{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "attention maps are left out" in said
    assert "sharp-minima_attention.png" not in page.read_text()
    (pictures / "sharp-minima_attention.png").write_bytes(b"drawn where the images are")
    publish(str(tmp_path / "results"), "-o", str(page))
    assert "sharp-minima_attention.png" in page.read_text()
    assert (pictures / "sharp-minima_attention.png").read_bytes() == b"drawn where the images are"


def test_what_is_damaged_costs_its_figures_not_the_page(results, tmp_path):
    page, runs = tmp_path / "docs/results.md", sorted((results / "resnet18").glob("cifar*"))
    (runs[0] / "metrics.jsonl").write_text('{"epoch": 1}\nbroken\n{"epoch": 2}\n')
    result, said = publish(str(results), "-o", str(page))  # epochs are not on the page
    assert result.exit_code == 0
    assert "left out" not in said
    assert "resnet18_landscapes.png" in page.read_text()
    for run in runs:
        measured = json.loads((run / "geometry.json").read_text())
        (run / "geometry.json").write_text(json.dumps({**measured, "norms": {}}))
    result, said = publish(str(results), "-o", str(page))
    assert result.exit_code == 0
    assert "resnet18: figures are left out, for something in a run's files is damaged" in said
    assert "95.92" in page.read_text()
    assert "landscapes" not in page.read_text()  # an older picture is not shown for a new one
    for run in runs:
        (run / "summary.json").write_text(json.dumps({"status": "failed", "reason": "for the test"}))
    result, said = publish(str(results), "-o", str(page))
    assert result.exit_code == 0
    assert "0 runs at scale `paper`" in page.read_text()


def test_the_page_says_which_network_a_label_stands_for(tmp_path):
    shutil.copytree(RESULTS / "radius-laptop", tmp_path / "results" / "radius-laptop")
    page = tmp_path / "results.md"
    assert publish(str(tmp_path / "results"), "-o", str(page))[0].exit_code == 0
    assert "Networks: ResNet-50 is `resnet_tiny`; ViT-B/32 is `vit_4l_4h_64_p8`;" in page.read_text()


def test_the_page_and_the_readme(results, tmp_path):
    readme, page = tmp_path / "README.md", tmp_path / "docs/results.md"
    readme.write_text(f"before\n{BEGIN}\nOUTDATED\n{END}\nafter\n")
    result, _ = publish(str(results), "-o", str(page), "--readme", str(readme))
    assert result.exit_code == 0
    text = page.read_text()
    for words in (
        "95.92",
        "17.9",
        "NVIDIA H200, torch 2.11.0",
        "| SAM is above SGD on CIFAR-10 |",
        "Benchmark epoch h200",
    ):
        assert words in text
    assert re.search(r"\| 40,\d{3} \|", text)  # κ, and no 4.07e+04
    assert (page.parent / "images/results/resnet18.png").read_bytes()[:4] == b"\x89PNG"
    table = readme.read_text()
    assert table.startswith("before\n")
    assert table.endswith(f"{END}\nafter\n")
    assert "OUTDATED" not in table
    assert "CIFAR-100, SAM 79.12" in text
    assert "| claims that hold | that do not | undecided | not measured |" in text
    assert "| 0 | 0 | 6 | 0 |" in text
    assert "published accuracy" not in text  # a column that is empty in every line
    assert "sources.md" not in text  # there is no such page beside this one
    assert "| study | claims that hold | that do not | undecided |" in table
    assert "](docs/results.md#resnet-18" in table
    assert "[All results](docs/results.md): tables, intervals and seeds of 4 runs." in table
    first = (text, table)
    publish(str(results), "-o", str(page), "--readme", str(readme))
    assert (page.read_text(), readme.read_text()) == first


def test_numbers_come_from_the_runs(results, tmp_path):
    path = next(results.glob("resnet18/cifar10-resnet18-sam*/summary.json"))
    summary = json.loads(path.read_text())
    summary["test"]["accuracy"] = 0.1234
    path.write_text(json.dumps(summary))
    publish(str(results), "-o", str(tmp_path / "page.md"))
    assert "12.34" in (tmp_path / "page.md").read_text()
    assert "95.92" not in (tmp_path / "page.md").read_text()


def test_wrong_input(results, tmp_path):
    plain = tmp_path / "plain.md"
    plain.write_text("no marks")
    page = str(tmp_path / "page.md")
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, what in (
        ((str(tmp_path / "none"),), "no such folder"),
        ((str(empty),), "no compared study"),
        ((str(results), "--readme", str(plain)), "marks of the results table are missing"),
    ):
        result, text = publish(*words, "-o", page)
        assert result.exit_code != 0
        assert what in text
    assert plain.read_text() == "no marks"


def test_sources_are_named_as_such(tmp_path):
    folder, page = tmp_path / "results", tmp_path / "docs/results.md"
    shutil.copytree(RESULTS / "rescaling", folder / "rescaling")
    page.parent.mkdir()
    (page.parent / "sources.md").write_text("# Sources\n")
    result, _ = publish(str(folder), "-o", str(page))
    assert result.exit_code == 0
    text = page.read_text()
    assert "[sources](sources.md)" in text
    assert "| source 004, figure 2 |" in text
    assert "| steppe |" in text
    assert "seed 0" not in text
    assert "seed's" not in text


def test_accuracies_of_the_overview_are_published_and_ours(tmp_path):
    folder, page = tmp_path / "results", tmp_path / "page.md"
    shutil.copytree(RESULTS / "wrn", folder / "wrn")
    assert publish(str(folder), "-o", str(page))[0].exit_code == 0
    text = page.read_text()
    assert "Adam 92.3 %; SAM 96.19 %" in text
    assert "Adam 93.07 %; SAM 95.77 %" in text


def test_readme_table_orders_studies_by_decided_claims_and_omits_small_scales(tmp_path):
    kept = ("resnet18-small", "resnet18", "swin-finetune-laptop", "cost-effective-own", "accumulation", "wrn")
    for name in kept:
        shutil.copytree(RESULTS / name, tmp_path / "results" / name)
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    page = str(tmp_path / "docs/results.md")
    assert publish(str(tmp_path / "results"), "-o", page, "--readme", str(readme))[0].exit_code == 0
    rows = [line for line in readme.read_text().splitlines() if line.startswith("| [")]
    assert [line.partition("]")[0].removeprefix("| [") for line in rows] == ["accumulation", "wrn", "resnet18"]
    assert rows[2].endswith("#resnet-18-on-cifar-10-and-cifar-100-sgd-and-sam) | 0 | 0 | 6 |"), "paper, not small"


def test_readme_without_large_scales_has_the_link_alone(tmp_path):
    shutil.copytree(RESULTS / "swin-finetune-laptop", tmp_path / "results" / "swin")
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    page = str(tmp_path / "page.md")
    assert publish(str(tmp_path / "results"), "-o", page, "--readme", str(readme))[0].exit_code == 0
    assert readme.read_text() == f"{BEGIN}\n[All results](page.md): tables, intervals and seeds of 13 runs.\n{END}\n"


def test_readme_table_of_the_project_fits_the_screen():
    """At most eight rows, and no cell of more than six words."""
    text = (RESULTS.parent / "README.md").read_text()
    table = [line for line in text[text.index(BEGIN) : text.index(END)].splitlines() if line.startswith("|")]
    cells = [re.sub(r"\(.*?\)", "", cell) for line in table for cell in line.strip("|").split("|")]
    assert 1 <= len(table) - 2 <= 8
    assert max(len(cell.split()) for cell in cells) <= 6


def test_a_benchmark_shows_the_digits_that_count_and_every_commit_it_comes_from(results, tmp_path):
    (results / "speed_h200.csv").write_text(
        "way,off_by,model,machine,torch,commit\n"
        "ours,0.00018638551409821957,vit_small_patch4,NVIDIA H200,2.11.0,abc1234\n"
        "theirs,0.0,resnet18,NVIDIA H200,2.11.0,def5678\n"
    )
    publish(str(results), "-o", str(tmp_path / "results.md"))
    page = (tmp_path / "results.md").read_text()
    assert "`results/speed_h200.csv`; NVIDIA H200, 2.11.0, abc1234, def5678." in page
    assert "| ours | 0.00018639 | vit_small_patch4 |" in page
    assert "| theirs | 0.0 | resnet18 |" in page
