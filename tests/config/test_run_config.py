from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from steppe.config import (
    MINIMIZER_DEFAULTS,
    OBJECTIVE_DEFAULTS,
    RunConfig,
    derive_seed,
    dump_toml,
    leaves,
    load_run_config,
    merge,
    parse,
    plan,
)
from steppe.config.study import StudyConfig
from steppe.errors import ConfigError

CHANGES = {
    "seed": 1,
    "batch_size": 32,
    "precision": "bfloat16",
    "label_smoothing": 0.1,
    "accumulate": 4,
    "ema": 0.9,
    "swa": 0.25,
    "lookahead": 0.5,
    "lookahead_every": 3,
    "lookahead_ramp": True,
    "patience": 3,
    "sigmoid_loss": True,
    "budget.seconds": 3.5,
    "minimizer.rho_final": 0.0,
    "clip_norm": 1.0,
    "test.tta": "flip",
    "data.name": "mnist",
    "data.val_fraction": 0.2,
    "data.test_fraction": 0.3,
    "data.split_seed": 1,
    "data.image_size": 16,
    "data.stored_size": 20,
    "data.fraction": 0.5,
    "data.label_noise": 0.3,
    "data.variance": 15.0,
    "data.odd_images": "convert",
    "data.learn_from_val": True,
    "data.statistics": "imagenet",
    "model.name": "resnet_tiny",
    "model.mode": "frozen",
    "model.weights": "other.safetensors",
    "model.last_blocks": 2,
    "model.penalty": 0.1,
    "model.dropout": 0.1,
    "model.block_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "model.drop_path": 0.1,
    "model.init": "torch",
    "model.pos_embed_std": 1.0,
    "minimizer.name": "sam",
    "minimizer.rho": 0.1,
    "minimizer.eta": 0.1,
    "minimizer.scaling": "all",
    "minimizer.k": 3,
    "minimizer.alpha": 0.2,
    "minimizer.beta": 0.5,
    "minimizer.gamma": 0.25,
    "minimizer.sigma": 0.5,
    "minimizer.lam": 0.9,
    "minimizer.ascent_fraction": 0.25,
    "minimizer.m": 16,
    "minimizer.per_rank": True,
    "minimizer.sharp_every": 5,
    "minimizer.sharp_last": 0.25,
    "minimizer.replay_rng": True,
    "optimizer.name": "adam",
    "optimizer.lr": 0.01,
    "optimizer.weight_decay": 0.5,
    "optimizer.momentum": 0.5,
    "optimizer.nesterov": True,
    "optimizer.decay_norms": True,
    "optimizer.layer_decay": 0.75,
    "optimizer.head_lr_factor": 10.0,
    "optimizer.rest": "sgd",
    "optimizer.rest_lr": 0.1,
    "optimizer.iterations": 3,
    "optimizer.hold_norm": True,
    "objective.name": "adversarial",
    "objective.epsilon": 4.0,
    "objective.attack_step": 1.0,
    "objective.temperature": 0.07,
    "objective.projection": 64,
    "objective.pretrain": 0.5,
    "objective.head_optimizer": "sgd",
    "objective.head_lr": 0.1,
    "objective.head_weight_decay": 0.0,
    "schedule.name": "linear",
    "schedule.warmup": 0.1,
    "schedule.final": 0.1,
    "schedule.hold": 0.2,
    "schedule.drop_every": 0.5,
    "schedule.gamma": 0.5,
    "augment.crop_padding": 1,
    "augment.crop_reflect": True,
    "augment.resized_crop": 0.08,
    "augment.flip": True,
    "augment.alternate_flip": True,
    "augment.autoaugment": "cifar10",
    "augment.randaugment": 2,
    "augment.randaugment_magnitude": 15,
    "augment.trivialaugment": True,
    "augment.colour_jitter": 0.4,
    "augment.cutout": 8,
    "augment.erasing": 0.25,
    "augment.mixup": 0.2,
    "augment.cutmix": 1.0,
    "augment.mixup_probability": 0.5,
    "budget.epochs": 5,
    "budget.gradient_evaluations": 100,
}


def nested(key: str, value: object) -> dict:
    *sections, last = key.split(".")
    out: dict = {last: value}
    for section in reversed(sections):
        out = {section: out}
    return out


