"""The library's front door: `steppe.fit`, `steppe.train`, `steppe.load`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import steppe
from steppe.api import train as train_function
from steppe.config.keys import KEYS, argument_of, flag_of, nest_arguments
from steppe.deploy import Prediction, export, open_trained
from steppe.errors import ConfigError, DataError, RunError

QUICK = {"model": "resnet_tiny", "epochs": 1, "batch_size": 128}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> steppe.Run:
    """A run on digits that was trained through the library."""
    return steppe.train("digits", out=tmp_path_factory.mktemp("api") / "run", minimizer="sam", rho=0.1, **QUICK)


@pytest.fixture(scope="module")
def network(run) -> steppe.Classifier:
    return steppe.load(run)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return (load_digits().images[:4] * 255 / 16).astype(np.uint8)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


# -- the package ------------------------------------------------------------------------------------------------------


def test_import_is_fast():
    code = "import time; t = time.perf_counter(); import steppe; print(time.perf_counter() - t)"
    assert min(float(run_python(code)) for _ in range(3)) < 0.2


def test_import_of_the_front_door_does_not_wait_for_torch():
    assert run_python("from steppe import fit, train, load; import sys; print('torch' in sys.modules)") == "False\n"


def test_dir_shows_what_there_is():
    assert {*steppe.__all__, "minimizers", "__version__"} <= set(dir(steppe))
    assert all(hasattr(steppe, name) for name in dir(steppe))


def test_train_can_be_called_before_its_package_is_imported():
    code = "import sys, steppe\ntry: steppe.train('nosuch')\nexcept steppe.SteppeError: print('torch' in sys.modules)"
    assert run_python(code) == "False\n"


def test_train_can_be_called_after_its_package_is_imported():
    import steppe.train as package

    assert steppe.train is package
    with pytest.raises(ConfigError, match="unknown data set 'nosuch'"):
        steppe.train("nosuch")


# -- train ------------------------------------------------------------------------------------------------------------


def test_train_takes_settings_as_plain_arguments(run):
    config = run.config
    assert (config.data.name, config.model.name, config.budget.epochs) == ("digits", "resnet_tiny", 1)
    assert (config.minimizer.name, config.minimizer.rho, config.batch_size) == ("sam", 0.1, 128)
    assert run.finished


def test_train_lays_settings_over_a_configuration(run, here):
    again = steppe.train(run.config, minimizer="ASAM", seed=3, out="r").config
    assert (again.minimizer.name, again.minimizer.rho, again.seed) == ("asam", 0.5, 3)
    assert (again.batch_size, again.model) == (128, run.config.model)


def test_train_takes_a_toml_file(here):
    Path("run.toml").write_text('batch_size = 64\n[model]\nname = "resnet_tiny"\n')
    config = steppe.train("run.toml", epochs=1, out=Path("r")).config
    assert (config.batch_size, config.model.name, config.budget.epochs) == (64, "resnet_tiny", 1)


def test_train_goes_on_with_the_same_call(run):
    before = run.weights.stat().st_mtime_ns
    assert steppe.train(run.config, out=run.path).weights.stat().st_mtime_ns == before


def test_arguments_are_named_as_flags():
    assert nest_arguments({argument_of(key): 1 for key in KEYS}).keys() >= {"data", "model", "minimizer", "seed"}
    assert all(f"--{argument_of(key)}".replace("_", "-") == flag_of(key) for key in KEYS)


def test_arguments_of_train_are_no_settings():
    own = set(inspect.signature(train_function).parameters) - {"settings"}
    assert own.isdisjoint(map(argument_of, KEYS))


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("nosuch",), {}, "unknown data set 'nosuch'"),
        (("digits",), {"model": "resnet19x"}, "unknown model 'resnet19x'"),
        (("digits",), {"epoch": 3}, "unknown argument 'epoch'"),
        (("digits",), {"gamma": 0.5}, "gamma could mean several arguments"),
        (("digits",), {"data": "mnist"}, "the data are named twice"),
        (("digits",), {"minimizer": "sam", "rho": -1}, "minimizer.rho = -1"),
        (("digits",), {"device": "tpu"}, "device 'tpu'"),
        (("nosuch.toml",), {}, "there is no such file"),
    ],
)
def test_train_refuses_what_is_not_right(arguments, settings, expected, here):
    with pytest.raises(steppe.SteppeError, match=expected) as caught:
        steppe.train(*arguments, **settings)
    assert caught.value.fix
    assert not list(here.iterdir())


# -- load and predict -------------------------------------------------------------------------------------------------


def test_load_opens_a_run(network, run):
    assert network.classes == tuple("0123456789")
    assert network.accuracy == run.summary["test"]["accuracy"]
    assert network.run is run or network.run.path == run.path
    assert "resnet_tiny, 10 classes, test accuracy" in repr(network)


def test_load_opens_an_exported_folder(run, network, digits, tmp_path):
    export(open_trained(run.path), tmp_path / "e", format="safetensors")
    exported = steppe.load(tmp_path / "e")
    assert (exported.classes, exported.accuracy, exported.run) == (network.classes, None, None)
    assert exported.predict(digits[0]).label == network.predict(digits[0]).label
    with pytest.raises(RunError, match="does not say how it was trained"):
        exported.report()


def test_load_refuses_what_is_no_run(tmp_path):
    for name in ("nosuch", "."):
        with pytest.raises(RunError):
            steppe.load(tmp_path / name)


def test_load_opens_the_best_run_of_a_search(run, tmp_path):
    (tmp_path / "trial").symlink_to(run.path, target_is_directory=True)
    (tmp_path / "fit.json").write_text('{"elapsed_s": 1.0}')
    with pytest.raises(RunError, match="no best run yet"):
        steppe.load(tmp_path)
    (tmp_path / "fit.json").write_text('{"best": "trial"}')
    assert steppe.load(tmp_path).folder == tmp_path / "trial"


def test_predict_gives_one_prediction_for_one_image(network, digits, here):
    image = Image.fromarray(digits[0])
    image.save("0.png")
    answers = [network.predict(one, top=3) for one in ("0.png", Path("0.png"), image, digits[0], digits[0][..., None])]
    assert all(isinstance(one, Prediction) and len(one.classes) == 3 for one in answers)
    assert len({one.probabilities for one in answers}) == 1
    assert answers[0].label == answers[0].classes[0]
    assert answers[0].probability == answers[0].probabilities[0]


def test_predict_gives_a_list_for_several_images(network, digits, here):
    for number, pixels in enumerate(digits):
        Image.fromarray(pixels).save(f"{number}.png")
    np.save("all.npy", digits)
    names = [f"{number}.png" for number in range(4)]
    answers = [network.predict(some) for some in (names, ".", "*.png", digits, list(digits), "all.npy")]
    assert [len(some) for some in answers] == [4] * 6
    labels = [[one.label for one in some] for some in answers]
    assert all(some == labels[0] for some in labels)
    assert len(network.predict(["0.png"])) == 1
    assert network.predict([]) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("nosuch.png", "there is no such file or folder"),
        (np.zeros((8, 8)), "float64 of shape"),
        (np.zeros((2, 2, 2, 2, 2), np.uint8), r"uint8 of shape \(2, 2, 2, 2, 2\)"),
        (Image.new("RGBA", (8, 8)), "not 8-bit RGB or grey but RGBA"),
    ],
)
def test_predict_refuses_an_image_that_cannot_be_read(network, given, expected):
    with pytest.raises(DataError, match=expected):
        network.predict(given)
    with pytest.raises(DataError, match=expected):
        network.predict(given, skip_unreadable=True)


def test_predict_refuses_what_is_no_image(network):
    with pytest.raises(ConfigError, match="this is no image but int"):
        network.predict(3)


def test_predict_converts_odd_images_when_told_to(network):
    assert network.predict(Image.new("RGBA", (8, 8)), odd_images="convert").label in network.classes


def test_predict_leaves_out_unreadable_images_when_told_to(network, digits):
    with pytest.raises(DataError, match="no such file") as caught:
        network.predict([digits[0], "nosuch.png"])
    assert "skip_unreadable=True" in caught.value.fix
    assert len(network.predict([digits[0], "nosuch.png"], skip_unreadable=True)) == 1


def test_probabilities_are_calibrated(network, digits):
    assert not isinstance(network.calibration, str)
    assert (network.folder / "calibration.json").is_file()


def test_report_is_a_page(network, tmp_path):
    assert network.report(tmp_path / "r.html").read_text().startswith("<!doctype html>")


# -- fit --------------------------------------------------------------------------------------------------------------


def test_fit_gives_a_classifier(here, digits):
    found = steppe.fit("Digits", budget="12epochs", model="MLP-8", weights="none")
    assert found.folder == Path("runs/fit-digits")
    assert "mlp_8" in found.answer
    assert found.best.accuracy is not None
    assert found.predict(digits[0]).label in found.best.classes
    assert steppe.load(found.folder).folder.name == found.best.folder.name


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"data": "nosuch"}, "unknown data set 'nosuch'"),
        ({"data": "digits", "budget": 10}, "'10' has no unit"),
        ({"data": "digits", "model": "resnet19x"}, "unknown model"),
        ({"data": "digits", "weights": "nosuch"}, "there are no weights"),
        ({"data": "digits", "device": "tpu"}, "device 'tpu'"),
    ],
)
def test_fit_refuses_what_is_not_right(arguments, expected, here):
    with pytest.raises(steppe.SteppeError, match=expected):
        steppe.fit(**arguments)
    assert not list(here.iterdir())
