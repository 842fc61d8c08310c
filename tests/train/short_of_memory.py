"""A training step on a CPU whose process may not have the memory for the whole batch: prints losses and messages.

Run as a program: the limit holds for a whole process, and for good.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from training import make_config

from steppe import data
from steppe.config import DataConfig
from steppe.data import Loader
from steppe.train import build_minimizer
from steppe.train.objectives import make_objective
from steppe.train.steps import EagerStep

COPIES = 2**12
"""Of an image of 64 numbers; an example then takes 1 MiB, and a batch of 64 takes 64."""


class Wide(nn.Module):
    """A linear classifier with a detour through many copies of its image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(64)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        copies = x.flatten(1)[:, None].expand(-1, COPIES, -1) * self.scale
        return self.out(copies.tanh().mean(1))


def main(room_mib: int) -> None:
    """Make two steps with so much more memory than there was before the first; 0: as much as there is."""
    torch.manual_seed(0)
    digits = data.load(DataConfig())
    config = make_config(batch_size=64, minimizer={"name": "sam"}, augment={"crop_padding": 0, "flip": False})
    loader = Loader(digits, batch_size=64, augment=config.augment, seed=0, device=torch.device("cpu"))
    model, said = Wide(), []
    objective = make_objective(config, loader, digits)
    step = EagerStep(model, build_minimizer(config, model), objective, config, said.append)
    if room_mib:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room_mib * 2**20,) * 2)
    losses = [float(step(*objective.batch(0, number))[0]) for number in range(2)]
    print(json.dumps({"losses": losses, "said": said, "bias": model.out.bias.tolist()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
