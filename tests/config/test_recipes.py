"""Recipes: files, what is based on what, and what begins from them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from commands import steppe

from steppe.cli.recipes import NOT_MEASURED, reaches, took
from steppe.config import RunConfig, StudyConfig, parse, plan
from steppe.config.recipes import RecipeConfig, list_recipes, load_recipe
from steppe.config.source import read_source
from steppe.errors import ConfigError

RECIPE = """
batch_size = 32
data = { name = "digits" }
model = { name = "resnet_tiny" }
augment = { crop_padding = 2 }
[recipe]
title = "a tiny ResNet"
"""
VARIANT = """
minimizer = { name = "sam" }
augment = { flip = true }
[recipe]
title = "the same with SAM"
based_on = "tiny"
"""
MEASURED = {"title": "x", "accuracy": 94.02, "std": 0.114, "runs": 10, "seconds": 1.75, "machine": "an H200"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    (tmp_path / "tiny-sam.toml").write_text(VARIANT)
    return tmp_path


@pytest.mark.parametrize("name", sorted(list_recipes()))
def test_every_shipped_recipe_is_a_valid_run(name):
    recipe = load_recipe(name)
    assert recipe.config.run_id
    assert f"--recipe {name}" in recipe.path.read_text(), "its head gives the command"
    assert recipe.about.ideas


def test_a_variant_is_laid_over_what_it_is_based_on(files):
    config = load_recipe(files / "tiny-sam.toml").config
    assert (config.minimizer.name, config.batch_size, config.model.name) == ("sam", 32, "resnet_tiny")
    assert (config.augment.crop_padding, config.augment.flip) == (2, True)


def test_recipes_based_on_each_other_are_refused(files):
    (files / "tiny.toml").write_text(VARIANT.replace('"tiny"', '"tiny-sam"'))
    with pytest.raises(ConfigError, match="based on each other"):
        load_recipe(files / "tiny-sam.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("batch_size = 32", "no table \\[recipe\\]"),
        (RECIPE + "reaches = 3", "unknown key 'reaches'"),
        (RECIPE + "accuracy = 94.0", "missing: runs, seconds, machine"),
        (RECIPE + "std = 0.1", "stand beside an accuracy"),
        (RECIPE.replace("batch_size", "batchsize"), "batch_size"),
        ("[recipe]\ntitle = 3", "title"),
        ("recipe = 3", "recipe"),
    ],
)
def test_a_recipe_is_read_strictly(tmp_path, text, problem):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_recipe(tmp_path / "r.toml")


def test_figures_are_shown_only_where_they_were_measured():
    measured = RecipeConfig.model_validate(MEASURED | {"accuracy_tta": 94.3})
    assert reaches(measured) == "94.02 ± 0.11 %, 94.30 % with TTA (10 runs)"
    assert took(measured) == "1.75 s on an H200"
    plain = RecipeConfig.model_validate({"title": "x"})
    assert (reaches(plain), took(plain)) == (NOT_MEASURED, "")


def test_flags_and_data_are_laid_over_a_recipe(files):
    config = read_source("mnist", {"budget": {"epochs": 3}}, where="test", recipe=files / "tiny.toml")
    assert (config.data.name, config.budget.epochs, config.model.name) == ("mnist", 3, "resnet_tiny")


def test_a_recipes_file_can_be_given_as_a_configuration(files):
    config = read_source(files / "tiny-sam.toml", {"seed": 3}, where="test")
    assert config == load_recipe(files / "tiny-sam.toml").config.model_copy(update={"seed": 3})


def test_a_recipe_without_data_wants_a_folder():
    with pytest.raises(ConfigError, match="has no data of its own"):
        read_source(None, {}, where="test", recipe="finetune")
    assert read_source("photos", {}, where="test", recipe="finetune").data.name == "photos"


def test_a_recipe_and_a_configuration_are_refused(files):
    with pytest.raises(ConfigError, match="a recipe and a configuration are given"):
        read_source(files / "tiny.toml", {}, where="test", recipe="finetune")


def test_an_unknown_recipe_names_those_that_are_near():
    with pytest.raises(ConfigError, match="cifar10-resnet18"):
        load_recipe("cifar10-resnet19")


def test_a_study_begins_from_recipes(files):
    values = {
        "name": "s",
        "base": {"recipe": str(files / "tiny.toml"), "budget": {"epochs": 2}},
        "axes": {"training": {"plain": {}, "SAM": {"recipe": str(files / "tiny-sam.toml")}}},
    }
    plain, sam = (run.config for run in plan(parse(StudyConfig, values, where="test")))
    assert (plain.model.name, plain.budget.epochs, plain.minimizer.name) == ("resnet_tiny", 2, "base")
    assert (sam.minimizer.name, sam.budget.epochs) == ("sam", 2)


def test_the_command_lists_them_without_torch():
    heavy = {"torch", "matplotlib", "sklearn", "scipy"}
    code = "import atexit, sys; from steppe.cli import main; "
    code += f"atexit.register(lambda: print({heavy} & set(sys.modules))); main(['recipes'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cifar10-resnet18-sam" in done.stdout
    assert NOT_MEASURED in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_command_prints_one(capsys):
    assert steppe("recipes", "cifar10-vit") == 0
    assert "steppe train --recipe cifar10-vit" in capsys.readouterr().out
    assert steppe("recipes", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["recipe"] for row in rows} == set(list_recipes())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in list_recipes() if load_recipe(name).data))
def test_every_recipe_makes_a_step_on_generated_images(name, tmp_path):
    import numpy as np

    from steppe import data
    from steppe.config import merge
    from steppe.train import train

    random = np.random.default_rng(0)
    images = {f"x_{split}": random.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "images.npz", **images, y_train=np.arange(20) % 10, y_test=np.arange(20) % 10)
    small = {
        "batch_size": 4,
        "precision": "float32",
        "data": {"name": str(tmp_path / "images.npz")},
        "budget": {"gradient_evaluations": 2},
    }
    config = parse(RunConfig, merge(load_recipe(name).values, small), where="test")
    run = train(config, data.load(config.data), tmp_path / "run", device="cpu")
    assert run.summary["gradient_evaluations"] > 0
