"""`steppe evaluate`: how well a run does, and how it bears up."""

from __future__ import annotations

from typing import Any

from steppe.cli import measured as shared

HEADLINES = {
    "scores": "top1 top5 ece nll brier",
    "corruptions": "mean mean_15",
    "attacks": "clean fgsm pgd",
    "variants": "imagenet_v2.top1 imagenet_r.top1 imagenet_real.top1",
}


def evaluate(
    run: shared.RunFolder = None,
    only: shared.Only = None,
    set_: shared.Set = None,
    quick: shared.Quick = False,
    again: shared.Again = False,
    list_: shared.Listing = False,
    with_: shared.With = None,
    model: shared.Model = None,
    weights: shared.Weights = None,
    data: shared.Data = None,
    image_size: shared.ImageSize = None,
    out: shared.Out = None,
    data_root: shared.DataRoot = None,
    device: shared.Device = None,
    batch_size: shared.BatchSize = 512,
) -> None:
    """Measure a run on its test set: calibration, corruptions, attacks. Adds robustness.json and figures to it."""
    from steppe.evaluate.measures import MEASURES

    if list_:
        shared.print_measures(MEASURES)
        return
    subject, found = shared.measure(
        MEASURES,
        "robustness.json",
        HEADLINES,
        run=run,
        only=only,
        changes=set_,
        quick=quick,
        again=again,
        other=with_,
        model=model,
        weights=weights,
        data=data,
        image_size=image_size,
        out=out,
        data_root=data_root,
        device=device,
        batch_size=batch_size,
    )
    shared.say_figures(subject.folder / "figures", _draw(subject, found))


def _draw(subject: Any, found: dict[str, Any]) -> int:
    from steppe.report import paper_robustness as draw
    from steppe.report.paper import save

    figures: dict[str, Any] = {}
    title = subject.folder.resolve().name
    if "scores" in found:
        figures["calibration"] = draw.draw_reliability(found["scores"], title)
        figures["confusion"] = draw.draw_confusion(found["scores"], subject.dataset.classes, title)
    if "corruptions" in found:
        figures["corruptions"] = draw.draw_corruptions(found["corruptions"], title)
    for name, figure in figures.items():
        save(figure, subject.folder / "figures" / name)
    return len(figures)
