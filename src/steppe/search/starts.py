"""Where a search begins: a table of settings that have proved themselves, each with its source.

`steppe fit` tries these before it asks Optuna. A source is a folder of `results/`, a page with measured figures, a
study of ours, or a paper's published setting. In short runs the plain optimizer leads (dev/experiments.md), so it
comes first; then the second gradient, as it did best at equal seconds on images that are learned by heart
(studies/relatives): ASAM for convolutions, SAM in the last quarter of the budget for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONVOLUTION, PERCEPTRON, OTHER = "convolution", "perceptron", "other"
_KINDS = {"resnet": CONVOLUTION, "wrn": CONVOLUTION, "mlp": PERCEPTRON}


@dataclass(frozen=True)
class Start:
    """One line of the table.

    Args:
        kind: of the architecture: convolution, perceptron, or other (ViT, Swin, Mixer, hybrids).
        optimizer: the base optimizer.
        lr: its peak learning rate.
        weight_decay: of the base optimizer.
        warmup: share of the budget.
        source: where these numbers come from.
        method: the minimizer, as the search names it.
        rho: of the minimizer.
        every: for every family of the kind; False: for the first alone.
    """

    kind: str
    optimizer: str
    lr: float
    weight_decay: float
    warmup: float
    source: str
    method: str = "base"
    rho: float | None = None
    every: bool = True


STARTS: tuple[Start, ...] = (
    Start(
        *(CONVOLUTION, "sgd", 0.1, 5e-4, 0.1),
        source="results/resnet18: 95.2 % on CIFAR-10, 78.7 % on CIFAR-100; the warm-up is that of studies/sharp-minima",
    ),
    Start(
        *(CONVOLUTION, "adamw", 2e-3, 0.05, 0.1),
        source="studies/quickstart: 97.8 ± 0.7 % on digits, 98.8 ± 0.6 % with twice the epochs",
        every=False,
    ),
    Start(
        *(OTHER, "adamw", 1e-3, 0.05, 0.05),
        source="dev/experiments.md: 95.5 to 97.5 % on digits; Swin's published setting (arXiv:2103.14030)",
    ),
    Start(
        *(PERCEPTRON, "adamw", 1e-2, 1e-3, 0.0),
        source="results/rescaling: 95.9 ± 0.4 % on digits, with Adam and no decay",
    ),
    Start(
        *(CONVOLUTION, "sgd", 0.1, 5e-4, 0.1),
        source="results/relatives-laptop: 42.0 against SGD's 40.1 % in the same seconds, images learned by heart",
        method="asam",
        rho=1.0,
        every=False,
    ),
    Start(
        *(OTHER, "adamw", 1e-3, 0.05, 0.05),
        source="results/relatives-laptop: 32.5 against AdamW's 32.3 % in the same seconds (undecided), the nearest",
        method="sam_late",
        rho=0.1,
        every=False,
    ),
)
"""In the order in which they are tried."""


def kind_of(model: str) -> str:
    """The kind of a model by its name: resnet18, wrn_16_4 and the like are convolutions."""
    return _KINDS.get(family_of(model), OTHER)


def family_of(model: str) -> str:
    """The first part of a model's name, without numbers."""
    return model.split("_")[0].rstrip("0123456789")


def starts_for(models: Sequence[str]) -> list[tuple[str, Start]]:
    """Return the lines of the table that suit these models, each with the first model of every family it is for.

    Args:
        models: names, the first choice of a family before its others.
    """
    first: dict[str, str] = {}
    for name in models:
        first.setdefault(family_of(name), name)
    out = []
    for start in STARTS:
        suited = [name for name in first.values() if kind_of(name) == start.kind]
        out += [(name, start) for name in (suited if start.every else suited[:1])]
    return out
