from __future__ import annotations

import re

import pytest

from steppe.config import StudyConfig, at_scale, choose, load_study_config, parse, plan
from steppe.config.cells import ClaimSyntaxError, Measure, parse_labels, pick_cells, show_labels
from steppe.config.claims import Operation, parse_claim
from steppe.errors import ConfigError

STUDY = """
name = "s"
seeds = [0, 1]
default_scale = "small"
[base]
data = { name = "cifar10" }
budget = { epochs = 20 }
[axes.model.ViT]
model = { name = "vit_s_p4" }
[axes.model.ResNet]
model = { name = "resnet18" }
[axes.training.SAM]
minimizer = { name = "sam" }
[axes.training."AdamW, 2× epochs"]
budget = { epochs = 40 }
[runs.begin]
seeds = [0]
budget = { epochs = 3 }
[scale.small]
[scale.smoke]
seeds = [7]
base = { data = { name = "digits" }, budget = { gradient_evaluations = 100 } }
measure = { noise_draws = 3 }
axes.model.ViT = { model = { name = "vit_tiny_p2", mode = "finetune", weights = "run:begin" } }
axes.model.ResNet = false
axes.model.Mixer = { model = { name = "mixer_tiny_p2" } }
runs.begin = { model = { name = "vit_tiny_p2" } }
"""


def write(tmp_path, text):
    (tmp_path / "study.toml").write_text(text)
    return tmp_path / "study.toml"


def test_a_scale_is_laid_over_base_axes_runs_and_measures(tmp_path):
    study = load_study_config(write(tmp_path, STUDY))
    small, smoke = plan(study), plan(at_scale(study, "smoke"))
    assert {p.config.data.name for p in small} == {"cifar10"}
    assert {p.config.seed for p in small} == {0, 1}
    assert len(small) == 2 * 4 + 1
    assert {p.labels.get("model") for p in smoke} == {None, "ViT", "Mixer"}
    assert {p.config.seed for p in smoke if "model" in p.labels} == {7}
    assert {p.config.data.name for p in smoke} == {"digits"}
    double = next(p for p in smoke if p.labels.get("training") == "AdamW, 2× epochs")
    assert double.config.budget.epochs == 40, "a variant wins over the base of a scale"
    sam = next(p for p in smoke if p.labels.get("training") == "SAM")
    assert sam.config.budget.gradient_evaluations == 100
    assert sam.config.budget.epochs is None
    assert at_scale(study, "smoke").measure.noise_draws == 3
    assert at_scale(study, "smoke").folder_name == "s-smoke"
    assert at_scale(study).folder_name == "s-small"


