"""What the page is given of geometry and robustness: the right numbers, and nothing that was not measured alike."""

from __future__ import annotations

import base64
import io
import json

import pytest
from PIL import Image
from report_results import CORRUPTIONS, add_results, confusion, name_classes

from steppe.report import confusion as confusion_module
from steppe.report import summarise, write_report
from steppe.report.layout import lay_out
from steppe.report.measured_charts import measured_data, settings_notes
from steppe.report.pictures import PictureBudget, read_attention, shrink
from steppe.report.record import read_records
from steppe.report.results import find_subjects
from steppe.report.scalars import attack_table, every_scalar, figure_table
from steppe.runs import write_json


def look(runs):
    records = read_records(runs)
    rows = summarise(runs)
    subjects = find_subjects(rows, records)
    return rows, records, subjects, measured_data(rows, records, lay_out(rows), subjects)


@pytest.fixture
def pair(new_run):
    """A plain run and a flatter one."""
    plain, sharp = (new_run(values={"minimizer": {"name": name}}) for name in ("base", "sam"))
    add_results(plain, 2.0)
    add_results(sharp, 0.5)
    return [plain, sharp]


def test_every_kind_of_result_is_drawn(pair):
    _, _, subjects, shown = look(pair)
    assert [subject.name for subject in subjects] == ["base", "sam"]
    for kind in ("landscapes", "lines", "betweens", "spectra", "corruptions", "reliability", "attention"):
        assert len(shown[kind]) == 2, kind
    assert shown["landscapes"][0]["loss"][0][0] == pytest.approx(3.02)
    assert shown["landscapes"][1]["centre"] == 0.02
    assert shown["betweens"][0]["other"] == "<other>"
    assert shown["blocks"]["lambda_max"][0]["parts"]["whole"] == [40.0, None, True]
    assert shown["blocks"]["lambda_max"][0]["parts"]["mlp"][2] is False  # not converged, and said so
    assert shown["blocks"]["active"][0]["parts"] == {"stem": [0.4, None, True], "block1": [0.6, None, True]}
    assert list(shown["corruptions"][0]["table"]) == CORRUPTIONS
    assert shown["reliability"][0]["points"][0] == [0.15, 0.1, 10]


def test_the_way_to_a_run_of_the_page_ends_at_its_name(pair):
    plain, sharp = pair
    found = plain.read("geometry.json")
    found["between"]["settings"]["with"] = f"/elsewhere/{sharp.path.name}"
    write_json(plain.path / "geometry.json", found)
    *_, shown = look(pair)
    assert [one["other"] for one in shown["betweens"]] == ["sam", "<other>"]


def test_a_density_integrates_to_one(pair):
    *_, shown = look(pair)
    for one in shown["spectra"]:
        area = sum(
            (b - a) * (y + z) / 2 for a, b, y, z in zip(one["x"], one["x"][1:], one["y"], one["y"][1:], strict=False)
        )
        assert area == pytest.approx(1, abs=0.02)
    assert shown["spectra"][0]["top"] == [40.0]


def test_seeds_are_averaged_and_pooled(new_run):
    runs = [new_run(values={"seed": seed}) for seed in (0, 1, 2)]
    add_results(runs[0], 1.0)
    add_results(runs[1], 3.0)
    rows, records, subjects, shown = look(runs)
    assert [(s.name, s.first) for s in subjects] == [
        ("vit_tiny_p2 · base · seed 0", True),
        ("vit_tiny_p2 · base · seed 1", False),
    ]
    mean, std, _ = shown["blocks"]["lambda_max"][0]["parts"]["whole"]
    assert (mean, std) == (40.0, pytest.approx(28.28, abs=0.01))
    assert shown["reliability"][0]["points"][0] == [0.15, 0.1, 20]  # the images of both
    assert shown["corruptions"][0]["seeds"] == 2
    table = figure_table(rows, records, subjects)
    column = [head["text"] for head in table["heads"]].index("λmax")
    assert (table["rows"][0]["cells"][column]["text"], table["rows"][0]["cells"][column]["spread"]) == ("40", "± 28")


def test_confusions_of_seeds_are_added_up(new_run):
    runs = [new_run(values={"seed": seed}) for seed in (0, 1)]
    for run, sharpness in zip(runs, (1.0, 3.0), strict=True):
        add_results(run, sharpness)
        name_classes(run, [f"class {k}" for k in range(10)])
    *_, shown = look(runs)
    (one,) = shown["confusions"]
    assert shown["class_names"] == [[f"class {k}" for k in range(10)]]
    assert (one["classes"], one["seeds"], one["fewest"], one["sizes"]) == (0, 2, 1, [90] * 10)
    assert one["lines"][0] == [0, 84, 1, 6]
    assert one["lines"][9] == [0, 3, 9, 87]
    mean, std = one["accuracy"][0]
    assert mean == pytest.approx(84 / 90, abs=1e-4)
    assert std == pytest.approx(2 / 45 / 2**0.5, rel=1e-3)


