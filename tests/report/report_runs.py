"""Run folders that look like real ones, made without training."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from steppe.config import RunConfig
from steppe.runs import Run, create_run

MODELS = {"ResNet": ("resnet_tiny", 53_130), "ViT": ("vit_tiny_p2", 105_482), "Swin": ("swin_tiny_p2", 88_210)}
MODELS |= {"MLP-Mixer": ("mixer_tiny_p2", 41_900)}
METHODS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "SAM": {"minimizer": {"name": "sam"}},
    "ASAM": {"minimizer": {"name": "asam"}},
    "AdamW, twice the epochs": {"budget": {"epochs": 40}},
}
LEVEL = {"AdamW": 0.962, "SAM": 0.974, "ASAM": 0.978, "AdamW, twice the epochs": 0.969}
SHARPNESS = {"AdamW": 0.11, "SAM": 0.034, "ASAM": 0.021, "AdamW, twice the epochs": 0.16}
ENV = {
    "command": ["steppe", "study", "run", "quickstart"],
    "commit": "0123abc",
    "device": "cpu",
    "device_name": "AMD EPYC 9654",
    "threads": 2,
    "python": "3.11.7",
    "versions": {"steppe": "0.1.0", "torch": "2.15.0"},
}


PLOTTED = """() => !document.documentElement.hasAttribute("data-drawing")
    && [...document.querySelectorAll(".plot")].every((p) => p.querySelector("svg.chart"))"""


def make_run(
    folder: Path,
    *,
    values: dict[str, Any] | None = None,
    level: float = 0.97,
    sharpness: float = 0.1,
    parameters: int | None = 53_130,
    status: str | None = "finished",
    reason: str = "",
    summary: dict[str, Any] | None = None,
    epochs_done: int | None = None,
    env: dict[str, Any] | None = None,
    name: str | None = None,
) -> Run:
    """Write a run folder the way training does. `summary` overrides keys of summary.json."""
    config = RunConfig.model_validate(values or {})
    run = create_run(folder / (name or config.run_id), config)
    dice = random.Random(f"{config.model.name} {config.minimizer.name} {config.budget.epochs} {config.seed}")
    sharp = config.minimizer.name != "base"
    epochs = config.budget.epochs or 20
    cost = 40 if sharp else 20
    seconds = (0.2 + (parameters or 0) / 250_000) * (1.9 if sharp else 1.0) * dice.uniform(0.95, 1.05)
    top = level + dice.gauss(0, 0.003)
    for epoch in range(1, (epochs if epochs_done is None else epochs_done) + 1):
        gap = math.exp(-epoch / 4) * 0.7
        record = {
            "epoch": epoch,
            "step": 20 * epoch,
            "gradient_evaluations": float(cost * epoch),
            "time_s": seconds * epoch,
            "lr": 1e-3,
            "rho": config.minimizer.rho,
            "train_loss": 2.2 * math.exp(-epoch / 5) + 0.02 + dice.uniform(0, 0.01),
            "train_accuracy": 1 - gap * 0.9,
            "val_loss": 1.9 * math.exp(-epoch / 5) + 0.1 + dice.uniform(0, 0.02),
            "val_accuracy": round(top - gap + dice.gauss(0, 0.004), 4),
        }
        run.append_metrics(record)
    run.write("env.json", ENV if env is None else env)
    run.write(
        "data.json", {"name": config.data.name, "classes": 10, "examples": {"train": 1293, "val": 144, "test": 360}}
    )
    if parameters is not None:
        run.write("cost.json", {"parameters": parameters, "flops_per_image": parameters * 31, "peak_memory_mib": None})
    if status == "finished":
        test = round(top * 360) / 360
        finished = {
            "status": "finished",
            "epochs": epochs,
            "steps": 20 * epochs,
            "gradient_evaluations": float(cost * epochs),
            "time_s": seconds * epochs,
            "time_per_epoch_s": seconds,
            "train": {"loss": 0.02, "accuracy": 0.999},
            "val": {"loss": 0.11, "accuracy": top},
            "test": {"loss": 0.1, "accuracy": test, "examples": 360},
            "finished_at": "2026-11-15T08:00:00+00:00",
        }
        run.write("summary.json", finished | (summary or {}))
        mean = 0.02 + sharpness * dice.uniform(0.85, 1.15)
        noise = {"mean": mean, "stderr": 0.004, "clean": 0.02, "sigma": 0.01, "draws": 20, "examples": 1000}
        run.write("geometry.json", {"noise_loss": noise})
    elif status == "failed":
        run.write("summary.json", {"status": "failed", "reason": reason, "epochs": epochs_done or 0} | (summary or {}))
    return run


def make_study(folder: Path) -> tuple[list[Run], dict[str, Any]]:
    """Write the quickstart study: four models, four methods, three seeds for two of the models."""
    runs, listed = [], []
    for place, (model, (timm_name, parameters)) in enumerate(MODELS.items()):
        for method, changes in METHODS.items():
            for seed in range(3 if place < 2 else 1):
                run = make_run(
                    folder,
                    values={"model": {"name": timm_name}, "seed": seed, **changes},
                    level=LEVEL[method] + (0.004, 0.0, 0.008, -0.012)[place],
                    sharpness=SHARPNESS[method] * (1, 1.4, 0.7, 2.1)[place],
                    parameters=parameters,
                )
                runs.append(run)
                listed.append({"run_id": run.id, "labels": {"model": model, "optimizer": method}, "seed": seed})
    study = {
        "name": "quickstart",
        "title": "Is a second gradient worth it on small digits?",
        "question": "Do SAM and ASAM beat AdamW when all get the same epochs, and when all get the same gradients?",
        "runs": listed,
    }
    return runs, study
