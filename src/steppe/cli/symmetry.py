"""`steppe symmetry`: what rescalings do to SAM's and ASAM's sharpness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli.show import console
from steppe.errors import RunError
from steppe.runs import holds_others, json_of, write_json

NUMBERS = json_of("a file of numbers", "steppe symmetry")
_CASES = {"weights": "weights, no biases", "weights_and_biases": "weights and biases"}
_PRESETS = {
    "weights, η = 0": "asam_weights",
    "weights, η > 0": "asam_weights_eta",
    "all, η = 0": "asam_all",
    "all, η > 0": "asam_all_eta",
}


def symmetry(
    out: Annotated[Path, typer.Option("--out", "-o", help="the folder for numbers and figures")] = Path("symmetry"),
    seed: Annotated[int, typer.Option(min=0, help="of the network, the data and the factors")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="how many rescalings")] = 50,
    rho: Annotated[float, typer.Option(help="SAM's radius")] = 0.05,
    asam_rho: Annotated[float, typer.Option(help="ASAM's radius")] = 0.5,
    eta: Annotated[float, typer.Option(help="ASAM's η; 0 is drawn besides")] = 0.01,
) -> None:
    """Rescale a ReLU network at random: its outputs stay, SAM's loss moves, ASAM's stays with the right preset."""
    from steppe.geometry.symmetry import measure_symmetry
    from steppe.report import paper

    if holds_others(out) and not (out / "symmetry.json").is_file():
        what = "this folder holds something else than the numbers and figures of this command"
        raise RunError(what, where=str(out), fix="choose another folder with --out")
    NUMBERS.check(out / "symmetry.json")
    found = measure_symmetry(seed=seed, steps=steps, rho=rho, asam_rho=asam_rho, eta=eta)
    write_json(out / "symmetry.json", {"made_by": "steppe symmetry", **found})
    for name, figure in _figures(found, paper).items():
        paper.save(figure, out / name)
    for case in _CASES:
        change = found[case]["largest_change"]
        shown = ", ".join(f"{kind.replace('_', ' ')} {value:.3g}" for kind, value in change.items())
        console.print(f"{_CASES[case]}: largest change of {shown}", markup=False, soft_wrap=True)
    moved = found["weights_only_despite_biases"]["largest_change"]["outputs"]
    console.print(f"weights alone in a network that has biases: outputs change by {moved:.3g}", soft_wrap=True)
    console.print(f"numbers and figures: {out}", markup=False, soft_wrap=True)


def _figures(found: dict[str, Any], paper: Any) -> dict[str, Any]:
    along, figures = "rescaling", {}
    for case, title in _CASES.items():
        part = found[case]
        outputs = {
            f"input {i + 1}, class {c}": [step[i][c] for step in part["outputs"]]
            for i in range(min(3, len(part["outputs"][0])))
            for c in range(2)
        }
        sharp = part["sharp_loss"]
        asam = {name: sharp[key] for name, key in _PRESETS.items()} | {"SAM, to compare": sharp["sam"]}
        figures[f"figure2_outputs_{case}"] = paper.draw_series(outputs, along, "output", title)
        figures[f"figure3_sam_{case}"] = paper.draw_series({"SAM": sharp["sam"]}, along, "SAM loss", title)
        figures[f"figure4_asam_{case}"] = paper.draw_series(asam, along, "ASAM loss", title)
    return figures
