"""`steppe study` as a person meets it: files, parts, claims, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import steppe
from PIL import Image


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


QUICK = ("--model", "resnet_tiny", "--batch-size", 256, "--epochs", 1)


STUDY = """
name = "mini"
question = "which?"
[base]
batch_size = 256
model = { name = "resnet_tiny" }
budget = { epochs = 1 }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
"""


def test_a_study_with_claims_has_them_judged_on_its_page(capsys, tmp_path):
    claim = '[[claims]]\ntext = "both are alike"\nholds = "epochs[how=sam] = epochs[how=base] within 0.1"\n'
    (tmp_path / "mini.toml").write_text(STUDY + claim)
    assert steppe("study", "run", "mini.toml") == 0
    assert json.loads((tmp_path / "runs" / "mini" / "compare.json").read_text())["finished"] == 2
    page = (tmp_path / "runs" / "mini" / "report.html").read_text()
    assert "both are alike" in page.split('id="published"')[1].split("</section>")[0]
    shown = capsys.readouterr().out
    assert "undecided  both are alike" in shown
    assert "1 claim: 1 undecided" in shown


def test_many_claims_of_a_study_are_only_counted_after_it_has_run(capsys, tmp_path):
    claim = '[[claims]]\ntext = "both are alike"\nholds = "epochs[how=sam] = epochs[how=base] within 0.1"\n'
    (tmp_path / "mini.toml").write_text(STUDY + 7 * claim)
    assert steppe("study", "run", "mini.toml") == 0
    shown = capsys.readouterr().out
    assert "both are alike" not in shown
    assert "7 claims: 7 undecided" in shown


def test_a_part_of_a_study_is_run_and_the_rest_later(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY)
    assert steppe("study", "run", "mini.toml", "--only", "how=sam") == 0
    assert len(list((tmp_path / "runs" / "mini").glob("*/summary.json"))) == 1
    assert len(json.loads((tmp_path / "runs" / "mini" / "study.json").read_text())["runs"]) == 2
    assert steppe("study", "run", "mini.toml", "--only", "how=asam") == 2
    assert "did you mean 'sam'" in capsys.readouterr().err
    assert steppe("study", "run", "mini.toml") == 0
    assert len(list((tmp_path / "runs" / "mini").glob("*/summary.json"))) == 2


def test_a_study_from_a_file(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY)
    assert steppe("study", "run", "mini.toml", "--dry-run") == 0
    assert "2 runs to do, 0 finished before; 15 gradient evaluations" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert steppe("study", "run", "mini.toml") == 0
    out = capsys.readouterr().out
    assert "report: runs/mini/report.html" in out
    assert "base" in out
    assert (tmp_path / "runs" / "mini" / "report.html").stat().st_size > 100_000
    assert steppe("study", "run", "mini.toml", "--dry-run") == 0
    assert "0 runs to do, 2 finished before" in capsys.readouterr().out
    assert steppe("report", "runs/mini", "-o", "page.html") == 0
    assert (tmp_path / "page.html").exists()
    assert steppe("report", "runs/none") == 2
    (tmp_path / "other.toml").write_text(STUDY.replace('"mini"', '"other"'))
    assert steppe("study", "run", "other.toml", "-o", "runs/mini") == 2
    assert "belongs to the study 'mini'" in capsys.readouterr().err


@pytest.mark.long
def test_a_study_that_asks_for_attention_has_it_on_its_page(capsys, tmp_path):
    asked = "[measure.geometry]\nattention = { images = 2 }\n"
    text = STUDY.replace("resnet_tiny", "vit_tiny_p2") + '[axes.how.conv]\nmodel = { name = "resnet_tiny" }\n' + asked
    (tmp_path / "mini.toml").write_text(text)
    assert steppe("study", "run", "mini.toml") == 0
    folder = tmp_path / "runs" / "mini"
    sheets = sorted(folder.glob("*/figures/attention_sheet.png"))
    assert [sheet.parts[-3].split("-")[1] for sheet in sheets] == ["vit_tiny_p2"] * 2
    assert (folder / "report.html").read_text().count("data:image/webp;base64,") == 2
    written = [sheet.stat().st_mtime_ns for sheet in sheets]
    capsys.readouterr()
    assert steppe("study", "run", "mini.toml") == 0
    assert [sheet.stat().st_mtime_ns for sheet in sheets] == written  # drawn once
    geometry = sheets[0].parents[1] / "geometry.json"
    geometry.write_text(geometry.read_text().replace('"last_layer"', '"lost"'))
    assert steppe("study", "run", "mini.toml") == 0
    assert "the report shows no attention maps of" in capsys.readouterr().out


def test_a_study_with_a_failing_run_exits_with_2_and_reports_the_rest(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY + '[axes.how.bad]\nmodel = { name = "no_such" }\n')
    assert steppe("study", "run", "mini.toml") == 2
    captured = capsys.readouterr()
    assert "1 of 3 runs failed" in captured.err
    assert "unknown model 'no_such'" in captured.err
    assert (tmp_path / "runs" / "mini" / "report.html").exists()


def test_nothing_of_the_users_is_written_over(capsys, tmp_path):
    assert steppe("train", *QUICK, "-o", "r") == 0
    (tmp_path / "notes.txt").write_text("mine")
    for target in ("notes.txt", "r/weights.safetensors", "r"):
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        assert steppe("report", "r", "-o", target) == 2
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert steppe("report", "r", "-o", "page.html") == 0
    assert steppe("report", "r", "-o", "page.html") == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("my page")
    (tmp_path / "mini.toml").write_text(STUDY)
    assert steppe("study", "run", "mini.toml", "-o", "mine") == 2
    assert (tmp_path / "mine" / "report.html").read_text() == "my page"


def test_markup_in_names_is_only_text(capsys, tmp_path):
    (tmp_path / "odd.toml").write_text(
        STUDY.replace('"mini"', '"mini"\ntitle = "[/foo] x"').replace("axes.how.base", 'axes.how."[/b]"')
    )
    assert steppe("study", "show", "odd.toml") == 0
    assert "[/b]" in capsys.readouterr().out
    assert steppe("data", "--data-root", "x[/x]") == 0


def test_a_plan_with_a_bad_cell_is_estimated_all_the_same(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY + '[axes.how.bad]\nmodel = { name = "no_such" }\n')
    assert steppe("study", "run", "mini.toml", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "1 of 3 runs cannot be made: unknown model 'no_such'" in out
    assert "3 runs to do, 0 finished before; 15 gradient evaluations" in out
    assert "of training of the 2 that can be made" in out


def test_missing_data_are_told_once(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY.replace("[base]", '[base]\ndata = { name = "imagenet" }'))
    place = ("--data-root", tmp_path / "nowhere")
    assert steppe("study", "run", "mini.toml", "--dry-run", *place) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error 2 of 2 runs cannot be made: imagenet is not there")
    assert told.err.count("imagenet is not there") == told.err.count("fix:") == 1
    assert f"where: {tmp_path / 'nowhere'}" in told.err
    assert told.out == ""  # no table of dashes, and no cost of nothing
    assert steppe("study", "run", "mini.toml", *place) == 2
    told = capsys.readouterr()
    assert told.out.count("imagenet is not there") == 1
    assert "failed for the same reason" in told.out
    assert told.err.count("imagenet is not there") == told.err.count("fix:") == 1
    assert " and 1 more: imagenet is not there" in told.err


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of 24 images, and a study of two runs on it."""
    random = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / f"{number:02}.png")
    study = STUDY.replace("[base]\n", '[base]\ndata = { name = "photos" }\n').replace("resnet_tiny", "mlp_8")
    (tmp_path / "mini.toml").write_text(study)
    return tmp_path / "photos"


