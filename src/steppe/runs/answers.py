"""`answers.safetensors`: what a run answered on every test image, so that runs can be compared image by image.

Three vectors in the order of the test set: `answers` and `labels` (class numbers), `nll` (−log p of the label).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from steppe.errors import RunError
from steppe.plain_files import read_plain
from steppe.runs.files import write_atomically

ANSWERS = "answers.safetensors"
OUT_OF_FOLD = "out_of_fold.safetensors"
"""Of a probe that learned the validation images too: logits and labels of every image when it was left out."""


@dataclass(frozen=True)
class Answers:
    """What a model answered on every test image."""

    answers: NDArray[np.int32]
    labels: NDArray[np.int32]
    nll: NDArray[np.float32]

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether each answer is right."""
        return self.answers == self.labels


def write_answers(folder: Path, found: Answers) -> None:
    """Write the answers into a run folder, atomically.

    Args:
        folder: the run's.
        found: its answers.
    """
    tensors = {name: np.ascontiguousarray(getattr(found, name)) for name in ("answers", "labels", "nll")}
    write_atomically(folder / ANSWERS, save(tensors))


def read_answers(folder: Path) -> Answers | None:
    """Read the answers of a run folder; None where there are none.

    Args:
        folder: the run's.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / ANSWERS
    if not path.is_file():
        return None
    try:
        found = load(read_plain(path))
        answers = Answers(*(found[name] for name in ("answers", "labels", "nll")))
        if len({getattr(answers, name).shape for name in ("answers", "labels", "nll")}) != 1:
            raise ValueError("its vectors differ in length")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        fix = f"remove {path}: it is made again from the run's weights"
        raise RunError(f"the answers are damaged: {error}", where=str(path), fix=fix) from None
    return answers