def test_every_key_is_covered_by_the_hash_test():
    assert sorted(CHANGES) == sorted(key for key, _ in leaves(RunConfig))


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_every_key_changes_the_hash_and_survives_toml(key, tmp_path):
    section, _, last = key.rpartition(".")
    start = {"optimizer": {"name": "sgd"}} if key in ("optimizer.momentum", "optimizer.nesterov") else {}
    if section == "optimizer" and last in ("rest", "rest_lr", "iterations", "hold_norm"):
        start = {"optimizer": {"name": "muon"}}
    if section == "minimizer" and last != "name":
        owners = [name for name, row in MINIMIZER_DEFAULTS.items() if last in row]
        start = {"minimizer": {"name": (owners or ["sam"])[0]}}
    if section == "objective" and last != "name":
        start = {"objective": {"name": next(name for name, row in OBJECTIVE_DEFAULTS.items() if last in row)}}
    needs = {
        "alternate_flip": {"flip": True},
        "crop_reflect": {"crop_padding": 2},
        "randaugment_magnitude": {"randaugment": 1},
        "mixup_probability": {"mixup": 0.2},
    }
    if last.startswith("lookahead_"):
        start = {"lookahead": 0.5}
    if last in needs:
        start = {"augment": needs[last]}
    if last in ("mode", "weights"):
        start = {"model": {"mode": "finetune", "weights": "some.safetensors"}}
    if last == "penalty":
        start = {"model": {"mode": "probe", "weights": "some.safetensors"}}
    if last == "last_blocks":
        start = {"model": {"mode": "last_n_blocks", "weights": "some.safetensors", "last_blocks": 1}}
    before = RunConfig.model_validate(start)
    after = RunConfig.model_validate(merge(start, nested(key, CHANGES[key])))
    assert before.hash != after.hash
    (tmp_path / "c.toml").write_text(dump_toml(after))
    again = load_run_config(tmp_path / "c.toml")
    assert again == after
    assert again.hash == after.hash


def test_hash_is_stable_across_versions():
    """A change here renames every user's runs: make it on purpose only."""
    assert RunConfig().run_id == "digits-vit_tiny_p2-base-s0-908e4ebdc5"


def test_defaults_of_the_chosen_names_are_written_out():
    config = RunConfig.model_validate({"minimizer": {"name": "asam"}, "optimizer": {"name": "sgd"}})
    assert (config.minimizer.rho, config.minimizer.eta) == (0.5, 0.01)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.1, 0.9)
    explicit = {"minimizer": {"name": "asam", "rho": 0.5, "eta": 0.01}, "optimizer": {"name": "sgd", "lr": 0.1}}
    assert RunConfig.model_validate(explicit).hash == config.hash


def test_the_supervised_objective_is_the_absence_of_one():
    assert RunConfig.model_validate({"objective": {"name": "supervised"}}).hash == RunConfig().hash
    named = RunConfig.model_validate({"objective": {"name": "adversarial"}})
    assert (named.objective.epsilon, named.objective.attack_step) == (2.0, 1.25)
    assert "-base-adversarial-s0-" in named.run_id
    again = {"objective": {"name": "adversarial", "epsilon": 2.0, "attack_step": 1.25}}
    assert RunConfig.model_validate(again).hash == named.hash
    assert merge({"objective": {"name": "adversarial", "epsilon": 4.0}}, {"objective": {"name": "contrastive"}}) == {
        "objective": {"name": "contrastive"}
    }