def test_a_run_of_the_study_is_begun_from_by_its_id(tmp_path):
    smoke = plan(at_scale(load_study_config(write(tmp_path, STUDY)), "smoke"))
    begin = next(p for p in smoke if p.labels == {"run": "begin"})
    assert smoke[0] is begin
    users = [p for p in smoke if p.labels.get("model") == "ViT"]
    assert {p.needs for p in users} == {begin.config.run_id}
    assert {p.config.model.weights for p in users} == {f"run:{begin.config.run_id}"}
    assert begin.needs is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('default_scale = "small"\n', ""), "default_scale must name one of the scales"),
        (("axes.model.ResNet = false", "axes.model.ResNeet = false"), "unknown variant to leave out 'ResNeet'"),
        (("runs.begin = {", "runs.begun = false\nruns.begin = {"), "unknown run to leave out 'begun'"),
        (('weights = "run:begin"', 'weights = "run:begun"'), "unknown run of this study 'begun'"),
        (("measure = { noise_draws = 3 }", "measure = { noise_drows = 3 }"), "unknown key 'noise_drows'"),
        (("seeds = [7]", "sheds = [7]"), "sheds"),
    ],
)
def test_mistakes_in_scales_are_told_with_their_place(tmp_path, change, message):
    path = write(tmp_path, STUDY.replace(*change))
    with pytest.raises(ConfigError) as error:
        plan(at_scale(load_study_config(path), "smoke", where=str(path)), where=str(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_some_of_a_studys_runs_are_chosen_with_what_they_begin_from(tmp_path):
    smoke = plan(at_scale(load_study_config(write(tmp_path, STUDY)), "smoke"))
    assert choose(smoke, []) == smoke
    chosen = choose(smoke, ["model=ViT", "training=SAM", "seed=7"])
    assert [p.labels for p in chosen] == [{"run": "begin"}, {"model": "ViT", "training": "SAM"}]
    either = choose(smoke, ["model = ViT", "model=Mixer", "training=AdamW, 2× epochs"])
    assert {p.labels.get("model") for p in either} == {None, "ViT", "Mixer"}
    assert choose(smoke, ["model=Mixer", "training=SAM"]) == [p for p in smoke if p.labels.get("model") == "Mixer"][:1]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["ViT"], "'ViT' is not AXIS=VARIANT"),
        (["modl=ViT"], "unknown axis 'modl'"),
        (["model=VitT"], "did you mean 'ViT'"),
        (["seed=3"], "unknown variant of seed '3'"),
        (["run=begin", "model=ViT"], "no run fits all of run=begin, model=ViT"),
    ],
)
def test_runs_that_a_study_does_not_have_cannot_be_chosen(tmp_path, wanted, message):
    smoke = plan(at_scale(load_study_config(write(tmp_path, STUDY)), "smoke"))
    with pytest.raises(ConfigError) as error:
        choose(smoke, wanted)
    assert message in str(error.value)
    assert "--only" in str(error.value)


def test_unknown_scales_are_told(tmp_path):
    study = load_study_config(write(tmp_path, STUDY))
    with pytest.raises(ConfigError, match="unknown scale 'smok'"):
        at_scale(study, "smok")
    with pytest.raises(ConfigError, match="has no scales"):
        at_scale(StudyConfig(name="x"), "smoke")
    assert at_scale(StudyConfig(name="x")) == StudyConfig(name="x")


def test_claim_is_read_into_two_sides_and_a_margin():
    claim = parse_claim("test_accuracy[model=ViT, training='AdamW, 2× epochs'] - 2 * b.c.1[x=*] >= -0.5 by 1e-3")
    a = Measure("test_accuracy", (("model", "ViT"), ("training", "AdamW, 2× epochs")))
    b = Measure("b.c.1", (("x", "*"),))
    assert claim.left == Operation("-", a, Operation("*", 2.0, b))
    assert claim.right == Operation("-", 0.0, 0.5)
    assert (claim.sign, claim.margin) == (">=", 0.001)
    assert claim.measures == [a, b]


def test_claim_keeps_precedence_and_order_of_operations():
    a, b = Measure("a", ()), Measure("b", ())
    assert parse_claim("a[] - b[] - 1 > 0").left == Operation("-", Operation("-", a, b), 1.0)
    assert parse_claim("a[] - (b[] - 1) > 0").left == Operation("-", a, Operation("-", b, 1.0))
    assert parse_claim("-a[] / b[] * 3 > 0").left == Operation("*", Operation("/", Operation("-", 0.0, a), b), 3.0)


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("a[] < 1", Measure("a", ())),
        ("a[m='ViT (2L)'] − 1 < 0", Measure("a", (("m", "ViT (2L)"),))),
        ("a [ m = ViT (2L) ]<1", Measure("a", (("m", "ViT (2L)"),))),
        ('0 < lambda[m="it\'s > [so]"]', Measure("lambda", (("m", "it's > [so]"),))),
        ("(\n 1 +\n a[m=ρ = 0.05]) > 0", Measure("a", (("m", "ρ = 0.05"),))),
    ],
)
def test_claim_names_a_measure(text, measure):
    assert parse_claim(text).measures == [measure]


