"""Run folders that look like real ones, made without training; and a browser for the page."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
    && [...document.querySelectorAll(".plot")].every((p) => p.querySelector(".main-svg"))"""


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


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Run]:
    """Make a run folder in a temporary folder."""
    return lambda **options: make_run(tmp_path / "runs", **options)


@pytest.fixture(scope="session")
def study_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], dict[str, Any]]:
    """The quickstart study, made once."""
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; without one the tests that need it are skipped, loudly."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
    flags = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    with sync_api.sync_playwright() as driver:
        paths = [path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()]
        try:
            opened = driver.chromium.launch(
                executable_path=paths[0] if paths else None, args=[*flags.split(), "--no-first-run"]
            )
        except sync_api.Error as error:
            pytest.skip(f"no browser: the page is NOT tested, Chromium does not start: {str(error)[:200]}")
        yield opened
        opened.close()


@pytest.fixture
def show(browser):
    """Open a page with the network off; afterwards it must have said nothing to the console."""
    contexts, complaints = [], []

    def go(path, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(path.as_uri())
        page.wait_for_function(PLOTTED)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
