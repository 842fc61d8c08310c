"""`steppe geometry`: where a run sits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steppe.cli.measured import measuring_command

if TYPE_CHECKING:
    from steppe.measuring import Measure

HEADLINES = {
    "lambda_max": "parts.whole.lambda_max.value parts.whole.lambda_min.value subsets.mean subsets.stderr",
    "trace": "parts.whole.mean parts.whole.stderr",
    "spectrum": "largest smallest",
    "sharpness": "none.first_order weights.first_order",
    "ntk": "kappa stderr",
    "ntk_initial": "kappa stderr",
    "norms": "weights.whole gradients.whole activations.*.active",
    "missing_rate": "rate low high",
    "noise": "mean stderr clean",
    "line": "centre",
    "landscape": "centre",
    "between": "barrier",
    "attention": "evenness.last_layer evenness.rollout",
}


def _table() -> Mapping[str, Measure]:
    from steppe.geometry.measures import MEASURES

    return MEASURES


def _draw(subject: Any, found: dict[str, Any]) -> int:
    from steppe.cli.figures import overlaid
    from steppe.report import paper as draw

    figures: dict[str, Any] = {}
    title = draw.plain(subject.folder.resolve().name)
    if "lambda_max" in found:
        parts = found["lambda_max"]["parts"]
        if len(parts) > 1:
            figures["lambda_max"] = draw.draw_eigenvalues({title: parts}, title)
    if "spectrum" in found:
        figures["spectrum"] = _spectrum(found, title)
    if "norms" in found:
        active = {part: values["active"] for part, values in found["norms"]["activations"].items()}
        if active:
            figures["active_neurons"] = draw.draw_bars({title: active}, "active neurons", title)
    if "line" in found:
        figures["line"] = draw.draw_line(found["line"], title)
    if "landscape" in found:
        figures["landscape"] = draw.draw_landscape(found["landscape"], title)
    if "between" in found:
        other = draw.plain(found["between"]["settings"].get("with", "the other").rstrip("/").rsplit("/", 1)[-1])
        figures["between"] = draw.draw_between(found["between"], ends=(title, other))
    if "attention" in found:
        images, maps = overlaid(subject.dataset, found["attention"])
        figures["attention"] = draw.draw_attention(images, maps, title)
        draw.save_sheet(images, maps, subject.folder / "figures" / "attention_sheet.png")
    for name, figure in figures.items():
        draw.save(figure, subject.folder / "figures" / name)
    return len(figures)


def _spectrum(found: dict[str, Any], title: str) -> Any:
    """The density on a grid over all nodes, with the eigenvalues of `lambda_max` marked."""
    import numpy as np

    from steppe.geometry.spectrum import density
    from steppe.report import paper as draw

    spectrum = found["spectrum"]
    nodes = np.concatenate([np.array(row) for row in spectrum["nodes"]])
    low, high = float(nodes.min()), float(nodes.max())
    room = 0.05 * max(high - low, 1e-12)
    grid = np.linspace(low - room, high + room, 600)
    whole = (found.get("lambda_max") or {}).get("parts", {}).get("whole")
    marked = [value["value"] for value in whole["top"]] if whole else []
    return draw.draw_spectrum(grid.tolist(), density(spectrum, grid, room / 5).tolist(), marked, title)


geometry = measuring_command(
    "geometry",
    "Measure where runs sit: flatness, landscapes, attention. Adds geometry.json and figures to each.",
    "geometry.json",
    _table,
    HEADLINES,
    _draw,
)
