"""What the rivals share: their arguments and clock, timm's networks with the weights steppe has, and the report.

A rival's clock begins with its process, and ends when its classifier stands; testing it is not counted. It takes the
first network and size of `--choices` that its budget suffices for, by a short timing on this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torchvision.transforms import v2

TIMED_AT = 160
"""Networks are timed at this side; the time at another goes with the area."""
MOST_EPOCHS = 50
"""Of fine-tuning; more of them change little."""


class Task:
    """What a rival is given, and its clock."""

    def __init__(self, about: str | None) -> None:
        """Read the command line.

        Args:
            about: the script's docstring.
        """
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("data", type=Path, help="folder with train/ and test/, or an .npz")
        parser.add_argument("--budget", type=float, required=True, help="seconds")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--began", type=float, default=time.time(), help="time.time() when the process was started")
        parser.add_argument("--weights", type=Path, help="folder of NAME.safetensors and NAME.json")
        parser.add_argument("--choices", nargs="*", default=[], help="NETWORK:SIZE, best first, cheapest last")
        given = parser.parse_args()
        self.data, self.budget, self.seed, self.began = given.data, given.budget, given.seed, given.began
        self.weights = given.weights
        self.choices = [(name, int(size)) for name, size in (choice.split(":") for choice in given.choices)]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.workers = min(8, torch.get_num_threads())
        torch.manual_seed(self.seed)

    @property
    def spent_s(self) -> float:
        """Seconds since the process was started."""
        return time.time() - self.began

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, less a twentieth of it for safety."""
        return 0.95 * self.budget - self.spent_s

    def about(self, name: str) -> dict[str, Any]:
        """What a network's weights need."""
        return json.loads((self.weights / f"{name}.json").read_text())

    def build(self, name: str, classes: int) -> torch.nn.Module:
        """Build timm's network with these weights and a fresh head.

        Args:
            name: of the weights.
            classes: outputs of the head; 0 for features.
        """
        about = self.about(name)
        network = timm.create_model(about["architecture"])
        for module, stride in about["strides"].items():
            setattr(network.get_submodule(module), "stride", tuple(stride))  # noqa: B010
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eps = about["batch_norm_eps"]
        network.load_state_dict(load_file(self.weights / f"{name}.safetensors"))
        network.reset_classifier(classes)  # type: ignore[operator]
        return network.to(self.device)

    def transform(self, name: str, size: int, *crops: v2.Transform) -> v2.Compose:
        """From a photograph to a network's input: by default its middle square.

        Args:
            name: of the weights.
            size: side in pixels.
            crops: another way to cut it.
        """
        about = self.about(name)
        cut = crops or (v2.Resize(size), v2.CenterCrop(size))
        scale = v2.ToDtype(torch.float32, scale=True)
        return v2.Compose([*cut, v2.ToImage(), scale, v2.Normalize(about["mean"], about["std"])])

    def choose(self, passes: float, step: Callable[[torch.nn.Module, torch.Tensor], Any]) -> tuple[str, int]:
        """Choose the first network and size that can see so many images in the time left, or the last of all.

        Args:
            passes: how many images it is to see.
            step: what it does with a batch of them.
        """
        batch = 64 if self.device.type == "cuda" else 8
        taken: dict[str, float] = {}
        for name, size in self.choices:
            if name not in taken:
                network = self.build(name, 10)
                images = torch.zeros(batch, 3, TIMED_AT, TIMED_AT, device=self.device)
                for _ in range(2):
                    began = time.perf_counter()
                    step(network, images)
                    if self.device.type == "cuda":
                        torch.cuda.synchronize()
                    taken[name] = (time.perf_counter() - began) / batch
            if passes * taken[name] * (size / TIMED_AT) ** 2 < self.left_s:
                return name, size
        return self.choices[-1]

    def report(self, accuracy: float, tested: int, seconds: float, first_s: float, how: str) -> None:
        """Print what the benchmark reads.

        Args:
            accuracy: on the test images.
            tested: how many these are.
            seconds: until the classifier stood.
            first_s: until the first usable one did.
            how: network, size and epochs.
        """
        found = {"accuracy": round(accuracy, 5), "tested": tested, "how": how}
        print(json.dumps({**found, "seconds": round(seconds, 1), "first_s": round(first_s, 1)}), flush=True)


def cosine(progress: float) -> float:
    """The share of the peak learning rate at a share of the training: a short warm-up, then a cosine down to zero."""
    return min(progress / 0.05, 1.0) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