def test_a_study_whose_images_have_changed_is_refused(photos, tmp_path, capsys):
    assert steppe("study", "run", "mini.toml", "--only", "how=base") == 0
    capsys.readouterr()
    content = (photos / "a" / "00.png").read_bytes()
    (photos / "a" / "00.png").unlink()
    assert steppe("study", "run", "mini.toml", "--workers", 1) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "the data are not those that" in told
    assert "training images then" in told
    assert len(list((tmp_path / "runs" / "mini").glob("*/summary.json"))) == 1
    (photos / "a" / "00.png").write_bytes(content)
    assert steppe("study", "run", "mini.toml") == 0
    assert len(list((tmp_path / "runs" / "mini").glob("*/summary.json"))) == 2


def test_a_study_whose_runs_learned_from_different_images_is_refused(photos, tmp_path, capsys):
    assert steppe("study", "run", "mini.toml") == 0
    capsys.readouterr()
    path = max((tmp_path / "runs" / "mini").glob("*/data.json"))
    about = json.loads(path.read_text())
    about["examples"]["train"] -= 1
    path.write_text(json.dumps(about))
    assert steppe("study", "run", "mini.toml") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "learned from different data" in told
    assert f"{about['examples']['train'] + 1} training images then" in told


def test_a_run_whose_images_have_changed_says_what_has(photos, capsys):
    command = ("train", "--data", "photos", "--model", "mlp_8", "--epochs", 1, "-o", "run")
    assert steppe(*command) == 0
    (photos / "a" / "00.png").unlink()
    assert steppe(*command) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(r"not those this run was made with: 18 training images then, 17 now", told)
