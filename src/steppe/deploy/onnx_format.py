"""ONNX: one file that runs without torch, with the pre-processing in its metadata and a free batch size."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from steppe.deploy.checking import compare, sample_images
from steppe.deploy.trained import Trained
from steppe.errors import ConfigError
from steppe.runs import write_json

MODEL = "model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def write_onnx(trained: Trained, folder: Path, about: dict[str, Any]) -> float:
    """Write model.onnx and config.json into a folder, run the model by onnxruntime, and compare.

    Args:
        trained: the network.
        folder: where to write; it exists.
        about: what goes into the metadata and into config.json.

    Returns:
        The largest difference between the logits of onnxruntime and ours.

    Raises:
        ConfigError: packages are missing, or torch cannot translate this network.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        what = f"ONNX needs packages that are not installed: {', '.join(missing)}"
        raise ConfigError(what, fix="pip install 'steppe[onnx]'")
    program = _translate(trained, trained.model_on_cpu())
    program.model.metadata_props.update(describe(about))
    try:
        program.save(str(folder / MODEL), external_data=False)
    except ValueError as error:  # protobuf's limit of 2 GiB a file
        raise _refusal(trained, error) from None
    write_json(folder / "config.json", {"steppe": about})
    return _check(trained, folder / MODEL)


def describe(about: dict[str, Any]) -> dict[str, str]:
    """The metadata of an ONNX file, whose values are strings: JSON, a key for each thing a reader wants.

    Args:
        about: what steppe says of the network.
    """
    wanted = {"classes": about["classes"], **about["preprocessing"], "temperature": about["temperature"]}
    return {key: json.dumps(value) for key, value in {**wanted, "steppe": about}.items()}


def _translate(trained: Trained, model: torch.nn.Module) -> Any:
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # about operators that torchvision and others did not register
            return torch.onnx.export(
                model,
                (sample_images(trained),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
    except Exception as error:  # whatever a network does that the exporter cannot follow
        raise _refusal(trained, error) from None
    finally:
        log.setLevel(before)


def _check(trained: Trained, path: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for count in (1, 3):
        images = sample_images(trained, count)
        (found,) = session.run(["logits"], {"images": images.numpy()})
        differences.append(compare(torch.from_numpy(found), trained, images, "onnxruntime"))
    return max(differences)


def _refusal(trained: Trained, error: Exception) -> ConfigError:
    reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
    what = f"torch cannot translate {trained.network.name!r} into ONNX: {reason}"
    return ConfigError(what, where=str(trained.folder), fix="use --format safetensors")