def test_config_is_frozen():
    with pytest.raises(ValidationError):
        RunConfig().seed = 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"minimiser": {"name": "sam"}}, "did you mean 'minimizer'"),
        ({"minimizer": {"roh": 0.1}}, "did you mean 'minimizer.rho'"),
        ({"rho": 0.1}, "did you mean 'minimizer.rho'"),
        ({"lr": 0.1}, "did you mean 'optimizer.lr'"),
        ({"minimizer": {"name": "asan"}}, "did you mean 'asam'"),
        ({"minimizer": {"name": "sam", "rho": -1}}, "minimizer.rho = -1"),
        ({"minimizer": {"name": "base", "rho": 0.1}}, "rho means nothing to 'base'"),
        ({"minimizer": {"name": "msam", "m": 8}}, "m means nothing to 'msam'"),
        ({"minimizer": {"name": "base", "sharp_every": 2}}, "sharp_every means nothing to 'base'"),
        ({"minimizer": {"name": "looksam", "sharp_every": 2}}, "decides by itself"),
        ({"minimizer": {"name": "gsam", "m": 2}}, "m-sharpness is for"),
        ({"minimizer": {"name": "sam", "m": 2, "ascent_fraction": 0.5}}, "give one"),
        ({"minimizer": {"name": "sam", "sharp_every": 2, "sharp_last": 0.5}}, "give one"),
        ({"minimizer": {"name": "asam", "scaling": "al"}}, "did you mean 'all'"),
        ({"optimizer": {"name": "adamw", "momentum": 0.9}}, "momentum means nothing to 'adamw'"),
        ({"optimizer": {"name": "rmsprop", "nesterov": True}}, "nesterov belongs to sgd"),
        ({"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": True}}, "nesterov belongs to sgd with momentum"),
        (
            {"optimizer": {"layer_decay": 0.75}, "model": {"mode": "frozen", "weights": "w.safetensors"}},
            "layer_decay means nothing to mode 'frozen'",
        ),
        (
            {"optimizer": {"head_lr_factor": 10.0}, "model": {"mode": "probe", "weights": "w.safetensors"}},
            "head_lr_factor means nothing to mode 'probe'",
        ),
        ({"budget": {"epochs": 3, "gradient_evaluations": 5}}, "one budget"),
        ({"optimizer": {"name": "adamw", "hold_norm": True}}, "hold_norm and rest_lr belong to muon"),
        ({"optimizer": {"name": "sgd", "iterations": 3}}, "iterations means nothing to 'sgd'"),
        ({"augment": {"crop_reflect": True}}, "crop_reflect means nothing without crop_padding"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr"),
        ({"augment": {"randaugment_magnitude": 9}}, "without randaugment"),
        ({"augment": {"mixup_probability": 0.5}}, "without mixup"),
        ({"augment": {"alternate_flip": True}}, "without flip"),
        ({"augment": {"crop_padding": 4, "resized_crop": 0.08}}, "give one"),
        ({"augment": {"randaugment": 2, "autoaugment": "cifar10"}}, "give one"),
        ({"augment": {"randaugment": 2, "trivialaugment": True}}, "randaugment and trivialaugment are 2 policies"),
        ({"objective": {"name": "adversarail"}}, "did you mean 'adversarial'"),
        ({"objective": {"epsilon": 2}}, "epsilon means nothing to 'supervised'"),
        ({"objective": {"name": "adversarial", "temperature": 1}}, "it belongs to contrastive"),
        ({"objective": {"name": "adversarial"}, "minimizer": {"name": "aesam"}}, "does not go with minimizer 'aesam'"),
        (
            {"objective": {"name": "adversarial"}, "minimizer": {"name": "sam", "ascent_fraction": 0.5}},
            "does not go with minimizer.ascent_fraction",
        ),
        ({"objective": {"name": "contrastive"}, "accumulate": 2}, "does not go with accumulate"),
        ({"objective": {"name": "contrastive"}, "minimizer": {"name": "sam", "m": 2}}, "does not go with minimizer.m"),
        ({"objective": {"name": "contrastive"}, "minimizer": {"name": "esam"}}, "does not go with minimizer 'esam'"),
        ({"objective": {"name": "contrastive"}, "augment": {"mixup": 0.1}}, "does not go with augment.mixup"),
        ({"objective": {"name": "contrastive"}, "budget": {"epochs": 1}}, "each of its two stages needs an epoch"),
        (
            {"objective": {"name": "contrastive"}, "model": {"mode": "frozen", "weights": "w.safetensors"}},
            "does not go with model.mode 'frozen'",
        ),
        ({"data": 3}, "data = 3"),
        ({"batch_size": "many"}, "batch_size = 'many'"),
        ({"seed": -1, "batch_size": 0}, "batch_size = 0"),
    ],
)
def test_mistakes_are_explained(values, expected):
    with pytest.raises(ConfigError) as caught:
        parse(RunConfig, values, where="test")
    assert expected in str(caught.value)
    assert "\n  where: test" in str(caught.value)


def test_merge_puts_the_old_methods_options_aside():
    merged = merge({"minimizer": {"name": "sam", "rho": 0.1}, "seed": 1}, {"minimizer": {"name": "base"}})
    assert merged == {"minimizer": {"name": "base"}, "seed": 1}
    assert merge({"budget": {"epochs": 3}}, {"budget": {"gradient_evaluations": 9}}) == {
        "budget": {"gradient_evaluations": 9}
    }
    assert merge({"minimizer": {"name": "sam", "rho": 0.1}}, {"minimizer": {"rho": 0.2}}) == {
        "minimizer": {"name": "sam", "rho": 0.2}
    }


def test_broken_files_are_explained(tmp_path):
    for content, expected in ((b"a = = 1", "not valid TOML"), (b"\xff\xfe", "cannot be read"), (None, "no such file")):
        path = tmp_path / "c.toml"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=expected):
            load_run_config(path)


