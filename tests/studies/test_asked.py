"""Measures a study asks for by name, and the best of a sweep."""

from __future__ import annotations

import pytest

from steppe.cli import main
from steppe.config import StudyConfig, at_scale, plan
from steppe.errors import ConfigError, SteppeError
from steppe.runs import Run, create_run, read_json, write_json
from steppe.studies import compare_study, execute, find_study, read_published
from steppe.studies.measures import read_measure
from steppe.studies.pipeline import has_measures

STUDY = """
name = "asked"
base = { batch_size = 128, data = { fraction = 0.2 }, budget = { epochs = 1 }, model = { name = "resnet_tiny" } }
[measure]
noise_draws = 2
noise_examples = 50
[measure.geometry]
lambda_max = { examples = 32, iterations = 3, parts = "whole" }
attention = { images = 2 }
[measure.robustness]
corruptions = { examples = 20, names = "gaussian_noise,brightness" }
"""


def study_of(tmp_path, text):
    (tmp_path / "study.toml").write_text(text)
    return find_study(str(tmp_path / "study.toml"))[0]


def test_what_is_asked_for_is_measured_once_and_what_means_nothing_is_passed_over(tmp_path):
    study = study_of(tmp_path, STUDY)
    (planned,) = plan(study)
    run = execute(planned.config, tmp_path / "run", measure=study.measure)
    assert read_measure(run, "geometry.lambda_max.parts.whole.lambda_max.value") > 0
    assert 0 <= read_measure(run, "robustness.corruptions.mean") <= 1
    assert run.read("geometry.json")["noise_loss"]["draws"] == 2
    assert "no attention" in run.read("left_out.json")["attention"]["reason"]
    assert has_measures(run, study.measure)
    before = (run.path / "geometry.json").stat().st_mtime_ns
    execute(planned.config, tmp_path / "run", measure=study.measure)
    assert (run.path / "geometry.json").stat().st_mtime_ns == before
    changed = study.measure.model_copy(update={"geometry": {"lambda_max": {"examples": 16, "iterations": 3}}})
    assert not has_measures(run, changed)
    found = read_json(run.path / "robustness.json")
    write_json(run.path / "robustness.json", {**found, "corruptions": {**found["corruptions"], "settings": {}}})
    assert not has_measures(Run(run.path), study.measure), "a figure made with other settings is not the study's"


def test_a_training_step_is_timed_by_itself_where_the_study_asks(tmp_path):
    """The epochs of runs that share a machine say what the others did."""
    study = study_of(tmp_path, STUDY.replace("noise_draws = 2", "noise_draws = 2\nstep_s = 0.05"))
    (planned,) = plan(study)
    basics = study.measure.model_copy(update={"geometry": {}, "robustness": {}})
    without = basics.model_copy(update={"step_s": 0.0})
    run = execute(planned.config, tmp_path / "run", measure=without)
    assert read_measure(run, "compute_per_epoch_s") is None
    assert has_measures(run, without)
    assert not has_measures(run, basics)
    execute(planned.config, tmp_path / "run", measure=basics)
    step = run.read("cost.json")["training_step"]
    assert step["gradients"] == 1.0
    assert read_measure(run, "compute_per_epoch_s") == step["epoch_s"] > 0
    assert has_measures(run, basics)
    former = {"batch_size": 128, "memory_mib": 1.0}
    run.write("cost.json", run.read("cost.json") | {"training_step": former})
    assert not has_measures(run, basics), "memory alone is not a time"
    run.write("cost.json", run.read("cost.json") | {"training_step": former | {"time_s": None, "time_reason": "why"}})
    assert has_measures(run, basics), "it cannot be timed, and need not be tried again"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lambda_max = { examples", "lambda_mux = { examples", "lambda_max"),
        ("iterations = 3", "iteration = 3", "iterations"),
        ("iterations = 3", 'iterations = "3"', "kind of its default"),
        ("iterations = 3", "iterations = true", "kind of its default"),
        ("iterations = 3", "iterations = -3", "lambda_max.iterations cannot be -3"),
        ("iterations = 3", 'method = "guess"', "choose one of: lanczos, power"),
        ("attention = { images = 2 }", "noise = {}", "on every run anyway"),
        ("attention = { images = 2 }", "attention = 2", "not a table of settings"),
        ("corruptions = {", "attention = {", "unknown measure 'attention'"),
    ],
)
def test_a_measure_that_does_not_exist_is_refused_with_its_place(tmp_path, old, new, message):
    with pytest.raises(ConfigError) as error:
        study_of(tmp_path, STUDY.replace(old, new, 1))
    assert message in str(error.value)
    assert "measure." in str(error.value)


