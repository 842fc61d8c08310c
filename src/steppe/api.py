"""The library's front door: `steppe.fit`, `steppe.train` and `steppe.load`.

Nothing here imports torch before it is needed, so that a wrong name or path is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from steppe.config import DataConfig, RunConfig, merge, parse, search_folder
from steppe.config.keys import nest_arguments
from steppe.config.lookup import check_data_name, check_device_name, check_model_name, check_names, check_weights
from steppe.config.source import read_source
from steppe.config.spelling import spell_model
from steppe.errors import ConfigError, DataError, RunError
from steppe.runs import Observer, Run, find_trained
from steppe.search.budget import DEFAULT, Budget, parse_budget
from steppe.search.observer import SearchObserver

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from steppe.deploy import Calibration, Prediction, Skipped, Trained
    from steppe.search.pareto import Fitted

    OneOrMany: TypeAlias = "str | Path | Image | np.ndarray"

_ARGUMENTS = "the arguments"


def train(
    source: str | Path | RunConfig | None = None,
    *,
    recipe: str | Path | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str | None = None,
    observer: Observer | None = None,
    **settings: Any,
) -> Run:
    """Train one model and leave a run folder, or go on where an earlier call was stopped.

    Args:
        source: what is learned: a folder of images, a .npz file or a data set; or a TOML file or a `RunConfig` with all
            of the run, over which `settings` are laid.
        recipe: a name of `steppe recipes` or a recipe's file, over which data and `settings` are laid.
        out: the run folder; by default `runs/<run id>`.
        data_root: where named data sets live; by default $STEPPE_DATA, else `data`.
        device: "cpu", "cuda" …; by default the GPU where there is one.
        observer: told how training goes.
        settings: keys of the run by the names of the flags of `steppe train`, with underscores: model="resnet18",
            minimizer="sam", rho=0.1, epochs=5, batch_size=128.

    Returns:
        The run, finished and measured; `steppe.load(run)` opens its network.

    Raises:
        ConfigError: a setting is not right, or names a model that there is not.
        DataError: there are no such data, or they cannot be learned from.
        RunError: the folder belongs to another configuration, or is in use.
        TrainingError: the loss is no longer finite, or memory ran out.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.
    """
    config = _read_run(source, settings, recipe)
    check_names(config, data_root)
    if device is not None:
        check_device_name(device)
    from steppe.studies import execute

    return execute(config, out, data_root=data_root, device=device, observer=observer)


def fit(
    data: str | Path,
    *,
    budget: str | Budget = DEFAULT,
    out: str | Path | None = None,
    model: str | Sequence[str] = (),
    weights: str = "auto",
    image_size: int | None = None,
    seed: int = 0,
    data_root: str | Path | None = None,
    device: str | None = None,
    observer: SearchObserver | None = None,
) -> Found:
    """Find the best classifier for some images within a budget, or go on with a search.

    Args:
        data: a folder of images, a .npz file or a data set.
        budget: such as "90s", "20m" or "1h30m" for everything, or "200epochs" without a clock.
        out: the search's folder; by default `runs/fit-<data>`.
        model: try only this model, or these; by default those that suit the images.
        weights: pretrained weights: "auto", "none", a name of `steppe weights list`, or a file.
        image_size: side in pixels; by default chosen by the search.
        seed: of the search and of every run.
        data_root: where named data sets live; by default $STEPPE_DATA, else `data`.
        device: "cpu", "cuda" …; by default the GPU where there is one.
        observer: told how the search goes.

    Raises:
        ConfigError: an argument is not right, or the budget is too short.
        DataError: there are no such data, or they cannot be learned from.
        RunError: the folder belongs to something else.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.
    """
    given = budget if isinstance(budget, Budget) else parse_budget(str(budget))
    values = {"name": str(data)} | ({} if image_size is None else {"image_size": image_size})
    wanted_data = parse(DataConfig, values, where=_ARGUMENTS)
    check_data_name(wanted_data.name, data_root)
    models = tuple(map(spell_model, [model] if isinstance(model, str) else model))
    for name in models:
        check_model_name(name)
    if weights != "none":
        check_weights(weights, data_root)
    if device is not None:
        check_device_name(device)
    from steppe.search.fitting import Wanted
    from steppe.search.fitting import fit as search

    wanted = Wanted(wanted_data, models, weights, seed)
    folder = Path(out) if out is not None else search_folder(wanted_data.name)
    return Found(
        search(wanted, given, folder, data_root=data_root, device=device, observer=observer), data_root, device
    )


def load(path: str | Path | Run, *, device: str | None = None, data_root: str | Path | None = None) -> Classifier:
    """Open a trained network for use; the data it learned need not be here.

    Args:
        path: a run, its folder, a folder that `steppe export` made, or the folder of a search, whose best run is meant.
        device: "cpu", "cuda" …; by default the GPU where there is one.
        data_root: where named data sets live; its probabilities are calibrated on its validation images if need be.

    Raises:
        RunError: there is no such folder, or it has no weights.
    """
    folder = find_trained(path.path if isinstance(path, Run) else path)
    if device is not None:
        check_device_name(device)
    from steppe.deploy import open_trained

    return Classifier(open_trained(folder, device=device), data_root)


class Classifier:
    """A trained network, open for use."""

    def __init__(self, trained: Trained, data_root: str | Path | None = None) -> None:
        """Keep an opened network.

        Args:
            trained: from `steppe.deploy.open_trained`.
            data_root: where named data sets live.
        """
        self._trained, self._data_root = trained, data_root

    def __repr__(self) -> str:
        """Show the folder, the model and what is known of its accuracy."""
        known = "" if self.accuracy is None else f", test accuracy {self.accuracy:.1%}"
        about = f"{self._trained.network.name}, {len(self.classes)} classes{known}"
        return f"<Classifier {str(self.folder)!r}: {about}>"

    @property
    def folder(self) -> Path:
        """The folder it was opened from."""
        return self._trained.folder

    @property
    def run(self) -> Run | None:
        """Its run; None for an exported folder."""
        return self._trained.run

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self._trained.images.classes

    @property
    def summary(self) -> Mapping[str, Any]:
        """How its training ended; of an exported folder, what the export says."""
        return self.run.summary if self.run else dict(self._trained.exported or {})

    @property
    def accuracy(self) -> float | None:
        """The share of the test images it answers right; None where that is not known."""
        tested = self.summary.get("test")
        return tested.get("accuracy") if isinstance(tested, Mapping) else None

    @cached_property
    def calibration(self) -> Calibration | str:
        """How logits become probabilities, fitted on validation images and kept; or, in words, why there is none."""
        from steppe.deploy import get_calibration

        return get_calibration(self._trained, data_root=self._data_root)

    @overload
    def predict(
        self,
        images: list[Any] | tuple[Any, ...],
        *,
        top: int = ...,
        odd_images: str | None = ...,
        skip_unreadable: bool = ...,
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, images: OneOrMany, *, top: int = ..., odd_images: str | None = ..., skip_unreadable: bool = ...
    ) -> Any: ...
    def predict(
        self,
        images: OneOrMany | list[Any] | tuple[Any, ...],
        *,
        top: int = 5,
        odd_images: str | None = None,
        skip_unreadable: bool = False,
    ) -> Prediction | list[Prediction]:
        """Say what is on one image, or on each of several.

        Args:
            images: a file, a PIL image, or an array (H, W) or (H, W, 1 or 3) of uint8; or a list of them, a folder, a
                pattern such as "photos/**/*.jpg", or a file or an array of many images.
            top: so many classes of each image, or all where there are fewer.
            odd_images: "refuse" or "convert" images that are not 8-bit RGB or grey; by default as the run's data.
            skip_unreadable: of several, leave out images that cannot be read, instead of an error.

        Returns:
            The `Prediction` of one image, or a list of them, with `label`, `probability`, `classes`, `probabilities`.

        Raises:
            DataError: an image cannot be read, or there is none.
            ConfigError: the network does not classify images, or something that is no image was given.
        """
        from steppe.deploy import Skipped, predict_pictures
        from steppe.deploy.images import pictures_of

        odd = odd_images or self._trained.odd_images
        each: Sequence[Any] = images if isinstance(images, list | tuple) else [images]
        named = [pictures_of(one, f"image {number}", odd) for number, one in enumerate(each)]
        is_one = each is not images and named[0].is_one
        skipped = [one for some in named for one in some.skipped]
        pictures = [one for some in named for one in some.pictures]
        answers: list[Prediction] = []
        if pictures and (skip_unreadable or not skipped):
            temperature = 1.0 if isinstance(self.calibration, str) else self.calibration.temperature
            for one in predict_pictures(self._trained, pictures, temperature=temperature, top=top, odd_images=odd):
                (skipped if isinstance(one, Skipped) else answers).append(one)  # type: ignore[arg-type]
        if skipped and (is_one or not skip_unreadable):
            raise _unreadable(skipped, is_one)
        return answers[0] if is_one else answers

    def report(self, out: str | Path = "report.html") -> Path:
        """Write a page about its run.

        Args:
            out: the file to write.

        Returns:
            The file that was written.

        Raises:
            RunError: an exported folder has no run, or the file is not an earlier page.
        """
        from steppe.report import write_report

        if self.run is None:
            fix = "open the run folder it was exported from"
            raise RunError("an exported folder does not say how it was trained", where=str(self.folder), fix=fix)
        return write_report([self.run], out)


class Found:
    """What `steppe.fit` found."""

    def __init__(self, fitted: Fitted, data_root: str | Path | None = None, device: str | None = None) -> None:
        """Keep the outcome of a search.

        Args:
            fitted: the outcome.
            data_root: where named data sets live.
            device: where the best network is opened.
        """
        self.fitted, self._data_root, self._device = fitted, data_root, device

    def __repr__(self) -> str:
        """Show the answer."""
        return f"<Found in {str(self.folder)!r}: {self.answer}>"

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.fitted.folder

    @property
    def answer(self) -> str:
        """Which classifier is the best, and why, in a sentence."""
        return self.fitted.answer

    @cached_property
    def best(self) -> Classifier:
        """The best classifier, open for use."""
        return load(self.fitted.best, device=self._device, data_root=self._data_root)

    def predict(self, images: OneOrMany | list[Any] | tuple[Any, ...], **options: Any) -> Any:
        """Say what is on images; see `Classifier.predict`."""
        return self.best.predict(images, **options)


def _read_run(
    source: str | Path | RunConfig | None, settings: Mapping[str, Any], recipe: str | Path | None
) -> RunConfig:
    """Lay settings over a configuration, a recipe, a TOML file, or the name of some data."""
    plain = {key: str(value) if isinstance(value, PurePath) else value for key, value in settings.items()}
    overrides = nest_arguments(plain)
    if not isinstance(source, RunConfig):
        return read_source(source, overrides, where=_ARGUMENTS, recipe=recipe)
    if recipe is not None:
        raise ConfigError("a recipe and a RunConfig are given", where=_ARGUMENTS, fix="give one of them")
    if not overrides:
        return source
    values = source.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return parse(RunConfig, merge(values, overrides), where=_ARGUMENTS)


def _unreadable(skipped: Sequence[Skipped], is_one: bool) -> DataError:
    others = f", nor can {len(skipped) - 1} others" if len(skipped) > 1 else ""
    what = f"the image cannot be classified: {skipped[0].reason}{others}"
    fix = "give a path, a PIL image or an array of uint8" if is_one else "leave it out, or say skip_unreadable=True"
    return DataError(what, where=skipped[0].name, fix=fix)
