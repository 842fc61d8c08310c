"""How alike the bends of two batches are: what LookSAM takes from one batch and adds to the gradients of the next ones.

    steppe train --data cifar10 --fraction 0.2 --model resnet_tiny --optimizer sgd --epochs 3 --out /tmp/run
    python benchmarks/bends.py /tmp/run --out /tmp/bends.csv

The bend of a batch is the part of g(w + ε) that is orthogonal to g(w), ε = ρ g / ‖g‖. For each size of batch: the mean
cosine of the bends of two disjoint batches of the run's training images, that of their gradients, and how long a bend
is beside its gradient. BatchNorm is in training mode, as it is while LookSAM trains; dropout and stochastic depth would
be too, and their masks would count as bends, so a run that has them is refused.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

import torch
from rows import provenance, save
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from steppe.data import in_order
from steppe.runs import Run
from steppe.studies.subjects import open_run


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the batch's loss, as one vector."""
    loss = cross_entropy(model(images), labels)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def bend(model: nn.Module, images: Tensor, labels: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """The gradient at the weights, and the bend."""
    weights = parameters_to_vector(model.parameters()).detach().clone()
    plain = gradient(model, images, labels)
    vector_to_parameters(weights + rho * plain / plain.norm(), model.parameters())
    sharp = gradient(model, images, labels)
    vector_to_parameters(weights, model.parameters())
    return plain, sharp - (plain @ sharp) / (plain @ plain) * plain


def compare(found: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Mean cosines over all pairs of batches, and the bends' mean length in gradients."""
    pairs = list(itertools.combinations(found, 2))
    gradients, bends = (
        statistics.mean(float(cosine_similarity(one[place], other[place], dim=0)) for one, other in pairs)
        for place in (0, 1)
    )
    lengths = statistics.mean(float(bent.norm() / plain.norm()) for plain, bent in found)
    return {"cosine_of_bends": round(bends, 4), "cosine_of_gradients": round(gradients, 4), "bend": round(lengths, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rho", type=float, default=0.1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--batches", type=int, default=8, help="of each size, at the most")
    asked = parser.parse_args()
    subject = open_run(asked.run)
    config = Run(asked.run).config.model
    if config.mode or config.dropout or config.block_dropout or config.drop_path:
        parser.error("this run has dropout, stochastic depth or frozen parts: take one without")
    model = subject.model.train()
    rows: list[dict[str, Any]] = []
    for size in asked.sizes:
        batches = in_order(subject.dataset.train, subject.dataset, batch_size=size, device=subject.device)
        whole = (batch for batch in batches if len(batch[1]) == size)
        found = [bend(model, *batch, asked.rho) for batch in itertools.islice(whole, asked.batches)]
        if len(found) < 2:
            continue
        rows.append({"run": asked.run.name, "batch": size, "batches": len(found), "rho": asked.rho, **compare(found)})
        rows[-1] |= provenance(subject.device.type)
        save(rows, asked.out)
        print(rows[-1])


if __name__ == "__main__":
    main()
