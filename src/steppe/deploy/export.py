"""A trained network for other programs: a folder with the weights, and all that is needed to use them rightly."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.deploy.calibration import Calibration
from steppe.deploy.onnx_format import MODEL, write_onnx
from steppe.deploy.timm_format import write_timm
from steppe.deploy.trained import WEIGHTS, Trained
from steppe.errors import ConfigError, RunError
from steppe.runs import write_json
from steppe.runs.files import explain_os_error
from steppe.train.checkpoint import save_weights

_FILES = ("config.json", MODEL, WEIGHTS)
_PREFIX = ".steppe-export-"
"""Of the folder in which an export is made ready; a killed one may leave it behind."""


@dataclass(frozen=True)
class Exported:
    """What an export made."""

    folder: Path
    files: tuple[str, ...]
    difference: float | None
    """The largest difference of the logits, measured with the program the format is for."""
    usage: tuple[str, ...]
    """Lines that use it."""


def export(
    trained: Trained,
    folder: str | Path,
    *,
    format: str = "onnx",
    calibration: Calibration | None = None,
    replace: bool = False,
) -> Exported:
    """Export a network into a folder, which is there whole or not at all.

    Args:
        trained: the network.
        folder: made; it must not exist, or be empty.
        format: one of `FORMATS`.
        calibration: goes into the metadata.
        replace: replace the files of an earlier export in the folder.

    Raises:
        ConfigError: the format is not one, or cannot hold this network.
        RunError: the folder holds something already, or cannot be written.
    """
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}", where="--format", fix=f"choose: {', '.join(FORMATS)}")
    folder = Path(folder)
    write, use = FORMATS[format]
    check_free(folder, replace)
    made: Path | None = None
    try:
        there = folder.is_dir()
        beside = folder if there else folder.absolute().parent
        beside.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=beside, prefix=_PREFIX))
        difference = write(trained, made, describe(trained, calibration))
        files = tuple(sorted(path.name for path in made.iterdir()))
        if there:
            check_free(folder, replace)  # writing took a while
            _move_into(made, folder)
        else:
            made.chmod(0o777 & ~_umask())
            os.rename(made, folder)
    except OSError as error:
        raise explain_os_error(error, folder) from None
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
    return Exported(folder, files, difference, tuple(use(trained, folder, calibration)))


def describe(trained: Trained, calibration: Calibration | None) -> dict[str, Any]:
    """What steppe says of an exported network: enough to open it again, and for others to prepare images as it did.

    Args:
        trained: the network.
        calibration: its calibration, if it has one.
    """
    images = trained.images
    stored = images.train.shape[-1]
    return {
        "version": importlib.metadata.version("steppe"),
        "run": trained.name,
        "model": trained.network.name,
        "classes": list(images.classes),
        "preprocessing": {
            "channels": images.channels,
            "image_size": images.image_size,
            "crop": "the middle square, after the file's orientation is applied",
            "resize_first_to": stored,
            "resize_then_to": images.image_size,
            "interpolation": "bilinear, antialiased where pixels become fewer",
            "divide_by": 255 if trained.takes_pictures else 1,
            "mean": list(images.mean),
            "std": list(images.std),
        },
        "temperature": calibration.temperature if calibration else None,
        "calibration": calibration.as_json() if calibration else None,
        "odd_images": trained.odd_images,
        "data": {
            "name": images.name,
            "classes": list(images.classes),
            "image_size": images.image_size,
            "stored_size": stored,
            "channels": images.channels,
            "mean": list(images.mean),
            "std": list(images.std),
            "fingerprint": images.fingerprint,
        },
    }


def _write_plain(trained: Trained, folder: Path, about: dict[str, Any]) -> None:
    save_weights(folder / WEIGHTS, trained.model.state_dict())
    write_json(folder / "config.json", {"steppe": about})


def _use_onnx(trained: Trained, folder: Path, calibration: Calibration | None) -> list[str]:
    channels, size = trained.images.channels, trained.images.image_size
    head = [
        "import json, numpy as np, onnxruntime, PIL.Image, PIL.ImageOps, scipy.special",
        f"session = onnxruntime.InferenceSession({str(folder / MODEL)!r})  # its metadata say what config.json does",
        "about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}",
    ]
    if trained.takes_pictures:
        stored = trained.images.train.shape[-1]
        sizes = dict.fromkeys((stored, size))
        prepare = [
            'image = PIL.ImageOps.exif_transpose(PIL.Image.open("image.png").convert("RGB"))',
            *(f"image = PIL.ImageOps.fit(image, ({s}, {s}), PIL.Image.Resampling.BILINEAR)" for s in sizes),
            f'pixels = np.asarray(image.convert("{_mode(trained)}"), np.float32).reshape({size}, {size}, {channels})',
            'x = ((pixels / about["divide_by"] - about["mean"]) / about["std"]).transpose(2, 0, 1)[None]',
        ]
    else:
        prepare = [
            f"points = np.zeros((1, {size}, {size}, {channels}))  # yours",
            'x = ((points / about["divide_by"] - about["mean"]) / about["std"]).transpose(0, 3, 1, 2)',
        ]
    return [
        *head,
        *prepare,
        'logits = session.run(["logits"], {"images": x.astype(np.float32)})[0]',
        f"probabilities = scipy.special.softmax({_scaled('logits', calibration)}, axis=1)",
        'print(about["classes"][probabilities.argmax()], probabilities.max())',
    ]


def _use_timm(trained: Trained, folder: Path, calibration: Calibration | None) -> list[str]:
    return [
        "import PIL.Image, timm, timm.data",
        f"model = timm.create_model({f'local-dir:{folder}'!r}, pretrained=True).eval()",
        f'image = PIL.Image.open("image.png").convert("{_mode(trained)}")',
        "x = timm.data.create_transform(**timm.data.resolve_data_config(model=model))(image)[None]",
        f"probabilities = ({_scaled('model(x)', calibration)}).softmax(1)[0]",
        'print(model.pretrained_cfg["label_names"][probabilities.argmax()], probabilities.max().item())',
    ]


def _mode(trained: Trained) -> str:
    """What PIL calls images such as the network sees."""
    return "L" if trained.images.channels == 1 else "RGB"


def _use_plain(trained: Trained, folder: Path, calibration: Calibration | None) -> list[str]:
    return [
        f"steppe predict {folder} image.png",
        f"steppe train --model {trained.network.name} --mode finetune --weights {folder / WEIGHTS} --data …",
    ]


def _scaled(logits: str, calibration: Calibration | None) -> str:
    return f"{logits} / {calibration.temperature:.4g}" if calibration else logits


Write = Callable[[Trained, Path, dict[str, Any]], float | None]
Use = Callable[[Trained, Path, Calibration | None], list[str]]
FORMATS: dict[str, tuple[Write, Use]] = {
    "onnx": (write_onnx, _use_onnx),
    "timm": (write_timm, _use_timm),
    "safetensors": (_write_plain, _use_plain),
}
"""Format -> what writes it, and the lines that use it."""


def check_free(folder: Path, replace: bool) -> None:
    """Refuse a folder that an export would overwrite.

    Args:
        folder: where it is to go.
        replace: an earlier export there may be replaced.
    """
    try:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise RunError("this is a file, not a folder", where=str(folder), fix="choose another with -o")
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise explain_os_error(error, folder) from None
    held = sorted(name for name in names if not name.startswith(_PREFIX))
    if "config.toml" in held:
        raise RunError("this is a run's folder", where=str(folder), fix="choose another with -o")
    if held and not replace:
        fix = "choose another with -o, or say --replace"
        raise RunError(f"this folder is not empty: it holds {', '.join(held[:3])}", where=str(folder), fix=fix)
    foreign = [name for name in held if name not in _FILES]
    if foreign:
        what = f"this folder holds more than an export: {', '.join(foreign[:3])}"
        raise RunError(what, where=str(folder), fix="choose another with -o")


def _move_into(made: Path, folder: Path) -> None:
    """Put new files in the place of old ones; config.json goes first and comes last, so it never tells of others."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for path in sorted(made.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(path, folder / path.name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
