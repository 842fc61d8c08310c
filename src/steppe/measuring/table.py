"""What a measure is: a function of a model, a data set and settings that gives numbers and leaves the model alone.

`evaluate.measures` and `geometry.measures` each hold a table of `Measure`s by name. Whoever runs them (a command, a
study) stores what they give with its settings beside it, so that a figure can be told from one made otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from steppe.config import derive_seed
from steppe.data import Dataset, Split, in_order
from steppe.errors import ConfigError, MeasureError, unknown_name
from steppe.measuring.losses import CROSS_ENTROPY, Loss
from steppe.measuring.values import Allowed, allowed_of, read_value

T = TypeVar("T")

LOSSES = ("trained", "cross_entropy")
"""What a measure is taken on: the loss the model was trained with, or cross-entropy."""


def ignore(*_: Any) -> None:
    """Take a report nobody waits for."""


@dataclass
class Settings(Mapping[str, Any]):
    """What a measure is asked: what it goes by, and where and how to work.

    Only what is `asked` changes the result, and only that is stored beside it.
    """

    asked: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int = 512
    loss: Loss = CROSS_ENTROPY
    """The loss the model was trained with; `settings["loss"]` may ask for cross-entropy instead."""
    root: Path | None = None
    """The data root, where published corruptions lie."""
    other: nn.Module | None = None
    """A second model of the same shape, for measures between two."""
    fresh: Callable[[], nn.Module] | None = None
    """Makes the model with the weights it began with."""
    known: Any = None
    """What `keep` was last given, when a measure that was stopped goes on."""
    keep: Callable[[Any], None] = ignore
    """Takes what is found so far, JSON-able."""
    tell: Callable[[int, int], None] = ignore
    """Takes how many parts are done, and of how many."""
    say: Callable[[str], None] = ignore
    """Takes a remark for the user."""

    def __getitem__(self, key: str) -> Any:
        return self.asked[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def chosen_loss(self) -> Loss:
        """The loss that `settings["loss"]` asks for: "trained" or "cross_entropy"."""
        known: dict[str, Loss] = {"trained": self.loss, "cross_entropy": CROSS_ENTROPY}
        return self.pick("loss", known)

    def pick(self, key: str, known: Mapping[str, T]) -> T:
        """What the value of a setting stands for."""
        if self[key] not in known:
            fix = f"choose one of: {', '.join(known)}"
            raise ConfigError(f"{key} cannot be {self[key]!r}", where="--set", fix=fix)
        return known[self[key]]

    def chosen_weights(self, model: nn.Module) -> nn.Module:
        """The model with the weights that `settings["weights"]` asks for: "trained" or "initial"."""
        if not self.pick("weights", {"trained": False, "initial": True}):
            return model
        if self.fresh is None:
            raise MeasureError("only a run knows the weights it began with")
        return self.fresh()

    def batches(
        self, split: Split, dataset: Dataset, examples: int, batch_size: int | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Normalised batches of the same `examples` images for every model, kept on the device."""
        some = split.take(sample(len(split), examples))
        return list(in_order(some, dataset, batch_size=batch_size or self.batch_size, device=self.device))


Function = Callable[[nn.Module, Dataset, Settings], dict[str, Any]]


@dataclass(frozen=True)
class Measure:
    """One entry of a table of measures.

    Args:
        function: measures.
        about: one line about it.
        defaults: its settings.
        quick: what `--quick` changes in them.
        allowed: setting -> its values; a whole number that is not mentioned is 0 or more, a text any.
        key: where the result goes in the JSON file, if not under the measure's own name.
        by_default: whether it is made when nothing in particular is asked for.
        of_training: training makes it of every run, with settings of the run's study: that figure stays, unless this
            measure is asked for by name.
    """

    function: Function
    about: str
    defaults: dict[str, Any]
    quick: dict[str, Any] = field(default_factory=dict)
    allowed: Mapping[str, Allowed] = field(default_factory=dict)
    key: str | None = None
    by_default: bool = True
    of_training: bool = False

    def values_of(self, setting: str) -> Allowed:
        """What a setting may be."""
        return allowed_of(self.defaults[setting], self.allowed.get(setting))


def choose(table: Mapping[str, Measure], only: str | None) -> dict[str, Measure]:
    """The measures that `--only a,b` names; those made by default where it is not given."""
    if only is None:
        return {name: measure for name, measure in table.items() if measure.by_default}
    names = [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise ConfigError("no measure is named", where="--only", fix=f"choose from: {', '.join(table)}")
    for name in names:
        if name not in table:
            raise unknown_name("measure", name, table, where="--only")
    return {name: table[name] for name in table if name in names}


def change_settings(table: Mapping[str, Measure], changes: list[str]) -> dict[str, dict[str, Any]]:
    """Read `--set measure.key=value`s: measure -> key -> value, of the type the default has."""
    found: dict[str, dict[str, Any]] = {}
    for change in changes:
        left, separator, text = change.partition("=")
        name, dot, key = left.strip().partition(".")
        if not separator or not dot:
            raise ConfigError(f"{change!r} is not measure.key=value", where="--set")
        if name not in table:
            raise unknown_name("measure", name, table, where=f"--set {change}")
        if key not in table[name].defaults:
            raise unknown_name(f"setting of {name}", key, table[name].defaults, where=f"--set {change}")
        default, allowed = table[name].defaults[key], table[name].allowed.get(key)
        found.setdefault(name, {})[key] = read_value(text.strip(), default, allowed, f"--set {change}")
    return found


def sample(total: int, count: int) -> Tensor:
    """Pick the same `count` images of a split for every run."""
    generator = torch.Generator().manual_seed(derive_seed(0, "measure"))
    return torch.randperm(total, generator=generator)[:count]