def test_equality_takes_how_near_from_within():
    assert parse_claim("a[x=1] / (a[x=2] + 1) = 1 within .2").margin == 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a[x=1]", "one comparison is expected"),
        ("1 < a[x=1] < 2", "one comparison is expected"),
        ("a > b[x=1]", "the measure 'a' needs the labels of a cell: a[axis=label] (at 'a > b[x=1]', character 1)"),
        ("a[x=1] > ", "numbers and measures are expected here, with + - * / between them (at its end"),
        ("a[x=1 > 2", "a ] is missing"),
        ("a[x='b, c] > 2", "a ] is missing"),
        ("a[x] > 2", "a label is expected here, as axis=label (at 'x')"),
        ("a[x=1, , y=2] > 2", "a label is expected"),
        ("a[x=] > 2", "the axis 'x' has no label"),
        ("a[x=1, x=2] > 2", "the axis 'x' is named twice"),
        ("a[x='b' c] > 2", "stands in 'quotes'"),
        ("a[x=1] = 2", "= needs how near, as `= 1 within 0.01`"),
        ("a[x=1] = 2 by 1", "= needs how near"),
        ("a[x=1] > 2 within 3", "> and < take `by 0.01` (at '> 2 within 3', character 8)"),
        ("a[x=1] > 2 by", "this does not belong here"),
        ("a[x=1] > 2 3", "this does not belong here (at '2 3', character 10)"),
        ("a[x=1]b[x=2] > 2", "this does not belong here"),
        ("a[x=1](2) > 2", "numbers and measures are expected here"),
        ("(a[x=1] > 2", "a ) is missing"),
        ("a[x=1]) > 2", "this does not belong here"),
        ("1 > 2", "compares no measure"),
        ("a[x=1] > __import__('os')", "the measure '__import__' needs the labels of a cell"),
        ("a[x=1] > 2; import os", "this cannot be read (at '; import os', character 11)"),
        ("a[x=1] > 2 ** 3", "with + - * / between them (at '2 ** 3', character 10)"),
        ("a[x=1] > 2 // 3", "with + - * / between them"),
        ("a[x=1] > 2j", "numbers and measures are expected here"),
        ("a[x=1] > +2", "numbers and measures are expected here"),
        ("a[x=1] > " + "9" * 400, "this does not belong here"),
    ],
)
def test_mistyped_claim_is_refused_with_the_place(text, message):
    with pytest.raises(ClaimSyntaxError, match=re.escape(message)):
        parse_claim(text)


@pytest.mark.parametrize("labels", [{}, {"a": "1"}, {"a": "x, y", "b": "it's [so]"}, {"model": "ViT (2L-2H)"}])
def test_labels_survive_being_written(labels):
    assert parse_labels(show_labels(labels)) == labels


def test_an_exact_cell_comes_before_others_that_fit():
    cells = [{"m": "ViT"}, {"m": "ViT", "schedule": "cosine"}, {"m": "Swin"}]
    assert pick_cells(Measure("a", (("m", "ViT"),)), cells) == [cells[0]]
    assert pick_cells(Measure("a", (("m", "*"),)), cells) == cells
    assert pick_cells(Measure("a", (("schedule", "cosine"),)), cells) == [cells[1]]


CLAIM = '[[claims]]\ntext = "so it is"\nholds = "{}"\n'


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ("test_accuracy[model=Vit, training=SAM] > 0", "model has no 'Vit'; did you mean 'ViT'?"),
        ("test_accuracy[modle=ViT] > 0", "there is no axis 'modle'"),
        ("test_accuracy[model=ViT] > 0", "means 2 cells at scale 'small'"),
        ("test_accuracy[model=ResNet, training=SAM, run=begin] > 0", "no single cell has all"),
        ("test_accuracy[model=ViT, training=SAM] ? 0", "cannot be read"),
    ],
)
def test_bad_claims_are_refused_when_the_study_is_loaded(tmp_path, holds, message):
    path = write(tmp_path, STUDY + CLAIM.format(holds))
    with pytest.raises(ConfigError) as error:
        load_study_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_claim_may_be_about_cells_that_one_scale_lacks(tmp_path):
    study = load_study_config(write(tmp_path, STUDY + CLAIM.format("epochs[model=ResNet, training=SAM] > 0")))
    assert study.claims[0].text == "so it is"


