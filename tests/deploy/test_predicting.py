"""New pictures are treated as the training images were, and those that cannot be read are given back."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.data.folder import read_image_folder
from steppe.deploy import Prediction, Skipped, export, find_pictures, open_trained, predict_pictures
from steppe.deploy.images import Picture
from steppe.errors import ConfigError, RunError
from steppe.evaluate import predict
from steppe.runs import Run
from steppe.train import train


def classify(run: Path, *words: object, **options: object) -> tuple[list[Prediction], list[Skipped]]:
    pictures, skipped = find_pictures([str(word) for word in words])
    found = list(predict_pictures(open_trained(run, device="cpu"), pictures, **options))  # type: ignore[arg-type]
    good = [one for one in found if isinstance(one, Prediction)]
    return good, skipped + [one for one in found if isinstance(one, Skipped)]


def by_class(found: list[Prediction], classes: tuple[str, ...]) -> torch.Tensor:
    rows = [dict(zip(one.classes, one.probabilities, strict=True)) for one in found]
    return torch.tensor([[row[name] for name in classes] for row in rows], dtype=torch.float64)


def test_the_test_images_get_the_answers_of_the_evaluation(made, tmp_path):
    digits = data.load(DataConfig(name="digits"))
    pixels = digits.test.images[:40]
    for number, image in enumerate(pixels):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{number:02d}.png")
    np.save(tmp_path / "all.npy", pixels[:, 0].numpy())
    trained = open_trained(made / "resnet", device="cpu")
    batches = [(data.Normalise(digits, torch.device("cpu"))(pixels), digits.test.labels[:40])]
    own = (predict(trained.model, batches)[0].double() / 1.7).softmax(1)
    for words in ([tmp_path], [tmp_path / "all.npy"]):
        found, skipped = classify(made / "resnet", *words, temperature=1.7, top=10, batch_size=40)
        assert not skipped
        torch.testing.assert_close(by_class(found, digits.classes), own, rtol=0, atol=0)


def test_photographs_are_decoded_and_resized_as_in_training(made, photos):
    run = Run(made / "photos")
    source = read_image_folder(photos, 16, "refuse", stored_size=24)
    dataset = data.load(run.config.data)
    trained = open_trained(run.path, device="cpu")
    assert trained.images.train.shape == dataset.train.shape == (3, 24, 24)
    images = data.Normalise(dataset, torch.device("cpu"))(source.train.images)
    with torch.no_grad():
        own = trained.model(images).double().softmax(1)
    found, skipped = classify(run.path, photos, batch_size=len(images))
    assert not skipped
    assert [one.name for one in found] == [str(path) for path in sorted(photos.rglob("*.*"))]
    torch.testing.assert_close(by_class(found, dataset.classes), own, rtol=0, atol=0)


def test_an_older_run_without_the_stored_size(runs):
    place = runs / "photos" / "data.json"
    about = json.loads(place.read_text())
    assert about.pop("stored_size") == 24
    place.write_text(json.dumps(about))
    assert open_trained(runs / "photos", device="cpu").images.train.shape == (3, 24, 24)


def test_top_gives_so_many_in_order(made, photos):
    (one,), _ = classify(made / "resnet", photos / "red" / "00.png", top=4)
    assert len(one.classes) == len(set(one.classes)) == 4
    assert list(one.probabilities) == sorted(one.probabilities, reverse=True)
    (all_,), _ = classify(made / "resnet", photos / "red" / "00.png", top=99)
    assert len(all_.classes) == 10
    assert sum(all_.probabilities) == pytest.approx(1)


def test_grey_networks_take_colour_and_colour_networks_take_grey(made, tmp_path):
    grey = np.random.default_rng(0).integers(0, 255, (24, 24)).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("RGB").save(tmp_path / "colour.png")
    for run in ("resnet", "photos"):
        (a, b), skipped = classify(made / run, tmp_path / "grey.png", tmp_path / "colour.png")
        assert not skipped
        assert (a.classes, a.probabilities) == (b.classes, b.probabilities)


def test_arrays_of_any_shape_of_images(made, tmp_path):
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "some.npz",
        grey=random.integers(0, 255, (2, 8, 8)).astype(np.uint8),
        wide=random.integers(0, 255, (2, 30, 50, 3)).astype(np.uint8),
        one=random.integers(0, 255, (1, 9, 9, 1)).astype(np.uint8),
        labels=np.arange(5),
    )
    found, skipped = classify(made / "photos", tmp_path / "some.npz")
    assert not skipped
    file = tmp_path / "some.npz"
    names = [f"{file}:{name}" for name in ("grey[0]", "grey[1]", "wide[0]", "wide[1]", "one[0]")]
    assert [one.name for one in found] == names


def test_patterns_folders_and_files_are_each_taken_once(made, photos):
    pictures, skipped = find_pictures(
        [str(photos / "red" / "0*.png"), str(photos / "red"), str(photos / "**" / "*.jpg")]
    )
    assert not skipped
    names = [picture.name for picture in pictures]
    assert len(names) == len(set(names)) == 12 + 8
    assert [Path(name).name for name in names[:4]] == ["00.png", "03.png", "06.png", "09.png"]


def test_a_name_that_looks_like_a_pattern_is_a_file_where_there_is_one(tmp_path, photos):
    (tmp_path / "[x].png").write_bytes((photos / "red" / "00.png").read_bytes())
    assert [picture.name for picture in find_pictures([tmp_path / "[x].png"])[0]] == [str(tmp_path / "[x].png")]


def _png(width: int, height: int) -> bytes:
    """A PNG whose header promises a size and whose body does not keep it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)

    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def _npz_bomb() -> bytes:
    """An archive whose directory says of each of three members that it unpacks to 4 GiB."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name in "abc":
                archive.writestr(f"{name}.npy", b"some")
        members, *directory = file.getvalue().split(b"PK\x01\x02")
    lies = [one[:20] + (2**32 - 2).to_bytes(4, "little") + one[24:] for one in directory]
    return b"PK\x01\x02".join([members, *lies])


def spoil(folder: Path, photo: bytes) -> None:
    """Every kind of file that is no image."""
    (folder / "text.png").write_text("this is no image")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "cut.jpg").write_bytes(photo[: len(photo) // 2])
    (folder / "bomb.png").write_bytes(_png(12_000, 12_000))
    (folder / "bigger_bomb.png").write_bytes(_png(60_000, 60_000))
    (folder / "promise.png").write_bytes(_png(3000, 3000))
    (folder / "pickle.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '|O'}")
    (folder / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(folder / "floats.npy", np.zeros((2, 8, 8)))
    Image.new("RGBA", (8, 8)).save(folder / "alpha.png")
    Image.new("F", (8, 8)).save(folder / "floats.tiff")
    (folder / "bomb.npz").write_bytes(_npz_bomb())
    (folder / "nothing").mkdir()
    os.mkfifo(folder / "pipe.png")


REASONS = {
    "text.png": "cannot identify image file",
    "empty.jpg": "cannot identify image file",
    "cut.jpg": "truncated",
    "bomb.png": "exceeds limit",
    "bigger_bomb.png": "exceeds limit",
    "promise.png": "truncated",
    "pickle.npy": "not a readable array",
    "cut.npz": "not a readable array",
    "bomb.npz": "unpacked it would take 12.0 GiB",
    "floats.npy": "no images: they are uint8, (N, H, W) or (N, H, W, 1 or 3); it holds array: float64",
    "alpha.png": "RGBA, which the run's data refuse; --odd-images convert takes it",
    "floats.tiff": "floating-point pixels",
    "nothing": "there are no images in this folder",
    "pipe.png": "neither a file nor a folder",
    "missing.png": "there is no such file or folder",
    "*.gif": "this pattern matches nothing",
    "x" * 5000: "File name too long",
    "null\0.png": "there is no such file or folder",
}


def test_what_cannot_be_read_is_given_back_with_the_reason(made, photos, tmp_path):
    spoil(tmp_path, (photos / "red" / "01.jpg").read_bytes())
    good = photos / "red" / "00.png"
    found, skipped = classify(made / "photos", good, *(f"{tmp_path}/{name}" for name in REASONS), batch_size=3)
    assert [one.name for one in found] == [str(good)]
    assert len(skipped) == len(REASONS)
    reasons = {one.name.removeprefix(f"{tmp_path}/"): one.reason for one in skipped}
    for name, said in REASONS.items():
        reason = next(text for key, text in reasons.items() if key == name or (len(name) > 200 and key[:9] == name[:9]))
        assert said in reason, name


def test_odd_images_are_converted_when_asked(made, tmp_path):
    spoil(tmp_path, b"")
    (found,), skipped = classify(made / "photos", tmp_path / "alpha.png", odd_images="convert")
    assert not skipped
    assert found.name.endswith("alpha.png")


def test_a_network_of_points_takes_no_pictures(tmp_path):
    config = RunConfig.model_validate(
        {"data": {"name": "toy_moons"}, "model": {"name": "mlp_10"}, "batch_size": 500, "budget": {"epochs": 1}}
    )
    train(config, data.load(config.data), tmp_path / "toy")
    trained = open_trained(tmp_path / "toy", device="cpu")
    with pytest.raises(ConfigError, match="points in the plane"):
        list(predict_pictures(trained, [Picture("x", np.zeros((8, 8), np.uint8))]))
    made = export(trained, tmp_path / "out")
    assert made.difference is not None
    assert made.difference < 1e-4


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda run: (run / "weights.safetensors").unlink(), "no weights: their file is gone"),
        (lambda run: (run / "weights.safetensors").write_bytes(b"\x80\x04pickle"), "weights cannot be read"),
        (lambda run: (run / "data.json").unlink(), "does not say what the network's images are"),
        (lambda run: (run / "data.json").write_text('{"classes": 10}'), "does not say what the network's images are"),
        (lambda run: (run / "config.toml").unlink(), "not a run folder"),
    ],
)
def test_runs_that_cannot_be_used(harm, said, runs):
    harm(runs / "resnet")
    with pytest.raises(RunError, match=said):
        open_trained(runs / "resnet", device="cpu")
