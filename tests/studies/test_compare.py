from __future__ import annotations

import csv

import pytest

from steppe.cli import main
from steppe.config import at_scale, plan
from steppe.errors import ConfigError, RunError
from steppe.report import summarise
from steppe.report.comparison import published_tables
from steppe.runs import Run, create_run, put_result, read_json, write_json
from steppe.studies import compare_study, find_study, read_published, write_comparison
from steppe.studies.asked import own_settings
from steppe.studies.measures import check_name, read_measure

STUDY = """
name = "mine"
seeds = [0, 1, 2]
base = { optimizer = { name = "sgd", lr = 0.1 } }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
[[claims]]
text = "SAM is better"
holds = "test_accuracy[how=sam] > test_accuracy[how=base]"
seed = "000, table 1"
[[claims]]
text = "SAM is flatter"
holds = "geometry.curvature.lambda_max[how=sam] < geometry.curvature.lambda_max[how=base]"
"""
HEADER = "value,unit,seed,table,row,column,measure,labels,note\n"
PUBLISHED = (
    HEADER
    + """90,%,000,table 1,base,accuracy,test_accuracy,how=base,
95,%,000,table 1,sam,accuracy,test_accuracy,how=sam,
SGD,,000,table 1,all,optimizer,config.optimizer.name,how=sam,
Adam,,000,table 1,all,optimizer again,config.optimizer.name,how=base,
2,min,000,table 1,sam,time,time_s,how=sam,
1.5,,000,figure 2,sam,loss of epoch 2,metrics.2.train_loss,how=sam,
7,,000,table 3,x,y,,,not a thing of ours
"""
)
ACCURACY = {"base": [0.90, 0.91, 0.92], "sam": [0.93, 0.935, 0.95]}


@pytest.fixture
def study_file(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "published.csv").write_text(PUBLISHED)
    return folder / "study.toml"


def make_runs(path, out, unfinished=(), scale=None):
    """Run folders as training leaves them, with chosen results."""
    study, _ = find_study(str(path))
    planned = plan(at_scale(study, scale))
    for p in planned:
        run = create_run(out / p.config.run_id, p.config)
        how, seed = p.labels["how"], p.config.seed
        if (how, seed) in unfinished:
            continue
        run.append_metrics({"epoch": 1, "train_loss": 2.0})
        run.append_metrics({"epoch": 2, "train_loss": 1.0 + seed})
        accuracy = {"accuracy": ACCURACY[how][seed], "loss": 0.3}
        run.write(
            "summary.json", {"status": "finished", "test": accuracy, "train": accuracy, "time_s": 60, "epochs": 2}
        )
        run.write("geometry.json", {"curvature": {"lambda_max": 10.0 - 3 * (how == "sam") + 0.1 * seed}})
    return study, planned


