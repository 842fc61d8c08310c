"""`steppe evaluate`: how well a run does, and how it bears up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steppe.cli.measured import measuring_command

if TYPE_CHECKING:
    from steppe.measuring import Measure

HEADLINES = {
    "scores": "top1 top5 ece nll brier",
    "tta": "augmented plain",
    "corruptions": "mean mean_15",
    "attacks": "pgd fgsm clean",
    "variants": "imagenet_v2.top1 imagenet_r.top1 imagenet_real.top1",
}


def _table() -> Mapping[str, Measure]:
    from steppe.evaluate.measures import MEASURES

    return MEASURES


def _draw(subject: Any, found: dict[str, Any]) -> int:
    from steppe.report import paper_robustness as draw
    from steppe.report.paper import plain, save

    figures: dict[str, Any] = {}
    title = plain(subject.folder.resolve().name)
    if "scores" in found:
        figures["calibration"] = draw.draw_reliability(found["scores"], title)
        figures["confusion"] = draw.draw_confusion(
            found["scores"], [plain(name) for name in subject.dataset.classes], title
        )
    if "corruptions" in found:
        figures["corruptions"] = draw.draw_corruptions(found["corruptions"], title)
    for name, figure in figures.items():
        save(figure, subject.folder / "figures" / name)
    return len(figures)


evaluate = measuring_command(
    "evaluate",
    "Measure runs on their test set: calibration, corruptions, attacks. Adds robustness.json and figures to each.",
    "robustness.json",
    _table,
    HEADLINES,
    _draw,
)
