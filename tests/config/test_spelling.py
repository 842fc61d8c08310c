"""Names in any spelling: a configuration keeps the canonical one."""

from __future__ import annotations

import pytest
import timm

from steppe.config import RunConfig, merge
from steppe.config.names import MODELS, is_short_name
from steppe.config.shipped import load_study
from steppe.config.spelling import spell, spell_data, spell_model, timm_names


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ({"data": {"name": "CIFAR10"}}, {"data": {"name": "cifar10"}}),
        ({"data": {"name": "Cifar-10"}}, {"data": {"name": "cifar10"}}),
        ({"data": {"name": "FashionMNIST"}}, {"data": {"name": "fashion_mnist"}}),
        ({"model": {"name": "ResNet18"}}, {"model": {"name": "resnet18"}}),
        ({"model": {"name": "ViT_tiny_p2"}}, {"model": {"name": "vit_tiny_p2"}}),
        ({"minimizer": {"name": "SAM", "rho": 0.1}}, {"minimizer": {"name": "sam", "rho": 0.1}}),
        ({"minimizer": {"name": "MSAM"}}, {"minimizer": {"name": "msam"}}),
        ({"optimizer": {"name": "AdamW"}}, {"optimizer": {"name": "adamw"}}),
        ({"schedule": {"name": "Cosine"}}, {"schedule": {"name": "cosine"}}),
        ({"objective": {"name": "Adversarial"}}, {"objective": {"name": "adversarial"}}),
        (
            {"model": {"mode": "Last-N-Blocks", "last_blocks": 1, "weights": "timm"}},
            {"model": {"mode": "last_n_blocks", "last_blocks": 1, "weights": "timm"}},
        ),
    ],
)
def test_spelling_does_not_rename_a_run(spelled, canonical):
    assert RunConfig.model_validate(spelled) == (plain := RunConfig.model_validate(canonical))
    assert RunConfig.model_validate(spelled).run_id == plain.run_id


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("WRN-28-10", "wrn_28_10"),
        ("MLP-64-64", "mlp_64_64"),
        ("ResNet-18", "resnet18"),
        ("EfficientNetB0", "efficientnet_b0"),
        ("timm:ResNet18", "timm:resnet18"),
        ("ViT-Base-Patch16-224.AugReg_in21k", "vit_base_patch16_224.augreg_in21k"),
        ("ResNet50_V1+TF_EfficientNet_Lite0", "resnet50_v1+tf_efficientnet_lite0"),
        ("MyNetwork", "MyNetwork"),
    ],
)
def test_model_is_found_in_any_spelling(name, canonical):
    assert spell_model(name) == canonical


def test_canonical_model_names_stay():
    assert all(spell_model(name) == name for name in (*MODELS, *timm.list_models()))
    assert all(map(is_short_name, MODELS))


def test_timm_names_are_those_that_timm_registers():
    assert set(timm.list_models()) <= timm_names()
    assert all(map(timm.is_model, timm_names()))


def test_name_that_is_like_several_stays():
    assert spell("A_B", ["a_b", "ab"]) == "A_B"


def test_slash_at_the_end_of_a_folder_is_dropped():
    assert spell_data("photos/") == "photos"
    assert spell_data("/") == "/"


def test_slash_at_the_end_means_a_folder():
    assert spell_data("digits/") == "./digits"


def test_folder_of_that_very_spelling_comes_before_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spell_data("Pets") == "pets"
    (tmp_path / "Pets").mkdir()
    assert spell_data("Pets") == "./Pets"
    assert spell_data("pets") == "pets"


def test_flag_in_another_spelling_keeps_the_options_of_the_file():
    file = {"minimizer": {"name": "sam", "rho": 0.2}}
    assert merge(file, {"minimizer": {"name": "SAM"}})["minimizer"]["rho"] == 0.2
    assert "rho" not in merge(file, {"minimizer": {"name": "ASAM"}})["minimizer"]


def test_study_is_found_in_any_spelling():
    assert load_study("Sharp_Minima")[0].name == "sharp-minima"