WORDS = st.sampled_from(sorted({word for key in CHANGES for word in key.split(".")})) | st.text(max_size=5)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


@given(st.dictionaries(WORDS, VALUES | st.dictionaries(WORDS, VALUES, max_size=4), max_size=4))
def test_no_input_gives_a_traceback(values):
    with contextlib.suppress(ConfigError):
        parse(RunConfig, values, where="fuzz")


def test_derived_seeds_differ_and_are_fixed():
    seeds = {derive_seed(s, w, i) for s in range(5) for w in ("order", "step") for i in range(50)}
    assert len(seeds) == 500
    assert all(0 <= s < 2**63 for s in seeds)
    assert derive_seed(0, "order", 0) == 7955589716765508323


def study(**values) -> StudyConfig:
    return StudyConfig.model_validate({"name": "s", **values})


def test_plan_is_the_product_of_the_axes():
    config = study(
        seeds=[0],
        base={"budget": {"epochs": 2}},
        axes={
            "model": {
                "a": {"model": {"name": "resnet_tiny"}, "seeds": [0, 1]},
                "b": {"model": {"name": "vit_tiny_p2"}},
            },
            "how": {"sam": {"minimizer": {"name": "sam"}}, "base": {"budget": {"epochs": 4}}},
        },
    )
    planned = plan(config)
    cells = [(p.labels["model"], p.labels["how"], p.config.seed) for p in planned]
    assert cells == [
        ("a", "sam", 0),
        ("a", "sam", 1),
        ("a", "base", 0),
        ("a", "base", 1),
        ("b", "sam", 0),
        ("b", "base", 0),
    ]
    assert [p.config.budget.epochs for p in planned] == [2, 2, 4, 4, 2, 4]
    assert len({p.config.run_id for p in planned}) == 6


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"axes": {"m": {}}}, "no variants"),
        ({"axes": {"m": {"a": {}, "b": {}}}}, "same run"),
        ({"base": {"seed": 3}}, "`seeds`, a list"),
        ({"axes": {"m": {"a": {"seeds": 3}}}}, "not a list"),
        ({"axes": {"m": {"a": {"modle": {}}}}}, "did you mean 'model'"),
    ],
)
def test_mistakes_in_a_study_are_explained(values, expected):
    with pytest.raises(ConfigError) as caught:
        plan(study(**values))
    assert expected in str(caught.value)


@pytest.mark.parametrize("section", ["minimizer", "optimizer"])
def test_a_name_that_is_none_is_the_default_and_survives_its_file(section, tmp_path):
    config = RunConfig.model_validate({section: {"name": None}})
    (tmp_path / "run.toml").write_text(dump_toml(config))
    assert load_run_config(tmp_path / "run.toml") == config == RunConfig()


def test_a_number_of_thousands_of_digits_is_told(tmp_path):
    (tmp_path / "run.toml").write_text("seed = " + "1" * 5000)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_run_config(tmp_path / "run.toml")


def test_the_radius_of_msam_follows_its_base():
    """Its published radius is one for SGD; a radius that is given stays."""
    radius = {}
    for base in ("sgd", "adamw"):
        for asked in (None, 1.0):
            values = {"minimizer": {"name": "msam", "rho": asked}, "optimizer": {"name": base}}
            radius[base, asked] = RunConfig.model_validate(values).minimizer.rho
    assert radius == {("sgd", None): 3.0, ("sgd", 1.0): 1.0, ("adamw", None): 0.3, ("adamw", 1.0): 1.0}
    assert RunConfig.model_validate({"minimizer": {"name": "msam"}}).minimizer.rho == 0.3, "AdamW is the default"
    over = RunConfig.model_validate({"optimizer": {"name": "sgd"}}).optimizer
    assert RunConfig.model_validate({"minimizer": {"name": "msam"}, "optimizer": over}).minimizer.rho == 3.0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"optimizer": {"lr": True}}, "optimizer.lr = True"),
        ({"budget": {"epochs": "1"}}, "budget.epochs = '1'"),
        ({"batch_size": 32.0}, "batch_size = 32.0"),
        ({"augment": {"flip": 1}}, "augment.flip = 1"),
    ],
)
def test_value_of_another_type_is_refused(values, named):
    with pytest.raises(ConfigError, match=named):
        parse(RunConfig, values, where="run.toml")


def test_whole_number_stands_for_a_real_one():
    assert parse(RunConfig, {"optimizer": {"lr": 1}}, where="run.toml").optimizer.lr == 1.0
