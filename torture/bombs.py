"""Pickles that would run a program, in the place of every file that is read."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from steppe import data
from steppe.config import DataConfig
from steppe.errors import SteppeError
from torture.found import Found


class Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, target: Path) -> None:
        """Name the file."""
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        """Tell pickle to call `os.mkdir`."""
        return os.mkdir, (str(self.target),)


def bombs(found: Found, place: Path) -> None:
    """Pickles in the place of every file that is read.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    target = place / "exploded"
    bomb = Bomb(target)
    pickle.loads(pickle.dumps(bomb))
    if not found.check("the bomb goes off when it is unpickled by hand", target.exists()):
        return
    target.rmdir()
    tried = _bombed(place, bomb)
    for name, call in tried.items():
        refused = _refuses(found, name, call)
        found.check(f"{name}: nothing was run", not target.exists())
        found.check(f"{name}: the file is refused", refused)
        if target.exists():
            target.rmdir()
    found.counts["pickle bombs refused, nothing run"] = f"{len(tried)}: {', '.join(tried)}"
    found.say(f"{len(tried)} pickle bombs")


def _bombed(place: Path, bomb: Bomb) -> dict[str, Callable[[], Any]]:
    """Where a bomb lies -> what reads it."""
    from steppe import models
    from steppe.config import ModelConfig
    from steppe.data.evaluation import read_corrupted
    from steppe.data.storage import Files, map_files
    from steppe.models.weights import load_pretrained
    from steppe.runs import read_answers, read_json
    from steppe.search.journal import open_journal
    from steppe.train.checkpoint import load_checkpoint

    raw = pickle.dumps(bomb)
    model = models.build(ModelConfig(name="mlp_8"), image_size=8, channels=1, classes=10)
    zipped = io.BytesIO()
    torch.save({"state_dict": {"head.weight": bomb}}, zipped)
    old = io.BytesIO()
    torch.save({"a": bomb}, old, _use_new_zipfile_serialization=False)
    out: dict[str, Callable[[], Any]] = {}

    def weights(name: str, content: bytes) -> None:
        (place / name).write_bytes(content)
        out[f"weights {name}"] = lambda: load_pretrained(model, str(place / name), "mlp_8")

    for suffix in ("pth", "pt", "bin", "ckpt", "safetensors"):
        weights(f"raw.{suffix}", raw)
        weights(f"zip.{suffix}", zipped.getvalue())
    weights("old.pth", old.getvalue())
    for name, read in (
        ("weights.safetensors", lambda p: models.load_weights(model, p)),
        ("checkpoint.safetensors", load_checkpoint),
    ):
        (place / name).write_bytes(raw)
        out[f"a run's {name}"] = lambda read=read, name=name: read(place / name)  # type: ignore[misc]
    (place / "answers.safetensors").write_bytes(raw)
    out["a run's answers.safetensors"] = lambda: read_answers(place)
    (place / "summary.json").write_bytes(raw)
    out["JSON of a run"] = lambda: read_json(place / "summary.json")
    objects = np.array([bomb, bomb], dtype=object)
    np.savez(place / "objects.npz", x_train=objects, y_train=np.arange(2))
    np.savez(place / "labels.npz", x_train=np.zeros((2, 4, 4), np.uint8), y_train=objects)
    (place / "raw.npz").write_bytes(raw)
    with zipfile.ZipFile(place / "member.npz", "w") as file:
        file.writestr("x_train.npy", raw)
        file.writestr("y_train.npy", raw)
    for name in ("objects", "labels", "raw", "member"):
        out[f"{name}.npz"] = lambda name=name: data.load(DataConfig(name=str(place / f"{name}.npz")))  # type: ignore[misc]
    out |= _bombed_sets(place, raw, objects, read_corrupted)
    (place / "journal").mkdir()
    (place / "journal" / "optuna.journal").write_bytes(raw + b"\n")
    out["a search's journal"] = lambda: open_journal(place / "journal").get_trials()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(place / "one.png")
    listed = Files(place, (place / "one.png",), 4)
    (place / "cache").mkdir()
    np.save(place / "cache" / f"{listed.cache_key}.npy", objects, allow_pickle=True)

    def cached() -> None:
        images = map_files(listed, place / "cache").fetch(np.array([0]))
        assert images.dtype == torch.uint8
        raise SteppeError("made anew")

    out["the cache of decoded images (made anew)"] = cached
    return out | _bombed_deployment(place / "deploy", raw, objects)


