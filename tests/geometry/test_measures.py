"""The table of `steppe geometry`: what it stores is what the functions give, on the images and parts it says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import timm
import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.errors import ConfigError, MeasureError, SteppeError
from steppe.geometry import ClassLoss, measure_curvature, measure_sharpness, trained_loss
from steppe.geometry.curvature import top_eigenvectors
from steppe.geometry.landscape import measure_line
from steppe.geometry.measures import DIRECTIONS, MEASURES
from steppe.geometry.norms import weight_norms
from steppe.geometry.spectrum import measure_spectrum
from steppe.measuring import Settings, loss_name
from steppe.models import blocks
from steppe.train import build_model


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture
def model(digits):
    return build_model(RunConfig.model_validate({"model": {"name": "mixer_tiny_p2"}}), digits).eval()


def settings(name, **changes):
    measure = MEASURES[name]
    asked = {**measure.defaults, **measure.quick, "examples": 40, **changes}
    return Settings(asked, loss=trained_loss(RunConfig(label_smoothing=0.1)))


def measured(name, model, digits, **changes):
    return MEASURES[name].function(model, digits, settings(name, **changes))


def test_curvature_of_parts_on_the_loss_of_training(model, digits):
    found = measured("lambda_max", model, digits, parts="whole,block1", iterations=30)
    asked = settings("lambda_max")
    own = blocks(model)["block1"]
    expected = measure_curvature(
        model, asked.batches(digits.train, digits, 40), parts={"block1": own}, iterations=30, loss=asked.loss
    )
    assert list(found["parts"]) == ["whole", "block1"]
    value = found["parts"]["block1"]["lambda_max"]["value"]
    assert value == pytest.approx(expected["parts"]["block1"]["lambda_max"]["value"], rel=1e-4)
    assert found["parts"]["whole"]["lambda_max"]["value"] >= value * 0.999
    assert found["how"]["examples"] == 40
    plain = measured("lambda_max", model, digits, parts="whole", iterations=30, loss="cross_entropy")
    assert plain["parts"]["whole"]["lambda_max"]["value"] != found["parts"]["whole"]["lambda_max"]["value"]


def test_the_parts_of_table_4(model, digits):
    found = measured("trace", model, digits, parts="roles", probes=2)
    assert {"whole", "embedding", "attention", "mlp", "head", "block1"} <= set(found["parts"])


def _stopped(name, model, digits, **changes):
    """A measurement, and what it had kept after each of its steps, as a file holds it."""
    asked = settings(name, **changes)
    kept: list[str] = []
    asked.keep = lambda found: kept.append(json.dumps(found))
    return MEASURES[name].function(model, digits, asked), [json.loads(text) for text in kept]


@pytest.mark.parametrize(
    ("name", "changes", "steps"),
    [
        ("lambda_max", {"parts": "whole,block1,head"}, 3),
        ("lambda_max", {"parts": "block1,head", "method": "power", "iterations": 5}, 2),
        ("trace", {"parts": "whole,block1", "probes": 4}, 4),
        ("spectrum", {"probes": 3, "steps": 4}, 3),
    ],
)
def test_what_is_known_of_the_hessian_is_not_computed_again(model, digits, name, changes, steps):
    whole, kept = _stopped(name, model, digits, **changes)
    assert len(kept) == steps
    counts = []
    for known in (None, *kept):
        asked = settings(name, **changes)
        asked.known = known
        products: list[int] = []
        asked.tell = lambda done, total, products=products: products.append(done)
        assert MEASURES[name].function(model, digits, asked) == whole, "to the bit"
        counts.append(len(products))
    assert sorted(set(counts), reverse=True) == counts, "the more is known, the less is left to do"
    assert counts[-1] == 2, "the check of the products alone"


def test_a_spectrum_that_drew_fresh_vectors_goes_on_alike():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2, bias=False).double()
    batches = [(torch.eye(2).double()[[0, 0]], torch.tensor([0, 1]))]  # half of the parameters change nothing
    kept: list[str] = []
    options = {"probes": 3, "steps": 4}
    whole = measure_spectrum(model, batches, found_so_far=lambda found: kept.append(json.dumps(found)), **options)
    first = json.loads(kept[0])
    assert first[0]["fresh"] > 0
    assert measure_spectrum(model, batches, known=first, **options) == whole


def test_partial_figures_that_are_not_numbers_are_made_again(model, digits):
    whole, kept = _stopped("trace", model, digits, parts="whole", probes=3)
    asked = settings("trace", parts="whole", probes=3)
    asked.known = {"whole": [None, *kept[1]["whole"][1:]]}
    assert MEASURES["trace"].function(model, digits, asked) == whole


def test_sharpness_under_every_scaling(model, digits):
    found = measured("sharpness", model, digits)
    asked = settings("sharpness")
    batches = asked.batches(digits.train, digits, 40)
    expected = measure_sharpness(model, batches, rho=0.5, scaling="weights", loss=asked.loss)
    assert found["weights"]["first_order"] == pytest.approx(expected["value"], rel=1e-5)
    for scaling in ("none", "weights", "all", "layer"):
        assert found[scaling]["ascent"] > 0
        assert found[scaling]["eta"] == (0.0 if scaling == "none" else 0.01)
        assert found[scaling]["step_size"] == pytest.approx({"first_order": 1.0, "ascent": 2 / 3 + 0.1})


def test_the_tangent_kernel_of_the_first_weights(model, digits):
    asked = settings("ntk_initial", blocks=1, block=12)
    with pytest.raises(MeasureError, match="only a run"):
        MEASURES["ntk_initial"].function(model, digits, asked)
    asked.fresh = lambda: model
    first = MEASURES["ntk_initial"].function(model, digits, asked)
    again = measured("ntk", model, digits, blocks=1, block=12)
    assert first["kappa"] == pytest.approx(again["kappa"])
    with pytest.raises(ConfigError, match="weights cannot be 'last'"):
        measured("ntk", model, digits, weights="last")


def test_norms_and_missing_rate(model, digits):
    found = measured("norms", model, digits)
    whole = sum(float(p.detach().square().sum()) for p in model.parameters()) ** 0.5
    assert found["weights"]["whole"] == pytest.approx(whole, rel=1e-5)
    assert found["gradients"]["whole"] > 0
    assert all(0 <= block["active"] <= 1 for block in found["activations"].values())
    assert 0 <= measured("missing_rate", model, digits)["rate"] <= 1


def test_a_model_whose_parts_have_no_names_is_measured_as_a_whole(digits):
    torch.manual_seed(0)
    model = timm.create_model(
        "convnext_atto", num_classes=10, in_chans=1, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)
    ).eval()
    some = replace(digits, size=32)
    found = measured("norms", model, some)
    assert set(found["weights"]) == set(found["gradients"]) == set(found["activations"]) == {"whole"}
    assert list(measured("trace", model, some, probes=2)["parts"]) == ["whole"]
    with pytest.raises(MeasureError, match="no names here"):
        measured("trace", model, some, probes=2, parts="attention")


def test_noise_on_the_loss_asked_for(model, digits):
    told: list[tuple[int, int]] = []
    asked = settings("noise", noise_draws=2, noise_examples=20, loss="trained")
    asked.loss = ClassLoss(sigmoid=True)
    asked.tell = lambda done, total: told.append((done, total))
    found = MEASURES["noise"].function(model, digits, asked)
    batches = asked.batches(digits.train, digits, 20)
    with torch.no_grad():
        expected = torch.cat([asked.loss(model(x), y) for x, y in batches]).mean().item()
    assert found["clean"] == pytest.approx(expected, rel=1e-5)
    assert measured("noise", model, digits, noise_draws=2, noise_examples=20)["clean"] != pytest.approx(expected)
    assert told == [(1, 2), (2, 2)]


def test_noise_landscapes_and_attention_say_how_they_were_made(digits):
    model = build_model(RunConfig.model_validate({"model": {"name": "vit_tiny_p2"}}), digits).eval()
    noise = measured("noise", model, digits, noise_draws=2, noise_examples=20, seed=3)
    how = {"examples": 20, "batch": 20, "batch_norm": "running", "precision": "float32", "device": "cpu", "seed": 3}
    assert noise["how"] == {"loss": "cross-entropy", **how}
    asked = settings("line", points=2, examples=40, loss="trained", batchnorm="reestimated")
    asked.batch_size = 16
    line = MEASURES["line"].function(model, digits, asked)["how"]
    assert line == {
        **how,
        "loss": loss_name(asked.loss),
        "examples": 40,
        "batch": 16,
        "batch_norm": "reestimated",
        "seed": 0,
    }
    assert measured("landscape", model, digits, points=2)["how"]["batch_norm"] == "running"
    assert measured("attention", model, digits)["how"] == {**how, "loss": "none", "examples": 8, "batch": 8, "seed": 0}


def _hungry(model, limit):
    """Have a model run out of memory above a number of images, as a GPU does."""

    def refuse(module, inputs):
        if len(inputs[0]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(refuse)


@pytest.mark.parametrize("name", ["norms", "missing_rate", "noise", "line", "sharpness", "trace"])
def test_memory_that_runs_out_leaves_the_figures_what_they_are(digits, name):
    model = build_model(RunConfig.model_validate({"model": {"name": "resnet_tiny"}}), digits).eval()
    torch.nn.init.normal_(model.head.weight)
    changes = {"noise_draws": 2, "noise_examples": 40, "points": 3, "probes": 2}
    changes = {key: value for key, value in changes.items() if key in MEASURES[name].defaults}
    whole = _numbers(measured(name, model, digits, **changes))
    _hungry(model, 7)
    cut = _numbers(measured(name, model, digits, **changes))
    assert cut.keys() == whole.keys()
    assert cut == pytest.approx(whole, rel=1e-4, abs=1e-7)


def _numbers(found, path=""):
    if isinstance(found, dict):
        return {
            k: v
            for key, value in found.items()
            if key not in ("how", "checks")
            for k, v in _numbers(value, f"{path}.{key}").items()
        }
    if isinstance(found, list):
        return {k: v for i, value in enumerate(found) for k, v in _numbers(value, f"{path}.{i}").items()}
    return {path: found} if isinstance(found, int | float) else {}


def test_batches_with_statistics_of_their_own_are_as_large_as_asked(digits):
    """Their size is a part of the figure, so it is a setting: neither memory nor --batch-size changes it unseen."""
    model = build_model(RunConfig.model_validate({"model": {"name": "resnet_tiny"}}), digits).eval()
    torch.nn.init.normal_(model.head.weight)

    def line(batch, at_a_time):
        asked = settings("line", points=3, batchnorm="reestimated", batch=batch)
        asked.batch_size = at_a_time
        return MEASURES["line"].function(model, digits, asked)

    assert line(20, 20) == line(20, 7)
    assert line(20, 20)["how"]["batch"] == 20
    assert line(20, 20)["loss"] != pytest.approx(line(40, 20)["loss"], rel=1e-6)
    assert measured("trace", model, digits, batchnorm="batch", batch=20, probes=2)["how"]["batch"] == 20
    with pytest.raises(SteppeError, match="cannot be taken on one image"):
        line(39, 20)
    _hungry(model, 7)
    with pytest.raises(SteppeError, match="batch to take statistics on") as caught:
        line(20, 20)
    assert "less than batch=20" in str(caught.value)


def test_a_landscape_on_eigenvectors(model, digits):
    (one, two), _ = DIRECTIONS["eigenvectors"](model, digits, settings("landscape", directions="eigenvectors"), 2)
    lengths = [
        sum(float((a * b).sum()) for a, b in zip(x, y, strict=True)) for x, y in ((one, one), (two, two), (one, two))
    ]
    weights = sum(float(p.detach().square().sum()) for p in model.parameters())
    assert lengths[0] == pytest.approx(weights, rel=1e-3)
    assert abs(lengths[2]) < 1e-2 * weights
    found = measured("landscape", model, digits, directions="eigenvectors", points=3)
    assert torch.tensor(found["loss"]).shape == (3, 3)


def test_a_landscape_on_eigenvectors_of_a_frozen_model_on_the_loss_asked_for(model, digits):
    last = set(blocks(model)["head"]) | set(blocks(model)["block2"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in last)
    asked = settings("line", directions="eigenvectors", loss="trained", points=3, examples=40)
    found = MEASURES["line"].function(model, digits, asked)
    batches = asked.batches(digits.train, digits, 40)
    expected, vectors = top_eigenvectors(model, batches, top=1, both_ends=(), loss=asked.loss)
    assert found["directions"]["eigenvalues"] == expected["parts"]["whole"]["top"]
    assert found["directions"]["how"] == expected["settings"]
    assert found["directions"]["how"]["loss"] == loss_name(asked.loss) != "cross-entropy"
    length = sum(float(p.detach().double().square().sum()) for n, p in model.named_parameters() if n in last) ** 0.5
    direction = [tensor * length for tensor in vectors["whole"][0].values()]
    assert found["loss"] == measure_line(model, batches, direction, points=3, loss=asked.loss)["loss"]
    assert measured("landscape", model, digits, directions="eigenvectors", points=2)["centre"] > 0
    assert "directions" not in measured("line", model, digits, points=2), "random ones are named by their seed"


def test_the_eigenvectors_of_a_landscape_say_on_how_many_images_they_were_found(model, digits, monkeypatch):
    monkeypatch.setattr("steppe.geometry.figures._EIGENVECTOR_EXAMPLES", 100)
    found = measured("line", model, digits, directions="eigenvectors", points=2, examples=110)
    assert found["examples"] == 110
    assert found["directions"]["how"]["examples"] == 100


def test_a_part_that_is_not_there(model, digits):
    with pytest.raises(MeasureError, match="no part 'block9'") as error:
        measured("lambda_max", model, digits, parts="block9")
    assert "block1" in str(error.value)


def test_a_run_that_trained_a_part_of_its_model_is_measured_on_that_part(model, digits):
    trained = set(blocks(model)["head"]) | set(blocks(model)["block2"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    found = measured("trace", model, digits, parts="roles", probes=2)
    assert {"whole", "head", "block2"} <= set(found["parts"])
    assert not {"embedding", "block1"} & set(found["parts"])
    norms = measured("norms", model, digits)
    assert norms["weights"] == pytest.approx(weight_norms(model, ("whole", *blocks(model)))), "frozen ones included"
    exact = torch.cat([p.detach().flatten() for p in model.parameters()]).norm().item()
    assert norms["weights"]["whole"] == pytest.approx(exact)
    assert "block1" not in norms["gradients"]
    with pytest.raises(MeasureError, match="'block1' was not trained"):
        measured("trace", model, digits, parts="block1")


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("lambda_max", {"precision": "float16", "parts": "whole"}, "precision cannot be 'float16'"),
        ("noise", {"noise_draws": 1, "noise_examples": 20}, "two draws or more"),
        ("noise", {"noise_draws": 0, "noise_examples": 20}, "two draws or more"),
        ("missing_rate", {"weight": 2.0}, "cannot hold 2 of an image"),
    ],
)
def test_settings_that_mean_nothing_are_refused(model, digits, name, changes, match):
    with pytest.raises(ConfigError, match=match):
        measured(name, model, digits, **changes)