ADJUSTED = """
name = "s"
default_scale = "small"
[axes.model.ViT]
[axes.model.ResNet]
model = { name = "resnet_tiny" }
[axes.training.plain]
[axes.training.SAM]
minimizer = { name = "sam", rho = 0.05 }
[runs.extra]
labels = { model = "ViT", training = "ASAM" }
minimizer = { name = "asam" }
[[adjust]]
at = { model = "ViT", training = ["SAM", "ASAM"] }
minimizer = { rho = 0.2 }
[scale.small]
[scale.smoke]
[[scale.smoke.adjust]]
at = { model = "ViT" }
batch_size = 8
seeds = [1, 2]
[[scale.smoke.adjust]]
at = { model = "ViT", training = "SAM" }
minimizer = { rho = 0.3 }
"""


def test_cells_are_adjusted_by_their_labels(tmp_path):
    study = load_study_config(write(tmp_path, ADJUSTED))
    found = {(p.labels["model"], p.labels["training"]): p.config for p in plan(study)}
    radii = {cell: config.minimizer.rho for cell, config in found.items()}
    assert radii == {
        ("ViT", "ASAM"): 0.2,
        ("ViT", "plain"): None,
        ("ViT", "SAM"): 0.2,
        ("ResNet", "plain"): None,
        ("ResNet", "SAM"): 0.05,
    }
    smoke = plan(at_scale(study, "smoke"))
    assert {p.config.minimizer.rho for p in smoke if p.labels == {"model": "ViT", "training": "SAM"}} == {0.3}
    assert {p.config.seed for p in smoke if p.labels["model"] == "ViT"} == {1, 2}
    assert {p.config.batch_size for p in smoke if p.labels["model"] == "ResNet"} == {64}


BEGUN = """
[runs.first]
labels = { model = "first", training = "plain" }
budget = { epochs = 3 }
[axes.training.begun]
model = { weights = "run:first", mode = "finetune" }
"""


def test_the_axes_are_run_before_single_runs_and_after_what_they_begin_from(tmp_path):
    study = load_study_config(write(tmp_path, ADJUSTED + BEGUN))
    trainings = [p.labels["training"] for p in plan(study)]
    assert plan(study)[0].labels["model"] == "first"
    assert trainings[1:] == ["plain", "SAM", "begun", "plain", "SAM", "begun", "ASAM"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["SAM", "ASAM"]', '"SMA"', "no cell has the labels model=ViT; training=SMA"),
        ('["SAM", "ASAM"]', '["SAM", "ASMA"]', "did you mean 'ASAM'"),
        ('at = { model = "ViT" }', 'at = { model = "vit" }', "scale.smoke.adjust 1"),
        ('at = { model = "ViT" }\n', "", "at"),
        ('at = { model = "ViT" }', "at = {}", "at"),
    ],
)
def test_an_adjustment_of_nothing_is_refused(tmp_path, old, new, message):
    with pytest.raises(ConfigError) as error:
        load_study_config(write(tmp_path, ADJUSTED.replace(old, new)))
    assert message in str(error.value)


def test_a_wrong_key_of_an_adjustment_is_told_when_it_is_planned(tmp_path):
    study = load_study_config(write(tmp_path, ADJUSTED.replace("batch_size = 8", "batch_sice = 8")))
    with pytest.raises(ConfigError, match="batch_size"):
        plan(at_scale(study, "smoke"))


@pytest.mark.parametrize("text", ["(" * 3000, "-" * 3000, "a[x=1]+" * 101, "a[x=1] > " + "b" * 6000])
def test_a_claim_too_deep_to_be_followed_is_refused(text):
    with pytest.raises(ClaimSyntaxError, match="at most"):
        parse_claim(text)
    study = {"name": "s", "claims": [{"text": "t", "holds": text}]}
    with pytest.raises(ConfigError, match="at most"):
        parse(StudyConfig, study, where="here")


def test_a_source_is_shown_by_name():
    from steppe.config import name_source

    assert name_source("004, figure 2") == "source 004, figure 2"
    assert name_source("steppe") == "steppe"
    assert name_source("my thesis, table 1") == "my thesis, table 1"
