"""Attacks within an ℓ∞ ball of the pixels: FGSM and PGD, and whether their failure can be believed.

FGSM (Goodfellow et al. 2015): x + ε · sign ∇L. PGD (Madry et al. 2018): several steps of α · sign ∇L, each cut back to
the ball of radius ε around x and to the valid range; the worst of several random starts counts. Chen, Hsieh & Gong
(2022, appendix B) use 10 steps of 0.25/255 within 2/255.

Everything here speaks of pixels in [0, 1]: `Pixels` puts the normalisation into the model. An attack can fail because
the model is robust or because its gradient is no guide ("masked", Athalye et al. 2018); see `check_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.config import derive_seed
from steppe.data import Dataset, Normalise
from steppe.errors import MeasureError
from steppe.measuring import as_found, ignore

Objective = Callable[[Tensor, Tensor], Tensor]

EPSILON, STEP, STEPS = 2 / 255, 0.25 / 255, 10


class Pixels(nn.Module):
    """A model that takes pixels in [0, 1] and normalises them itself."""

    def __init__(self, model: nn.Module, dataset: Dataset, device: torch.device) -> None:
        """Keep the data set's statistics on `device`."""
        super().__init__()
        normalise = Normalise(dataset, device)
        if normalise.top == 1.0:
            raise MeasureError(f"{dataset.name!r} holds points, not pictures: there are no pixels to attack")
        self.model, self.mean, self.std = model, normalise.mean, normalise.std

    def forward(self, pixels: Tensor) -> Tensor:
        """Answer with logits."""
        return self.model((pixels - self.mean) / self.std)

    def pixels(self, images: Tensor) -> Tensor:
        """Turn normalised images back into pixels."""
        return (images * self.std + self.mean).clamp(0, 1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The usual objective. On an image the model is very sure of, it is flat to the last digit."""
    return F.cross_entropy(logits, labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit minus the right one: never flat, so it shows where cross-entropy saturates."""
    right = logits.gather(1, labels[:, None])[:, 0]
    wrong = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return wrong - right


def fgsm(model: nn.Module, pixels: Tensor, labels: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Attack with one step.

    Args:
        model: takes pixels in [0, 1], in evaluation mode.
        pixels: (N, C, H, W).
        labels: (N,).
        epsilon: the most a pixel may change; 2/255 by default.
    """
    return (pixels + epsilon * _gradient(model, pixels, labels, cross_entropy).sign()).clamp(0, 1)


def pgd(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = STEPS,
    starts: Iterable[Tensor | None] = (None,),
    objective: Objective = cross_entropy,
) -> Tensor:
    """Attack with several steps; of several starts, an image keeps the one that fools the model, or the worst.

    Args:
        model: takes pixels in [0, 1], in evaluation mode.
        pixels: (N, C, H, W).
        labels: (N,).
        epsilon: the most a pixel may change; 2/255 by default.
        step: how far a pixel moves at a time; 0.25/255 by default.
        steps: how many; 10 by default.
        starts: where in the ball to begin, in [-1, 1] for each pixel (see `random_starts`); None is the image itself.
        objective: (logits, labels) -> what is to grow, for each image.
    """
    worst = pixels
    highest = torch.full((len(pixels),), -torch.inf, device=pixels.device, dtype=pixels.dtype)
    for start in starts:
        attacked = pixels if start is None else (pixels + epsilon * start).clamp(0, 1)
        for _ in range(steps):
            moved = attacked + step * _gradient(model, attacked, labels, objective).sign()
            attacked = (pixels + (moved - pixels).clamp(-epsilon, epsilon)).clamp(0, 1)
        with torch.no_grad():
            logits = model(attacked).to(pixels.dtype)
            fooled = logits.argmax(1) != labels
            reached = objective(logits, labels).masked_fill(fooled, torch.inf)
        better = reached > highest
        worst = torch.where(better[:, None, None, None], attacked, worst)
        highest = torch.maximum(reached, highest)
    return worst


def random_starts(pixels: Tensor, *, first: int, count: int, seed: int = 0) -> Iterator[Tensor]:
    """Yield starts anywhere in the ball, each a function of the image's number: the same in batches of any size.

    Args:
        pixels: (N, C, H, W).
        first: the number of the first of them.
        count: how many starts.
        seed: of all of them.
    """
    for restart in range(count):
        drawn = []
        for number in range(first, first + len(pixels)):
            generator = torch.Generator().manual_seed(derive_seed(seed, "attack", restart, number))
            drawn.append(torch.rand(pixels.shape[1:], generator=generator, dtype=pixels.dtype))
        yield (2 * torch.stack(drawn) - 1).to(pixels.device)


def measure_attacks(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    dataset: Dataset,
    *,
    device: torch.device,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = STEPS,
    restarts: int = 1,
    seed: int = 0,
    check: int = 256,
    surrogate: nn.Module | None = None,
    tell: Callable[[int], None] = ignore,
) -> dict[str, Any]:
    """Measure the accuracy under FGSM and PGD, with a warning where it cannot be believed.

    Args:
        model: on `device`, takes normalised images; left as it was found.
        batches: normalised images and labels.
        dataset: whose statistics normalised them.
        device: where to compute.
        epsilon: the most a pixel may change, of a range of 1.
        step: of PGD.
        steps: of PGD.
        restarts: of PGD.
        seed: of its starts.
        check: how many of the images the gradients are checked on; 0 leaves the check out.
        surrogate: another model, whose attacks are tried on this one as part of the check.
        tell: takes the number of images done.
    """
    if not 0 < epsilon <= 1 or not 0 < step <= 1 or steps < 1 or restarts < 1:
        raise MeasureError("an attack needs epsilon and step in (0, 1], and at least one step and one start")
    options: dict[str, Any] = {"epsilon": epsilon, "step": step, "steps": steps}
    clean = one = many = seen = 0
    checked: list[tuple[Tensor, Tensor, Tensor]] = []
    with as_found(model):
        attacked = Pixels(model, dataset, device)
        for images, labels in batches:
            pixels = attacked.pixels(images)
            starts = random_starts(pixels, first=seen, count=restarts, seed=seed)
            strong = pgd(attacked, pixels, labels, starts=starts, **options)
            held = _holds(attacked, strong, labels)
            clean += int(_holds(attacked, pixels, labels).sum())
            one += int(_holds(attacked, fgsm(attacked, pixels, labels, epsilon=epsilon), labels).sum())
            many += int(held.sum())
            room = max(0, check - seen)
            if room:
                checked.append((pixels[:room], labels[:room], held[:room]))
            seen += len(labels)
            tell(seen)
        if not seen:
            raise MeasureError("there are no images to attack")
        trust = (
            check_gradients(attacked, checked, dataset, seed=seed, surrogate=surrogate, **options) if check else None
        )
    found = {"clean": clean / seen, "fgsm": one / seen, "pgd": many / seen, "examples": seen}
    return {**found, "epsilon": epsilon, "step": step, "steps": steps, "restarts": restarts, "check": trust}


def check_gradients(
    model: Pixels,
    checked: list[tuple[Tensor, Tensor, Tensor]],
    dataset: Dataset,
    *,
    epsilon: float,
    step: float,
    steps: int,
    seed: int = 0,
    surrogate: nn.Module | None = None,
    restarts: int = 10,
    tolerance: float = 0.02,
) -> dict[str, Any]:
    """Try to do better than PGD where its gradient may mislead it: a better attack by other means says it was masked.

    Four ways: many starts; the margin as objective, which does not saturate; one large step (FGSM); and, where there
    is a surrogate, its attacks. A warning is given when one of them leaves fewer right answers than PGD did, by more
    than `tolerance` of the images. It speaks of masked gradients where a weaker attack (one step, or another model's)
    does better, or gradients are exactly zero; more starts or a better objective are just stronger.

    Args:
        model: takes pixels.
        checked: pixels, labels, and whether the answer held under PGD.
        dataset: for the surrogate's normalisation.
        epsilon: as PGD's.
        step: as PGD's.
        steps: as PGD's.
        seed: of the starts.
        surrogate: another model of normalised images.
        restarts: how many starts.
        tolerance: share of the images.
    """
    options: dict[str, Any] = {"epsilon": epsilon, "step": step, "steps": steps}
    counts: dict[str, int] = {"many_restarts": 0, "margin": 0, "fgsm": 0} | ({"transfer": 0} if surrogate else {})
    total = held = flat = 0
    for pixels, labels, before in checked:
        starts = list(random_starts(pixels, first=total, count=restarts, seed=derive_seed(seed, "check")))
        attacks = {
            "many_restarts": pgd(model, pixels, labels, starts=starts, **options),
            "margin": pgd(model, pixels, labels, starts=starts[:1], objective=margin, **options),
            "fgsm": fgsm(model, pixels, labels, epsilon=epsilon),
        }
        if surrogate is not None:
            with as_found(surrogate):
                twin = Pixels(surrogate, dataset, pixels.device)
                attacks["transfer"] = pgd(twin, pixels, labels, starts=starts[:1], **options)
        for name, attacked in attacks.items():
            counts[name] += int(_holds(model, attacked, labels).sum())
        flat += int((_gradient(model, pixels, labels, cross_entropy).flatten(1).abs().amax(1) == 0).sum())
        held += int(before.sum())
        total += len(labels)
    found = {name: count / total for name, count in counts.items()}
    fooled = [name for name, share in found.items() if share < held / total - tolerance]
    warning = None
    if fooled:
        better = ", ".join(f"{name.replace('_', ' ')} leaves {found[name]:.1%}" for name in fooled)
        masked = flat / total > 0.1 or bool({"fgsm", "transfer"} & set(fooled))
        what = "gradients are masked" if masked else "a stronger attack gets further"
        warning = f"{what}: PGD leaves {held / total:.1%}, but {better}; its accuracy is too high"
    return {
        "pgd": held / total,
        **found,
        "zero_gradients": flat / total,
        "restarts": restarts,
        "examples": total,
        "warning": warning,
    }


def _gradient(model: nn.Module, pixels: Tensor, labels: Tensor, objective: Objective) -> Tensor:
    with torch.enable_grad():
        moving = pixels.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(model(moving).to(pixels.dtype), labels).sum(), moving)
    return gradient


@torch.no_grad()
def _holds(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return model(pixels).argmax(1) == labels