def _bombed_deployment(place: Path, raw: bytes, objects: Any) -> dict[str, Callable[[], Any]]:
    """What `steppe predict` and `steppe export` read."""
    import shutil

    from steppe.deploy import Skipped, export, find_pictures, get_calibration, open_trained, predict_pictures
    from torture.fuzz_data import huge_image
    from torture.fuzz_files import make_run

    run = make_run(place / "run").path
    trained = open_trained(run, device="cpu")
    export(trained, place / "exported", format="safetensors")
    out: dict[str, Callable[[], Any]] = {}
    for name in ("model.safetensors", "config.json"):
        folder = place / f"exported {name}"
        shutil.copytree(place / "exported", folder)
        (folder / name).write_bytes(raw)
        out[f"an exported folder's {name}"] = lambda folder=folder: open_trained(folder, device="cpu")  # type: ignore[misc]
    spoilt = place / "spoilt"
    shutil.copytree(run, spoilt)
    (spoilt / "weights.safetensors").write_bytes(raw)
    out["the weights of a run to be exported"] = lambda: export(open_trained(spoilt), place / "never")
    shutil.copytree(run, place / "calibrated")
    (place / "calibrated" / "calibration.json").write_bytes(raw)

    def calibrated() -> None:
        assert get_calibration(open_trained(place / "calibrated", device="cpu"))
        raise SteppeError("made anew")

    out["calibration.json (made anew)"] = calibrated
    (place / "raw.png").write_bytes(raw)
    (place / "huge.png").write_bytes(huge_image(random.Random(0), png=True))
    np.save(place / "objects.npy", objects, allow_pickle=True)
    np.savez(place / "objects.npz", x_test=objects)
    for name in ("raw.png", "huge.png", "objects.npy", "objects.npz"):

        def predict(name: str = name) -> None:
            pictures, skipped = find_pictures([place / name])
            answers = [*skipped, *predict_pictures(trained, pictures)]
            if answers and all(isinstance(answer, Skipped) for answer in answers):
                raise SteppeError("skipped")

        out[f"{name} to predict"] = predict
    return out


def _bombed_sets(place: Path, raw: bytes, objects: Any, read_corrupted: Any) -> dict[str, Callable[[], Any]]:
    """Named data sets whose files have a wrong checksum, and published corruptions."""
    import socket

    cifar = place / "cifar-10-batches-py"
    cifar.mkdir()
    for name in ("batches.meta", "test_batch", *(f"data_batch_{n}" for n in range(1, 6))):
        (cifar / name).write_bytes(raw)
    hundred = place / "cifar-100-python"
    hundred.mkdir()
    for name in ("meta", "train", "test"):
        (hundred / name).write_bytes(raw)
    (place / "CIFAR-10-C").mkdir()
    np.save(place / "CIFAR-10-C" / "fog.npy", objects, allow_pickle=True)
    np.save(place / "CIFAR-10-C" / "labels.npy", objects, allow_pickle=True)

    def without_network(name: str) -> None:
        before = socket.getaddrinfo

        def nobody(*_: Any, **__: Any) -> Any:
            raise OSError("no network in this test")

        socket.getaddrinfo = nobody
        try:
            data.load(DataConfig(name=name), place)
        finally:
            socket.getaddrinfo = before

    from dataclasses import replace

    digits = replace(data.load(DataConfig(name="digits")), name="cifar10")
    return {
        "CIFAR-10 with a wrong checksum": lambda: without_network("cifar10"),
        "CIFAR-100 with a wrong checksum": lambda: without_network("cifar100"),
        "CIFAR-10-C as objects": lambda: read_corrupted(digits, place, "fog", 1),
    }


def _refuses(found: Found, name: str, call: Callable[[], Any]) -> bool:
    try:
        call()
    except SteppeError:
        return True
    except Exception as error:
        found.fail(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return False
