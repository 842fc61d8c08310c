"""What a measure is: a function of a model, a data set and settings that gives numbers and leaves the model alone.

`evaluate.measures` and `geometry.measures` each hold a table of `Measure`s by name. Whoever runs them (a command, a
study) stores what they give with its settings beside it, so that a figure can be told from one made otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.config import derive_seed
from steppe.data import Dataset, Split, in_order
from steppe.errors import ConfigError, MeasureError, SteppeError, unknown_name

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) -> the loss of each example."""

Batches = list[tuple[Tensor, Tensor]]

T = TypeVar("T")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, labels, reduction="none")


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
    loss: Loss = cross_entropy
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
        known = {"trained": self.loss, "cross_entropy": cross_entropy}
        if self["loss"] not in known:
            mend = f"choose one of: {', '.join(known)}"
            raise ConfigError(f"loss cannot be {self['loss']!r}", where="--set", mend=mend)
        return known[self["loss"]]

    def chosen_weights(self, model: nn.Module) -> nn.Module:
        """The model with the weights that `settings["weights"]` asks for: "trained" or "initial"."""
        if self["weights"] not in ("trained", "initial"):
            raise ConfigError(f"weights cannot be {self['weights']!r}", where="--set", mend="trained or initial")
        if self["weights"] == "trained":
            return model
        if self.fresh is None:
            raise MeasureError("only a run knows the weights it began with")
        return self.fresh()

    def batches(self, split: Split, dataset: Dataset, examples: int, batch_size: int | None = None) -> Batches:
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
        key: where the result goes in the JSON file, if not under the measure's own name.
        by_default: whether it is made when nothing in particular is asked for.
    """

    function: Function
    about: str
    defaults: dict[str, Any]
    quick: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    by_default: bool = True


def choose(table: Mapping[str, Measure], only: str | None) -> dict[str, Measure]:
    """The measures that `--only a,b` names; those made by default where it is not given."""
    if only is None:
        return {name: measure for name, measure in table.items() if measure.by_default}
    names = [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise ConfigError("no measure is named", where="--only", mend=f"choose from: {', '.join(table)}")
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
        found.setdefault(name, {})[key] = _read_like(table[name].defaults[key], text.strip(), change)
    return found


def _read_like(default: Any, text: str, change: str) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int):
            number = int(text)
            if number < 0:
                raise ValueError
            return number
        if isinstance(default, float):
            value = float(text)
            if not math.isfinite(value) or value < 0:
                raise ValueError
            return value
    except (ValueError, KeyError):
        kind = {bool: "true or false", int: "a whole number, not negative", float: "a number, not negative"}
        raise ConfigError(f"{text!r} is not {kind[type(default)]}", where=f"--set {change}") from None
    return text


def sample(total: int, count: int) -> Tensor:
    """Pick the same `count` images of a split for every run."""
    generator = torch.Generator().manual_seed(derive_seed(0, "measure"))
    return torch.randperm(total, generator=generator)[:count]


@contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Measure in evaluation mode and leave a model as it was: weights, statistics, modes and random state.

    Gradients that a model holds stay as well, as long as nothing calls `backward` on it.
    """
    modes = [(module, module.training) for module in model.modules()]
    copies = [(tensor, tensor.detach().clone()) for tensor in [*model.parameters(), *model.buffers()]]
    cuda = next((tensor.device for tensor, _ in copies if tensor.device.type == "cuda"), None)
    states = torch.get_rng_state(), torch.cuda.get_rng_state(cuda) if cuda else None
    model.eval()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)
        for module, training in modes:
            module.training = training
        torch.set_rng_state(states[0])
        if cuda is not None and states[1] is not None:
            torch.cuda.set_rng_state(states[1], cuda)


def in_smaller_chunks(work: Callable[[int], T], batch_size: int, say: Callable[[str], None] = ignore) -> T:
    """Call work(batch_size); where memory runs out, again with half as many images at a time, down to one.

    Raises:
        SteppeError: one image alone does not fit.
    """
    while True:
        try:
            return work(batch_size)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if batch_size == 1:
            mend = "use another device (--device cpu), or a smaller image_size"
            raise SteppeError("the memory does not hold one image at a time", mend=mend)
        batch_size = max(1, batch_size // 2)
        say(f"memory ran out: going on with {batch_size} images at a time, which is the same figure")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is memory running out, on any device."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in text


def check_finite(model: nn.Module, where: str) -> None:
    """Refuse a model whose weights or statistics are not numbers: no measure of it means anything."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            mend = "train it again, with a smaller learning rate if it diverged"
            raise MeasureError(f"the weights hold NaN or infinity, in {name!r}", where=where, mend=mend)


def finite(value: float | Tensor) -> float | None:
    """A number that JSON can hold; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None