def test_of_too_many_mistakes_the_rarest_are_left_out(pair, monkeypatch):
    monkeypatch.setattr(confusion_module, "_MOST_CELLS", 12)
    *_, shown = look(pair)
    plain = shown["confusions"][0]
    assert plain["fewest"] == 3  # of ten mistakes, six have room: nine have 2 images and one has 4
    assert plain["lines"][0] == [0, 41, 1, 4]
    assert plain["lines"][5] == [5, 43]  # what was recognised stays


def test_classes_without_names_or_images(new_run):
    run = new_run()
    add_results(run)
    found = run.read("robustness.json")
    found["scores"]["confusion"] = [[0, 0, 0], [0, 4, 1], [0, 0, 5]]
    run.write("robustness.json", found)
    *_, shown = look([run])
    assert shown["class_names"] == [["0", "1", "2"]]
    assert shown["confusions"][0]["accuracy"] == [[None, None], [0.8, None], [1.0, None]]


def test_runs_measured_otherwise_are_not_averaged(new_run):
    runs = [new_run(values={"seed": seed}) for seed in (0, 1, 2)]
    for run, examples in zip(runs, (256, 256, 5000), strict=True):
        add_results(run, 1.0 if examples == 256 else 50.0, examples=examples)
    _, _, subjects, shown = look(runs)
    assert shown["blocks"]["lambda_max"][0]["seeds"] == 2
    assert shown["blocks"]["lambda_max"][0]["parts"]["whole"][0] == 20.0
    note = settings_notes(subjects)["lambda_max"]
    assert note["mixed"]
    assert "examples 256 (2 runs)" in note["text"]
    assert "examples 5000 (1 run)" in note["text"]
    assert not settings_notes(subjects)["scores"]["mixed"]


def test_settings_that_came_later_do_not_set_earlier_figures_apart(pair):
    first, second = (run.path / "geometry.json" for run in pair)
    found = json.loads(second.read_text())
    found["lambda_max"]["settings"] |= {"batchnorm": "running", "batch": 512, "subsets": 1}
    second.write_text(json.dumps(found))
    *_, subjects, _ = look(pair)
    assert settings_notes(subjects)["lambda_max"] == {"text": "parts roles, examples 256", "mixed": False}
    found["lambda_max"]["settings"]["batchnorm"] = "batch"
    second.write_text(json.dumps(found))
    *_, subjects, _ = look(pair)
    assert settings_notes(subjects)["lambda_max"]["mixed"]
    assert "batchnorm batch (1 run)" in settings_notes(subjects)["lambda_max"]["text"]
    assert "batchnorm" not in first.read_text()


def test_figures_have_their_settings(pair):
    rows, records, subjects, _ = look(pair)
    found = every_scalar(subjects)
    named = {(subjects[s].name, found["names"][n]): (v, found["settings"][p]) for s, n, v, p in found["lines"]}
    value, settings = named["base", "lambda_max parts whole lambda max value"]
    assert value == 40.0
    assert settings == (
        "parts roles, examples 256 · device cpu, torch 2.15.0, precision float32, loss cross-entropy, examples 256, "
        "batch 256, batch norm running"
    )
    active = figure_table(rows, records, subjects)
    column = [head["text"] for head in active["heads"]].index("Active neurons %")
    assert active["rows"][0]["cells"][column]["text"] == "55.0"  # 100 neurons at 40 %, 300 at 60 %


def test_attacks_say_when_gradients_may_be_masked(pair):
    rows, records, _, _ = look(pair)
    plain, sharp = attack_table(rows, records)
    assert [cell["text"] for cell in plain["cells"]] == ["95.0", "70.0", "40.0"]
    assert plain["epsilon"] == "2/255"
    assert "<fewer>" in plain["warnings"][0]["text"]
    assert (sharp["warnings"], sharp["checked"]) == ([], 1)


def test_what_was_found_of_attacks_on_many_seeds_does_not_widen_their_table(new_run, tmp_path):
    runs = [new_run(values={"seed": seed}) for seed in (0, 1, 2)]
    for run, sharpness in zip(runs, (2.0, 1.0, 2.0), strict=True):
        add_results(run, sharpness)
    (line,) = attack_table(*look(runs)[:2])
    assert [one["seed"] for one in line["warnings"]] == [0, 2]
    assert line["checked"] == 3
    page = write_report(runs, tmp_path / "report.html").read_text()
    table = page.split('id="attack-table"')[1].split("</table>")[0]
    assert "too high</span> 2 of 3 seeds" in table
    assert "restarts" not in table
    found = page.split("too high in 2 of 3 runs: what the check found")[1].split("</details>")[0]
    assert found.count("many restarts leave &lt;fewer&gt; right answers") == 2
    assert "seed 2: many" in found