def test_a_scale_changes_and_leaves_out_measures(tmp_path):
    text = STUDY.replace('name = "asked"', 'name = "asked"\ndefault_scale = "small"')
    text += "[scale.small]\n[scale.smoke]\nmeasure = { geometry = { attention = false, lambda_max = { top = 2 } } }\n"
    study = study_of(tmp_path, text)
    assert at_scale(study, "small").measure.asked["geometry"]["attention"] == {"images": 2}
    geometry = at_scale(study, "smoke").measure.asked["geometry"]
    assert geometry == {"lambda_max": {"examples": 32, "iterations": 3, "parts": "whole", "top": 2}}


SWEEP = """
name = "sweep"
seeds = [0, 1, 2]
[axes.model.A]
[axes.model.B]
model = { name = "resnet_tiny" }
[axes.rho."0.1"]
minimizer = { name = "sam", rho = 0.1 }
[axes.rho."0.2"]
minimizer = { name = "sam", rho = 0.2 }
[[claims]]
text = "B prefers a larger radius"
holds = "config.minimizer.rho[model=B, rho=best] > config.minimizer.rho[model=A, rho=best]"
[[claims]]
text = "the best of B is above the average"
holds = "test_accuracy[model=B, rho=best] > test_accuracy[model=B, rho=*]"
[[claims]]
text = "the best of each, averaged"
holds = "test_accuracy[model=*, rho=best] > 0.75"
"""
VALIDATED = {
    ("A", "0.1"): [0.9, 0.9, 0.7],
    ("A", "0.2"): [0.8, 0.8, 0.8],
    ("B", "0.1"): [0.5] * 3,
    ("B", "0.2"): [0.6] * 3,
}
TESTED = {
    ("A", "0.1"): [0.80, 0.81, 0.90],
    ("A", "0.2"): [0.1, 0.1, 0.82],
    ("B", "0.1"): [0.7] * 3,
    ("B", "0.2"): [0.8, 0.81, 0.8],
}


def test_the_best_of_a_sweep_is_chosen_by_validation_with_every_seed(tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "study.toml").write_text(SWEEP)
    (folder / "published.csv").write_text(
        "value,unit,seed,table,row,column,measure,labels,note\n"
        '0.2,,003,table 11,A,rho,config.minimizer.rho,"model=A, rho=best",\n'
    )
    study, path = find_study(str(folder))
    planned = plan(study)
    for p in planned:
        cell = p.labels["model"], p.labels["rho"]
        run = create_run(tmp_path / "runs" / p.config.run_id, p.config)
        numbers = {
            "val": {"accuracy": VALIDATED[cell][p.config.seed]},
            "test": {"accuracy": TESTED[cell][p.config.seed]},
        }
        run.write("summary.json", {"status": "finished", "epochs": 1, **numbers})
    found = compare_study(study, planned, tmp_path / "runs", read_published(study, path))
    radius, above, both = (claim.verdict for claim in found.claims)
    (cell,) = found.cells
    assert cell.measured == pytest.approx((0.1 + 0.1 + 0.2) / 3)
    assert (cell.seeds, cell.of_seeds) == (3, 3)
    assert radius.difference == pytest.approx(0.2 - 0.4 / 3)
    assert radius.verdict == "undecided", "which one is chosen is a matter of chance, unlike a configuration"
    assert above.verdict == "holds"
    assert both.difference == pytest.approx((0.80 + 0.81 + 0.82 + 0.8 + 0.81 + 0.8) / 6 - 0.75)

    (unfinished,) = (p for p in planned if (*p.labels.values(), p.config.seed) == ("A", "0.2", 2))
    (tmp_path / "runs" / unfinished.config.run_id / "summary.json").unlink()
    (cell,) = compare_study(study, planned, tmp_path / "runs", read_published(study, path)).cells
    assert (cell.measured, cell.seeds, cell.of_seeds) == (0.1, 2, 3), "of seed 2 the better one is not known yet"


