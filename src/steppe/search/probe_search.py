"""The pretrained part of a search: linear heads on frozen features, the quickest first, then better ones.

Every candidate is one network, or several side by side, at one image size. The first one is chosen to stand after less
than a minute. Then the next is always the one that promises the most accuracy for each second, as far as its features,
its head and its test still fit into the budget. All are judged by cross-validation on the same images, and learn from
all images that are not the test's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from steppe import models
from steppe.config import PRETRAINED, ModelConfig, Pretrained, RunConfig, parse
from steppe.cost import wait_for
from steppe.data import Dataset
from steppe.errors import ConfigError
from steppe.models.side_by_side import SEPARATOR
from steppe.train.feature_cache import Extractor, make_extractors, pays_in_bfloat16

IMAGE_SIZES = (96, 128, 160, 192, 224, 256, 288)
LEAST_SIZE = 24
"""Images of fewer pixels a side are learned from scratch."""
FIRST_S = 45.0
"""The first classifier should stand when so many seconds have passed."""
FIRST_SHARE = 0.45
"""It may take no more than this share of the budget."""
TIMED_SIZE = 160
"""Image size at which networks are timed; other sizes follow from the number of pixels."""
SOLVE_S = 6.0
"""What cross-validation and the final head take before one has been timed, about."""
LEAST_GAIN = 1e-3
"""A candidate that promises less accuracy than this is not worth its time."""
SIZE_EXPONENT, SECOND_FACTOR, LATER_FACTOR = 0.4, 0.9, 0.95
"""How errors fall, as seen on Pets: with the image size, a second network beside the first, one more."""
SMALLER_EXPONENT = 0.9
"""How errors grow towards smaller images: 11.9 % at 224 px are 15.7, 19.6 and 25.7 % at 160, 128 and 96 px."""
MOST_PARTS = 4
"""Networks side by side, at the most."""


@dataclass(frozen=True)
class Candidate:
    """Pretrained networks side by side, by their names in the table, and the image size they see."""

    parts: tuple[str, ...]
    image_size: int

    @property
    def words(self) -> str:
        """The candidate as a person would say it."""
        return f"{' + '.join(self.parts)}, {self.image_size} px"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"parts": list(self.parts), "image_size": self.image_size}


@dataclass(frozen=True)
class Found:
    """A candidate whose head has been solved.

    Args:
        candidate: what it is.
        run: the id of its run.
        accuracy: on images left out, by cross-validation.
        loss: likewise.
        error: the standard error of the accuracy.
        solve_s: what the head took.
    """

    candidate: Candidate
    run: str
    accuracy: float
    loss: float
    error: float
    solve_s: float

    @property
    def words(self) -> str:
        """Accuracy first, then the network."""
        return f"{self.accuracy:.1%} ± {self.error:.1%} (frozen {self.candidate.words})".replace("%", " %")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self.candidate.to_json(), **{k: v for k, v in vars(self).items() if k != "candidate"}}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Found:
        """Make one of what `to_json` gave."""
        own = {k: v for k, v in values.items() if k not in ("parts", "image_size")}
        return Found(Candidate(tuple(values["parts"]), int(values["image_size"])), **own)


@dataclass(frozen=True)
class Rate:
    """What a network takes for an image of `TIMED_SIZE`, in seconds: for features, and in the final test."""

    features_s: float
    test_s: float


def suits_pretrained(dataset: Dataset) -> bool:
    """Whether pretrained networks are worth trying: colour photographs of a sensible size."""
    pictures = not dataset.train.store.dtype.is_floating_point  # type: ignore[union-attr]
    return pictures and dataset.channels == 3 and dataset.train.shape[-1] >= LEAST_SIZE


def time_networks(
    backbones: Sequence[Pretrained], dataset: Dataset, device: torch.device, *, say: Callable[[str], None]
) -> dict[str, Rate]:
    """Time one small batch through each network; those that cannot be loaded are left out, and said.

    Args:
        backbones: with weights at hand.
        dataset: whose channels and classes count.
        device: where to compute.
        say: told what is left out, and why.
    """
    found = {}
    count = 64 if device.type == "cuda" else 10
    images = torch.randn(count, dataset.channels, TIMED_SIZE, TIMED_SIZE)
    images = images.to(device, memory_format=torch.channels_last)
    for one in backbones:
        try:
            config = parse(RunConfig, _values(one.model, one.source, device), where="the search")
            model = models.build(
                config.model, image_size=TIMED_SIZE, channels=dataset.channels, classes=len(dataset.classes)
            )
            (extractor,) = make_extractors(model, config, device, dataset.channels, TIMED_SIZE)
            tested = models.place(models.fold_batchnorm(model.eval(), images.cpu()[:2]), device, TIMED_SIZE)
            found[one.name] = Rate(_time(extractor, images, device), _time(tested, images, device))
        except ConfigError as error:
            say(f"{one.name} is left out: {error.what}")
    return found


@torch.no_grad()
def _time(network: Callable[[torch.Tensor], Any] | Extractor, images: torch.Tensor, device: torch.device) -> float:
    quickest = math.inf
    for attempt in range(4):
        began = time.perf_counter()
        network(images)
        wait_for(device)
        if attempt:  # the first one prepares the kernels
            quickest = min(quickest, time.perf_counter() - began)
    return quickest / len(images)


def _values(model: str, weights: str, device: torch.device) -> dict[str, Any]:
    precision = "bfloat16" if pays_in_bfloat16(device) else "float32"
    return {"precision": precision, "model": {"name": model, "weights": weights, "mode": "probe"}}


class ProbeSearch:
    """Which candidate is next; what has been found is kept in `about`, and makes the next choice alone."""

    def __init__(
        self,
        backbones: Sequence[Pretrained],
        rates: dict[str, Rate],
        dataset: Dataset,
        about: dict[str, Any],
        image_size: int | None = None,
        *,
        timed: bool = True,
    ) -> None:
        """Go on from what was found before.

        Args:
            backbones: pretrained networks that can be used here, the best first.
            rates: what each takes.
            dataset: the images.
            about: of the search's folder; `probes` in it holds what was found.
            image_size: the only one to try, where the user gave one.
            timed: if not, every candidate costs the same: what was measured by a clock decides nothing.
        """
        self.timed = timed
        self.backbones = {one.name: one for one in backbones if one.name in rates}
        self.rates, self.dataset, self.about = rates, dataset, about
        self.sizes = (image_size,) if image_size else IMAGE_SIZES

    @property
    def found(self) -> list[Found]:
        """Candidates with a head, in the order in which they were made."""
        return [Found.from_json(values) for values in self.about.get("probes", [])]

    @property
    def singles(self) -> list[Candidate]:
        """Every network whose probe by itself is known, at every size."""
        known = [one.candidate for one in self.found if len(one.candidate.parts) == 1]
        sizes = {*self.sizes, *(one.image_size for one in known)}
        return [Candidate(parts, size) for parts in dict.fromkeys(one.parts for one in known) for size in sorted(sizes)]

    @property
    def failed(self) -> list[Candidate]:
        """Candidates that cannot be made, here: they are not tried again."""
        return [Candidate(tuple(one["parts"]), one["image_size"]) for one in self.about.get("failed", [])]

    @property
    def best(self) -> Found | None:
        """The candidate with the best accuracy on images left out; among equals, with the smaller loss."""
        return max(self.found, key=lambda one: (one.accuracy, -one.loss), default=None)

    def keep(self, found: Found) -> None:
        """Add what was found."""
        self.about.setdefault("probes", []).append(found.to_json())

    def next(self, spent_s: float, budget_s: float) -> Candidate | None:
        """Choose the candidate to try next; None where none is worth its time or fits into it.

        Args:
            spent_s: seconds so far.
            budget_s: until when the last candidate must have been tested.
        """
        best = self.best
        if best is None:
            return self._first(spent_s, budget_s)
        options = [
            (self._promise(candidate, best) / cost, candidate)
            for candidate in self._neighbours()
            if self._promise(candidate, best) >= LEAST_GAIN
            and (cost := self.cost_s(candidate)) > 0
            and spent_s + cost + self.test_s(candidate) <= budget_s
        ]
        return max(options, key=lambda one: one[0])[1] if options else None

    def _first(self, spent_s: float, budget_s: float) -> Candidate | None:
        """The best by what is published among those that are quick enough; else the quickest."""
        every = [Candidate((name,), size) for name in self.backbones for size in self.sizes]
        until = min(FIRST_S, FIRST_SHARE * budget_s)
        quick = [one for one in every if spent_s + self.cost_s(one) <= until]
        if quick:
            return min(quick, key=self._published_error)
        fitting = [one for one in every if spent_s + self.cost_s(one) <= budget_s]
        return min(fitting, key=self.cost_s, default=None)

    def _neighbours(self) -> list[Candidate]:
        """Candidates that have not been tried: every network, and several side by side, at every size."""
        tried = {one.candidate for one in self.found} | set(self.failed)
        names = list(self.backbones)
        together = [parts for count in range(1, MOST_PARTS + 1) for parts in combinations(names, count)]
        every = [Candidate(parts, size) for parts in together for size in self.sizes]
        return [one for one in every if one not in tried]

    def _promise(self, candidate: Candidate, best: Found) -> float:
        """How much accuracy a candidate may add to the best one, by what others of its networks and size reached."""
        return (1 - best.accuracy) - self.expect_error(candidate)

    def expect_error(self, candidate: Candidate) -> float:
        """Expect the error from the known candidate that has most of these networks, at the nearest size."""
        size, parts = candidate.image_size, set(candidate.parts)
        known = [one for one in self.found if set(one.candidate.parts) <= parts]
        if not known:
            return self._error_by_publication(candidate)
        near = max(known, key=lambda one: (len(one.candidate.parts), -abs(math.log(one.candidate.image_size / size))))
        exponent = SMALLER_EXPONENT if size < near.candidate.image_size else SIZE_EXPONENT
        error = (1 - near.accuracy) * (near.candidate.image_size / size) ** exponent
        for count in range(len(near.candidate.parts), len(parts)):
            error *= SECOND_FACTOR if count == 1 else LATER_FACTOR
        return error

    def _error_by_publication(self, candidate: Candidate) -> float:
        """Expect the error of networks of which none has been tried, from published errors and the best single one."""
        best = min((one for one in self.found if len(one.candidate.parts) == 1), key=lambda one: one.loss)
        errors = [self._published_error(Candidate((part,), candidate.image_size)) for part in candidate.parts]
        error = (1 - best.accuracy) * min(errors) / self._published_error(best.candidate)
        return error * (SECOND_FACTOR if len(errors) > 1 else 1.0)

    def _published_error(self, candidate: Candidate) -> float:
        """The published error at the published size, brought to this size; smaller is better."""
        known = self.backbones[candidate.parts[0]]
        error = 1 - (known.top1 or 60.0) / 100
        size = min(candidate.image_size, 1.15 * known.image_size)
        return error * (known.image_size / size) ** SIZE_EXPONENT * (1.0 if known.good_features else 3.0)

    def cost_s(self, candidate: Candidate) -> float:
        """Seconds for the features that are not known yet, and for the head; 1 where no clock decides."""
        if not self.timed:
            return 1.0
        images = len(self.dataset.train) + len(self.dataset.val)
        size = candidate.image_size
        computed = {part for one in self.found if one.candidate.image_size == size for part in one.candidate.parts}
        new = [part for part in candidate.parts if part not in computed]
        area = (candidate.image_size / TIMED_SIZE) ** 2
        features_s = sum(self.rates[part].features_s for part in new) * area * images
        solve_s = max((one.solve_s / len(one.candidate.parts) for one in self.found), default=SOLVE_S)
        return 1.1 * features_s + 1.3 * solve_s * len(candidate.parts) + 1.0

    def test_s(self, candidate: Candidate) -> float:
        """Seconds for the test images."""
        area = (candidate.image_size / TIMED_SIZE) ** 2
        return 1.15 * sum(self.rates[part].test_s for part in candidate.parts) * area * len(self.dataset.test)

    def config(self, candidate: Candidate, data: dict[str, Any], seed: int, device: torch.device) -> RunConfig:
        """Make the configuration of a candidate's run.

        Args:
            candidate: what is tried.
            data: the section of the images.
            seed: of the run.
            device: whose precision pays.
        """
        parts = [self.backbones[part] for part in candidate.parts]
        values = _values(SEPARATOR.join(p.model for p in parts), SEPARATOR.join(p.source for p in parts), device)
        data = {**data, "image_size": candidate.image_size, "learn_from_val": True}
        return parse(RunConfig, {**values, "seed": seed, "data": data}, where="the search")


def describe_model(config: ModelConfig) -> str:
    """Return the names of a run's pretrained networks, or of its model."""
    if config.mode != "probe":
        return config.name
    return " + ".join(map(_short_source, (config.weights or config.name).split(SEPARATOR)))


def _short_source(source: str) -> str:
    """A name as it is; of a file what tells it from others."""
    path = Path(source)
    if source in PRETRAINED or path.suffix not in (".safetensors", ".pth", ".pt", ".bin"):
        return source
    return path.parent.name if path.stem in ("model", "weights") else path.stem
