"""Rival: scikit-learn's logistic regression on the frozen features of a pretrained network, as anyone writes it."""

from __future__ import annotations

import numpy as np
import torch
from common import Task
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


@torch.inference_mode()
def forward(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network.eval()(images)


def main() -> None:
    task = Task(__doc__)
    count = len(ImageFolder(task.data / "train"))
    name, size = task.choose(1.3 * count, forward)  # of the time left, three tenths are for solving
    network = task.build(name, 0)

    def features(split: str) -> tuple[np.ndarray, np.ndarray]:
        images = ImageFolder(task.data / split, task.transform(name, size))
        loader = DataLoader(images, batch_size=64, num_workers=task.workers)
        found = [(forward(network, x.to(task.device)).cpu(), y) for x, y in loader]
        return torch.cat([x for x, _ in found]).numpy(), torch.cat([y for _, y in found]).numpy()

    head = LogisticRegression(max_iter=1000).fit(*features("train"))
    seconds = task.spent_s
    x, y = features("test")
    task.report(float(head.score(x, y)), len(y), seconds, seconds, f"{name} at {size} px")


if __name__ == "__main__":
    main()
