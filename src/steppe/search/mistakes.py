"""What the tested winner gets wrong: counts by class, and the most confident mistakes with a small picture of each.

The report reads both, so that it needs neither the images nor torch.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from steppe.data import Dataset
from steppe.runs import Answers, Run
from steppe.runs.files import write_atomically

MISTAKES, PICTURES = "mistakes.json", "mistakes.jpg"
MOST_MISTAKES = 10
SIDE = 160
"""Pixels of a picture."""


def write_mistakes(run: Run, dataset: Dataset, said: Answers, confidence: NDArray[np.float32]) -> None:
    """Write `mistakes.json`, and `mistakes.jpg` where the images are pictures: one beside the other.

    Args:
        run: the tested run, whose lock is held.
        dataset: the images it was tested on are the test split.
        said: its answers.
        confidence: the probability of each answer.
    """
    wrong = np.flatnonzero(~said.hits)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:MOST_MISTAKES]
    counts = np.zeros((len(dataset.classes),) * 2, dtype=np.int64)
    np.add.at(counts, (said.labels, said.answers), 1)
    listed = [
        {"label": int(said.labels[i]), "answer": int(said.answers[i]), "confidence": round(float(confidence[i]), 4)}
        for i in worst
    ]
    sparse = [[int(v) for answer in np.flatnonzero(line) for v in (answer, line[answer])] for line in counts]
    run.write("mistakes.json", {"examples": len(said.labels), "counts": sparse, "mistakes": listed})
    if len(worst) and dataset.channels in (1, 3) and dataset.test.shape[-1] > 1:
        write_atomically(run.path / PICTURES, _draw_row(dataset, worst))


def _draw_row(dataset: Dataset, rows: NDArray[np.int64]) -> bytes:
    """Draw the images in one row, as a JPEG file."""
    sheet = Image.new("RGB", (SIDE * len(rows), SIDE))
    for place, pixels in enumerate(dataset.test.pick(torch.as_tensor(rows))):
        picture = Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy().squeeze()).convert("RGB")
        enlarged = Image.Resampling.NEAREST if picture.width * 3 <= SIDE else Image.Resampling.LANCZOS
        sheet.paste(picture.resize((SIDE, SIDE), enlarged), (SIDE * place, 0))
    out = io.BytesIO()
    sheet.save(out, "JPEG", quality=85)
    return out.getvalue()
