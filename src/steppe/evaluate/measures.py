"""The table of `steppe evaluate`: name -> measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from steppe.data import CORRUPTIONS, VARIANTS, Dataset, in_order, load_variant
from steppe.errors import DataError, MeasureError
from steppe.evaluate.accuracy import measure_batches
from steppe.evaluate.attacks import EPSILON, STEP, STEPS, measure_attacks
from steppe.evaluate.augmented import VIEWS, Augmented
from steppe.evaluate.scores import BINS, predict, score
from steppe.evaluate.shifts import measure_corruptions, measure_variant
from steppe.measuring import Measure, Range, Settings, Text, in_smaller_chunks, sample

Batch = tuple[Tensor, Tensor]


def _scores(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    def work(size: int) -> dict[str, Any]:
        batches = in_order(dataset.test, dataset, batch_size=size, device=settings.device)
        return score(*predict(model, _counted(batches, settings, len(dataset.test))), bins=settings["bins"])

    return in_smaller_chunks(work, settings.batch_size, settings.say)


def _augmented(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    def work(size: int) -> dict[str, Any]:
        found = {}
        for name, network in (("plain", model), ("augmented", Augmented(model, settings["views"]))):
            batches = in_order(dataset.test, dataset, batch_size=size, device=settings.device)
            found[name] = measure_batches(network, _counted(batches, settings, len(dataset.test)))["accuracy"]
        return {**found, "examples": len(dataset.test)}

    return in_smaller_chunks(work, settings.batch_size, settings.say)


def _counted(batches: Iterable[Batch], settings: Settings, total: int) -> Iterator[Batch]:
    """Pass batches on and tell how many images have gone through."""
    done = 0
    for images, labels in batches:
        yield images, labels
        done += len(labels)
        settings.tell(done, total)


def _corruptions(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    names = [name.strip() for name in settings["names"].split(",")] if settings["names"] != "all" else CORRUPTIONS
    known: dict[str, Any] = settings.known if isinstance(settings.known, dict) else {}

    def keep(rows: dict[str, Any]) -> None:
        known.update(rows)
        settings.keep(rows)

    def work(size: int) -> dict[str, Any]:
        return measure_corruptions(
            model,
            dataset,
            device=settings.device,
            batch_size=size,
            examples=settings["examples"] or None,
            names=names,
            root=settings.root,
            known=known,
            keep=keep,
            tell=settings.tell,
        )

    return in_smaller_chunks(work, settings.batch_size, settings.say)


def _attacks(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    examples = settings["examples"] or len(dataset.test)
    split = dataset.test.take(sample(len(dataset.test), examples))

    def work(size: int) -> dict[str, Any]:
        found = measure_attacks(
            model,
            in_order(split, dataset, batch_size=size, device=settings.device),
            dataset,
            device=settings.device,
            epsilon=settings["epsilon"],
            step=settings["step"],
            steps=settings["steps"],
            restarts=settings["restarts"],
            check=settings["check"],
            surrogate=settings.other,
            tell=lambda done: settings.tell(done, len(split)),
        )
        if found["check"] and found["check"]["warning"]:
            settings.say(found["check"]["warning"])
        return found

    return in_smaller_chunks(work, settings.batch_size, settings.say)


def _variants(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    if dataset.name != "imagenet" or settings.root is None:
        what = "ImageNet V2, R and ReaL are for networks trained on ImageNet"
        raise MeasureError(what, where=dataset.name, fix="measure a model of --data imagenet")
    found: dict[str, Any] = {}
    for name in VARIANTS:
        try:
            variant = load_variant(name, dataset, settings.root)
        except DataError as error:
            settings.say(f"passed over {name}: {error.what} ({error.fix})")
            continue
        found[name] = in_smaller_chunks(
            lambda size, variant=variant: measure_variant(  # type: ignore[misc]
                model, variant, dataset, device=settings.device, batch_size=size
            ),
            settings.batch_size,
            settings.say,
        )
    if not found:
        raise MeasureError("none of ImageNet V2, R and ReaL is there", where=str(settings.root))
    return found


MEASURES: dict[str, Measure] = {
    "scores": Measure(
        _scores,
        "top-1, top-5, per class, calibration, confusion, on the test set",
        {"bins": BINS},
        allowed={"bins": Range(1)},
    ),
    "tta": Measure(
        _augmented,
        "accuracy with test-time augmentation beside the plain one: flip, or flip and shifts by one pixel",
        {"views": "flip_translate"},
        allowed={"views": tuple(VIEWS)},
        by_default=False,
    ),
    "corruptions": Measure(
        _corruptions,
        "accuracy under 19 corruptions × 5 severities; examples 0 is the whole test set",
        {"names": "all", "examples": 0},
        quick={"examples": 256},
        allowed={"names": Text("all, or names such as gaussian_noise,fog")},
    ),
    "attacks": Measure(
        _attacks,
        "accuracy under FGSM and PGD in ℓ∞, and whether gradients are masked; examples 0 is the whole test set",
        {"epsilon": EPSILON, "step": STEP, "steps": STEPS, "restarts": 1, "examples": 0, "check": 256},
        quick={"examples": 256, "check": 64},
        allowed={
            "epsilon": Range(0, 1, above=True),
            "step": Range(0, 1, above=True),
            "steps": Range(1),
            "restarts": Range(1),
        },
    ),
    "variants": Measure(_variants, "ImageNet V2, R and ReaL, where the data root has them", {}),
}
"""What is measured on the test set, by name."""