def test_cells_and_claims_are_compared(study_file, tmp_path):
    out = tmp_path / "runs"
    study, planned = make_runs(study_file, out)
    found = compare_study(study, planned, out, read_published(study, study_file))
    base, sam, word, other, minutes, epoch, alone = found.cells
    assert base.measured == pytest.approx(91.0)
    assert base.difference == pytest.approx(1.0)
    assert base.std == pytest.approx(1.0)
    assert (sam.seeds, sam.of_seeds) == (3, 3)
    assert (word.same, word.difference) == (True, None)
    assert other.same is False
    assert minutes.difference == pytest.approx(-1.0)
    assert epoch.measured == pytest.approx(2.0)
    assert alone.missing == "no counterpart: not a thing of ours"
    better, flatter = found.claims
    assert better.verdict.verdict == "holds"
    assert better.verdict.difference == pytest.approx((0.03 + 0.025 + 0.03) / 3)
    assert flatter.verdict.verdict == "holds"
    assert flatter.verdict.difference == pytest.approx(-3.0)
    for file in write_comparison(found, out):
        assert file.is_file()
    written = read_json(out / "compare.json")
    assert written["cells"][0]["difference"] == pytest.approx(1.0)
    assert written["cells"][0]["measure"] == "test_accuracy[how=base]"
    assert written["claims"][1]["verdict"] == "holds"
    with open(out / "compare.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["cell"] * 7 + ["claim"] * 2
    assert float(rows[0]["difference"]) == pytest.approx(1.0)
    assert rows[8]["remark"] == "holds"
    assert float(rows[8]["high"]) == pytest.approx(-3.0)


def test_figures_of_other_data_are_shown_without_a_difference(study_file, tmp_path, capsys):
    with open(study_file.parent / "published.csv", "a") as file:
        file.write("0.3,,000,table 1,all,rate,config.optimizer.lr,how=base,\n")
    scales = '\n[scale.small]\n[scale.paper]\nbase = { data = { name = "imagenet" } }\n'
    study_file.write_text('default_scale = "small"' + STUDY + scales)
    out = tmp_path / "runs"
    make_runs(study_file, out, scale="small")
    with pytest.raises(SystemExit) as end:
        main(["study", "compare", str(study_file), str(out), "--scale", "small"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "source 000, table 1 (on imagenet, ours on digits)" in printed
    cells = {(cell["row"], cell["column"]): cell for cell in read_json(out / "compare.json")["cells"]}
    accuracy, setting = cells["base", "accuracy"], cells["all", "optimizer again"]
    assert accuracy["measured"] == pytest.approx(91.0)
    assert accuracy["difference"] is None
    assert (accuracy["published_on"], accuracy["measured_on"]) == ("imagenet", "digits")
    assert setting["same"] is False
    assert cells["all", "rate"]["difference"] == pytest.approx(-0.2), "settings of the recipe are compared"
    with open(out / "compare.csv", newline="") as file:
        assert "published on imagenet, ours on digits" in [row["remark"] for row in csv.DictReader(file)]
    same = published_tables(read_json(out / "compare.json"), 6)
    assert same is not None
    assert same["data"] == ("imagenet", "digits")
    with pytest.raises(SystemExit):
        main(["report", str(out), "-o", str(tmp_path / "page.html")])
    assert "Figures of imagenet stand beside ours of digits without" in (tmp_path / "page.html").read_text()


def test_a_paper_scale_that_cannot_be_planned_does_not_keep_another_from_being_compared(study_file, tmp_path):
    study_file.write_text(
        'default_scale = "small"' + STUDY + "\n[scale.small]\n[scale.paper]\nbase = { nonsense = 1 }\n"
    )
    out = tmp_path / "runs"
    make_runs(study_file, out, scale="small")
    study, path = find_study(str(study_file))
    small = at_scale(study, "small")
    found = compare_study(small, plan(small), out, read_published(study, path), whole=study)
    assert found.cells[0].difference == pytest.approx(1.0)


def test_unfinished_studies_say_what_is_missing(study_file, tmp_path):
    out = tmp_path / "runs"
    study, planned = make_runs(study_file, out, unfinished={("base", s) for s in range(3)} | {("sam", 1)})
    found = compare_study(study, planned, out, read_published(study, study_file))
    assert (found.finished, found.runs) == (2, 6)
    assert found.cells[0].missing == "no finished run has it"
    assert (found.cells[1].seeds, found.cells[1].of_seeds) == (2, 3)
    assert found.claims[0].verdict.verdict == "not measured yet"
    assert "test_accuracy[how=base]" in found.claims[0].verdict.reason
    with pytest.raises(RunError, match="there is no run of this study here"):
        compare_study(study, planned, tmp_path / "elsewhere", [])


def test_the_command_prints_and_writes(study_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_runs(study_file, tmp_path / "runs" / "mine")
    with pytest.raises(SystemExit) as end:
        main(["study", "compare", str(study_file)])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "holds  SAM is better" in shown
    assert "+1" in shown
    assert "2 claims: 2 holds" in shown
    assert (tmp_path / "runs" / "mine" / "compare.json").is_file()


def test_runs_brought_home_without_their_study_are_known_again(study_file, tmp_path, capsys):
    """The scale is the one their names belong to, and the folder says from then on which run is which cell."""
    epochs = "\n".join(f"[scale.{name}.base]\nbudget = {{ epochs = {n} }}" for name, n in (("small", 2), ("large", 9)))
    study_file.write_text('default_scale = "small"' + STUDY + epochs)
    make_runs(study_file, tmp_path / "home", scale="large")
    command = ["study", "compare", str(study_file), str(tmp_path / "home")]
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 0
    assert "study.json" in capsys.readouterr().out
    about = read_json(tmp_path / "home" / "study.json")
    assert (about["name"], about["scale"]) == ("mine", "large")
    rows = summarise([Run(tmp_path / "home" / one["run_id"]) for one in about["runs"]], about)
    assert [row.labels for row in rows] == [{"how": "base"}, {"how": "sam"}]
    write_json(tmp_path / "home" / "study.json", about | {"threads": 3})
    with pytest.raises(SystemExit):
        main(command)
    assert read_json(tmp_path / "home" / "study.json")["threads"] == 3, "what is there is left alone"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("90,%,000,t,r,c,test_acuracy,how=base,", "did you mean test_accuracy"),
        ("90,%,000,t,r,c,test_accuracy,how=bas,", "did you mean 'base'"),
        ("90,%,000,t,r,c,test_accuracy,,", "means 2 cells"),
        ("90,pct,000,t,r,c,test_accuracy,how=base,", "unknown unit 'pct'"),
        ("90,%,000,t,r,c,,,", "needs a note"),
        (",%,000,t,r,c,test_accuracy,how=base,", "needs its value"),
        ("90,%,000,t,r,c,test_accuracy,how=base", "does not have 9 columns"),
        ("90,%,000,t,r,c,config.optimizer.lrr,how=base,", "did you mean 'optimizer.lr'"),
        ("90,%,000,t,r,c,metrics.zero.train_loss,how=base,", "named by epoch"),
        ("90,%,000,t,r,c,test_accuracy,how,", "axis=label"),
    ],
)
def test_a_bad_line_is_told_with_its_place(study_file, line, message):
    (study_file.parent / "published.csv").write_text(HEADER + line + "\n")
    study, path = find_study(str(study_file))
    with pytest.raises(ConfigError) as error:
        read_published(study, path)
    assert message in str(error.value)
    assert "published.csv, line 2" in str(error.value)


def test_a_claim_about_no_measure_is_refused_when_the_study_is_found(study_file):
    study_file.write_text(STUDY.replace("test_accuracy[how=sam]", "test_acc[how=sam]"))
    with pytest.raises(ConfigError, match="there is no measure 'test_acc'"):
        find_study(str(study_file))


def test_figures_of_the_studys_own_settings_count(study_file, tmp_path):
    """A figure that somebody measured later with other settings stands in front, and is not the study's."""
    measured = """[measure.geometry]
lambda_max = { examples = 64 }
"""
    text = STUDY.replace("geometry.curvature.lambda_max", "lambda_max").replace(
        "[[claims]]", measured + "[[claims]]", 1
    )
    study_file.write_text(text)
    study, planned = make_runs(study_file, tmp_path / "runs")
    own, defaults = own_settings(study.measure)["geometry", "lambda_max"]
    for p in planned:
        flat = 3.0 if p.labels["how"] == "sam" else 0.0

        def figure(value, **changes):
            settings = {**own, **changes}
            return {
                "parts": {"whole": {"lambda_max": {"value": value, "converged": value != 10}}},
                "settings": settings,
            }

        results = put_result({}, "lambda_max", figure(10.0 - flat + 0.1 * p.config.seed**2 * (flat > 0)), defaults)
        results = put_result(results, "lambda_max", figure(0.01 + flat, examples=8), defaults)
        Run(tmp_path / "runs" / p.config.run_id).write("geometry.json", results)
    _, flatter = compare_study(study, planned, tmp_path / "runs", []).claims
    assert flatter.verdict.verdict == "holds"
    assert flatter.verdict.reason == "3 of its eigenvalues had not converged"
    assert flatter.verdict.difference == pytest.approx(-3 + 0.5 / 3)
    run = Run(tmp_path / "runs" / planned[0].config.run_id)
    assert read_measure(run, "lambda_max") == 0.01, "by itself, the last one counts"
    run.write("geometry.json", {"lambda_max": figure(5.0, examples=9)})
    assert read_measure(run, "lambda_max", own_settings(study.measure)) is None


def test_measures_are_read_by_their_path(study_file, tmp_path):
    _, planned = make_runs(study_file, tmp_path / "runs")
    run = Run(tmp_path / "runs" / planned[0].config.run_id)
    assert read_measure(run, "accuracy_gap") == 0.0
    assert read_measure(run, "config.optimizer.decay_norms") == "true"
    assert read_measure(run, "metrics.last.train_loss") == 1.0
    assert read_measure(run, "metrics.mean.train_loss") == 1.5
    assert read_measure(run, "robustness.corruption_mean") is None
    run.write("robustness.json", {"corruption_mean": 0.5})
    assert read_measure(run, "robustness.corruption_mean") == 0.5
    assert check_name("robustness.corruption_mean") is None