def test_best_is_refused_among_runs_that_learn_their_validation_images(tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "study.toml").write_text(SWEEP.replace("[axes.", "[base.data]\nlearn_from_val = true\n[axes.", 1))
    study, _ = find_study(str(folder))
    planned = plan(study)
    create_run(tmp_path / "runs" / planned[0].config.run_id, planned[0].config)
    with pytest.raises(ConfigError, match="takes the run that validates best"):
        compare_study(study, planned, tmp_path / "runs", [])


def test_best_of_an_axis_that_is_not_there_is_refused():
    text = {"name": "s", "axes": {"rho": {"1": {}}}, "claims": [{"text": "x", "holds": "epochs[radius=best] > 1"}]}
    from steppe.config.study import check_claims

    with pytest.raises(ConfigError, match="no cell of the study"):
        check_claims(StudyConfig.model_validate(text))


def test_blocks_are_named_by_their_place_whatever_the_depth(tmp_path):
    study = StudyConfig.model_validate({"name": "s"})
    (planned,) = plan(study)
    run = create_run(tmp_path / "run", planned.config)
    run.write("summary.json", {"status": "finished"})
    parts = {"whole": 9, **{f"block{n}": n for n in range(12, 0, -1)}}
    run.write("geometry.json", {"lambda_max": {"parts": parts}, "norms": {"parts": {"whole": 1}}})
    places = [read_measure(run, f"geometry.lambda_max.parts.{place}_block") for place in ("first", "middle", "last")]
    assert places == [1, 6, 12]
    assert read_measure(run, "geometry.norms.parts.last_block") is None


DRAWN = """
name = "drawn"
base = { batch_size = 64, data = { fraction = 0.1 }, budget = { epochs = 2 } }
[measure]
noise_draws = 2
noise_examples = 20
[measure.geometry]
landscape = { points = 3, examples = 20 }
norms = { examples = 20 }
attention = { images = 2 }
lambda_max = { examples = 20, iterations = 2, tolerance = 0.5, parts = "whole" }
[axes.model.ViT]
model = { name = "vit_1l_2h_16_p2" }
[axes.model.ResNet]
model = { name = "resnet_tiny" }
"""


def test_the_runs_of_a_study_are_drawn_side_by_side(tmp_path, capsys):
    study = study_of(tmp_path, DRAWN)
    file, out = str(tmp_path / "study.toml"), tmp_path / "runs"
    with pytest.raises(SystemExit) as stopped:
        main(["study", "figures", file, str(out)])
    assert stopped.value.code == 2
    assert "no such folder" in capsys.readouterr().err
    for p in plan(study):
        execute(p.config, out / p.config.run_id, measure=study.measure).weights.unlink()  # as in results/
    with pytest.raises(SystemExit) as done:
        main(["study", "figures", file, str(out)])
    assert not done.value.code
    drawn = {path.name for path in (out / "figures").iterdir()}
    curves = ("train_loss", "train_accuracy", "val_accuracy", "lr")
    names = ("landscapes", "lambda_max", "active_neurons", *curves, "attention")
    assert drawn == {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}


def test_a_measure_that_fails_does_not_keep_the_others_from_being_made(tmp_path):
    study = study_of(tmp_path, STUDY.replace("iterations = 3", "iterations = 3, top = 5"))
    (planned,) = plan(study)
    with pytest.raises(SteppeError, match="do not find 5 eigenvalues"):
        execute(planned.config, tmp_path / "run", measure=study.measure)
    run = Run(tmp_path / "run")
    assert 0 <= read_measure(run, "robustness.corruptions.mean") <= 1
    assert list(run.read("left_out.json")) == ["attention"]
    assert not has_measures(run, study.measure)
