"""Results as `steppe geometry` and `steppe evaluate` leave them, made without measuring."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steppe.report.paper import save_sheet
from steppe.runs import Run

CORRUPTIONS = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
]
CORRUPTIONS += ["snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"]
CORRUPTIONS += ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
MADE = {"device": "cpu", "torch": "2.15.0", "precision": "float32"}
HOW = {"loss": "cross-entropy", "examples": 256, "batch": 256, "batch_norm": "running"}


def _eigenvalue(value: float) -> dict[str, Any]:
    return {"value": value, "residual": 1e-4, "converged": value < 90}


def confusion(classes: int, *, images: int = 45, mistakes: int = 1) -> list[list[int]]:
    """Counts by label and answer: of each class some images are taken for the next, twice as many of the first."""
    counts = np.zeros((classes, classes), dtype=int)
    for label in range(classes):
        wrong = mistakes * (2 if label == 0 else 1)
        counts[label, label], counts[label, (label + 1) % classes] = images - wrong, wrong
    return counts.tolist()


def name_classes(run: Run, names: list[str]) -> None:
    """Name the classes of a run, as training does."""
    run.write("data.json", run.read("data.json") | {"classes": names})


def add_results(run: Run, sharpness: float = 1.0, *, points: int = 21, examples: int = 256, images: int = 4) -> None:
    """Write geometry.json, robustness.json and a sheet of attention maps. `sharpness` scales every curvature."""
    steps = np.linspace(-1, 1, points)
    valley = 0.02 + sharpness * (steps[:, None] ** 2 + 0.5 * steps[None, :] ** 2)
    asked = {"points": points, "radius": 1.0, "examples": examples, "seed": 0}
    parts = {"whole": 20.0, "embedding": 3.0, "attention": 9.0, "mlp": 100.0 / sharpness, "<b>block1</b>": 6.0}
    blocks = {
        name: {
            "lambda_max": _eigenvalue(v * sharpness),
            "lambda_min": _eigenvalue(-v / 9),
            "top": [_eigenvalue(v * sharpness)],
        }
        for name, v in parts.items()
    }
    nodes = np.linspace(-1, 20 * sharpness, 15)
    weights = np.exp(-np.abs(nodes))
    geometry: dict[str, Any] = {
        "noise_loss": {"mean": 0.02 + sharpness, "clean": 0.02, "sigma": 0.01, "draws": 20, "examples": examples},
        "lambda_max": {"parts": blocks, "how": HOW, "settings": {"parts": "roles", "examples": examples}},
        "trace": {"parts": {n: {"mean": 9 * v, "stderr": 1.0} for n, v in parts.items()}, "settings": {"probes": 5}},
        "spectrum": {"nodes": [nodes.tolist()], "weights": [(weights / weights.sum()).tolist()], "probes": 1},
        "sharpness": {"none": {"first_order": 0.1 * sharpness}, "weights": {"first_order": 0.2 * sharpness}},
        "norms": {
            "weights": {"whole": 30.0, "stem": 4.0},
            "gradients": {"whole": 0.3, "stem": 0.1},
            "activations": {"stem": {"active": 0.4, "neurons": 100}, "block1": {"active": 0.6, "neurons": 300}},
            "settings": {"examples": examples},
        },
        "missing_rate": {"rate": 0.4, "low": 0.34, "high": 0.46, "pairs": 256},
        "line": {"steps": steps.tolist(), "loss": (0.02 + sharpness * steps**2).tolist(), "centre": 0.02},
        "landscape": {"steps": steps.tolist(), "loss": valley.tolist(), "centre": 0.02, "settings": asked},
        "between": {
            "shares": [0, 0.25, 0.5, 0.75, 1],
            "loss": [0.02, 0.5, 0.9, 0.5, 0.03],
            "barrier": 0.87,
            "settings": {"points": 5, "with": "runs/<other>"},
        },
        "attention": {"images": list(range(images)), "last_layer": [], "rollout": [], "settings": {"images": images}},
    }
    fall = [[max(0.1, 0.95 - 0.1 * s - 0.02 * k - 0.05 * sharpness) for s in range(5)] for k in range(19)]
    robustness = {
        "scores": {
            "top1": 0.95,
            "top5": 0.99,
            "nll": 0.2,
            "brier": 0.1,
            "ece": 0.03 * sharpness,
            "reliability": [{"count": 0, "accuracy": None, "confidence": None}]
            + [{"count": 10 * k, "accuracy": k / 10, "confidence": k / 10 + 0.05} for k in range(1, 10)],
            "confusion": confusion(10, mistakes=2 if sharpness > 1 else 1),
            "examples": 450,
            "settings": {"bins": 10},
        },
        "corruptions": {
            "table": dict(zip(CORRUPTIONS, fall, strict=True)),
            "mean": float(np.mean(fall)),
            "settings": {"names": "all", "examples": examples},
        },
        "attacks": {
            "clean": 0.95,
            "fgsm": 0.7,
            "pgd": 0.6 - 0.1 * sharpness,
            "examples": examples,
            "epsilon": 2 / 255,
            "steps": 10,
            "check": {"warning": "many restarts leave <fewer> right answers" if sharpness > 1.5 else None},
            "settings": {"epsilon": 2 / 255},
        },
    }
    for found in (*geometry.values(), *robustness.values()):
        found["made_on"] = MADE
    run.write("geometry.json", geometry)
    run.write("robustness.json", robustness)
    pictures = np.arange(images * 64, dtype=np.uint8).reshape(images, 1, 8, 8)
    maps = np.abs(np.sin(np.arange(images * 64).reshape(images, 8, 8) * math.pi / 9))
    save_sheet(pictures, {"last layer": maps, "rollout": maps**2}, run.path / "figures" / "attention_sheet.png")