def test_an_attack_is_described_by_the_settings_its_accuracies_were_measured_with(new_run):
    """Of three seeds the first was attacked harder: it counts for nothing in the row's line."""
    runs = [new_run(values={"seed": seed}) for seed in (0, 1, 2)]
    for run, sharpness in zip(runs, (2.0, 1.0, 1.0), strict=True):
        add_results(run, sharpness)
    hard = {"epsilon": 0.1, "steps": 50, "settings": {"epsilon": 0.1}}
    known = runs[0].read("robustness.json")
    runs[0].write("robustness.json", known | {"attacks": known["attacks"] | hard})
    (line,) = attack_table(*look(runs)[:2])
    assert line["cells"][2]["text"] == "50.0 ± 0.0"
    assert (line["epsilon"], line["steps"], line["checked"], line["warnings"]) == ("2/255", "10", 2, [])


def test_large_landscapes_are_thinned_but_keep_their_ends(new_run):
    run = new_run()
    add_results(run, 1.0, points=101)
    (one,) = look([run])[3]["landscapes"]
    assert len(one["steps"]) == len(one["loss"]) == len(one["loss"][0]) == 51
    assert (one["steps"][0], one["steps"][25], one["steps"][-1]) == (-1, 0, 1)


ODD = [
    {"landscape": {"steps": [0, 1], "loss": [[1, 2]]}},
    {"landscape": {"steps": "x", "loss": 7}, "line": {"steps": [1], "loss": []}, "between": []},
    {"spectrum": {"nodes": [[1, None]], "weights": [[1]]}, "lambda_max": {"parts": [1]}, "norms": {"weights": 3}},
    {"attention": {"images": "all"}, "trace": {"parts": {"whole": 5}}, "sharpness": None},
    {"scores": {"reliability": [3, {"count": "many"}]}, "corruptions": {"table": {"fog": "thick", "snow": [None]}}},
    {"scores": {"confusion": [[1, 2], [3]]}},
    {"scores": {"confusion": [[1, "2"], [-3, 4.5]]}},
    {"scores": {"confusion": [[1e300, 0], [0, None]]}},
    {"scores": {"confusion": [[0, 0], [0, 0]]}},
    {"corruptions": {"table": []}, "attacks": {"check": 3, "clean": {}, "epsilon": "wide"}},
    {"landscape": {"steps": [-1, 1], "loss": [[1e308, None], [-5, 0]], "centre": None}},
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_results_are_gaps(new_run, tmp_path, odd):
    run = new_run()
    for name in ("geometry.json", "robustness.json"):
        (run.path / name).write_text(json.dumps(odd))
    assert write_report([run], tmp_path / "r.html").stat().st_size > 1000


def test_attention_is_one_small_picture(pair):
    found = read_attention(read_records(pair)[0], PictureBudget())
    assert (found["columns"], found["lines"], found["images"]) == (4, 3, [0, 1, 2, 3])
    kind, _, data = found["src"].partition(";base64,")
    assert kind == "data:image/webp"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (4 * 96, 3 * 96)
    assert read_attention(read_records(pair)[0], PictureBudget(10)) is None  # no room


def test_without_a_sheet_the_figure_is_shown(pair):
    folder = pair[0].path / "figures"
    (folder / "attention_sheet.png").unlink()
    Image.new("RGB", (2000, 500), "red").save(folder / "attention.png")
    found = read_attention(read_records(pair)[0], PictureBudget())
    assert found["columns"] == 0
    assert Image.open(io.BytesIO(base64.b64decode(found["src"].split(",")[1]))).size == (800, 200)


def test_what_is_no_picture_is_left_out(tmp_path):
    assert shrink(tmp_path / "none.png") is None
    (tmp_path / "text.png").write_text("<svg onload=alert(1)>")
    assert shrink(tmp_path / "text.png") is None
    Image.new("1", (6000, 6000)).save(tmp_path / "large.png")
    assert shrink(tmp_path / "large.png") is None
    Image.new("RGB", (9, 9)).save(tmp_path / "other.png", "JPEG")
    assert shrink(tmp_path / "other.png") is None


def test_fifty_measured_runs_stay_under_ten_megabytes(new_run, tmp_path):
    runs = [
        new_run(values={"seed": s, "minimizer": {"name": "sam", "rho": r / 100}}) for r in range(1, 26) for s in (0, 1)
    ]
    for run in runs:
        add_results(run, 1.0 + run.config.minimizer.rho, points=51, images=8)
        found = run.read("robustness.json")
        found["scores"]["confusion"] = confusion(100, images=100, mistakes=20)
        run.write("robustness.json", found)
    assert write_report(runs, tmp_path / "r.html").stat().st_size < 10e6


def test_a_spread_of_hundreds_is_written_out(new_run):
    runs = [new_run(values={"seed": seed}) for seed in (0, 1)]
    for run, trace in zip(runs, (100.0, 400.0), strict=True):
        run.write("geometry.json", {"trace": {"parts": {"whole": {"mean": trace}}, "settings": {"probes": 5}}})
    rows, records, subjects, _ = look(runs)
    table = figure_table(rows, records, subjects)
    place = [head["text"] for head in table["heads"]].index("Trace")
    shown = table["rows"][0]["cells"][place]
    assert (shown["text"], shown["spread"]) == ("250", "± 212")
