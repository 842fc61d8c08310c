"""RandAugment and AutoAugment on whole batches: every image has an operation of its own, and none waits for another.

The operations fall into three kinds, each one pass over the batch in which the images it does not concern stay as
they are: those that move pixels (one gather, with an affine map per image), those that map a channel's values (one
table of 256 entries per image and channel), and those that blend an image with a duller version of it. So shapes are
fixed and nothing is asked of the host. On uint8 they equal torchvision's operations; what moves in is grey, 128.

Cubuk et al., AutoAugment (arXiv:1805.09501), with the policies of its appendix, and RandAugment (arXiv:1909.13719)
with its 14 operations. RandAugment's strength is on the paper's scale as in its authors' code: magnitude 10 is the
range AutoAugment searched, more goes beyond (15: rotations by 45°); their `posterize` and `solarize` grow milder with
it. torchvision's RandAugment divides by 30 instead, so its 15 is a third as strong.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast"),
    *("sharpness", "posterize", "solarize", "autocontrast", "equalize", "invert"),
)
CODE: Mapping[str, int] = {name: number for number, name in enumerate(OPERATIONS)}
FILL = 128

_MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_ENHANCES = ("brightness", "color", "contrast", "sharpness")

POLICIES = {
    "cifar10": """
        invert .1 - contrast .2 6; rotate .7 2 translate_x .3 9; sharpness .8 1 sharpness .9 3;
        shear_y .5 8 translate_y .7 9; autocontrast .5 - equalize .9 -; shear_y .2 7 posterize .3 7;
        color .4 3 brightness .6 7; sharpness .3 9 brightness .7 9; equalize .6 - equalize .5 -;
        contrast .6 7 sharpness .6 5; color .7 7 translate_x .5 8; equalize .3 - autocontrast .4 -;
        translate_y .4 3 sharpness .2 6; brightness .9 6 color .2 8; solarize .5 2 invert 0 -;
        equalize .2 - autocontrast .6 -; equalize .2 - equalize .6 -; color .9 9 equalize .6 -;
        autocontrast .8 - solarize .2 8; brightness .1 3 color .7 0; solarize .4 5 autocontrast .9 -;
        translate_y .9 9 translate_y .7 9; autocontrast .9 - solarize .8 3; equalize .8 - invert .1 -;
        translate_y .7 9 autocontrast .9 -
    """,
    "imagenet": """
        posterize .4 8 rotate .6 9; solarize .6 5 autocontrast .6 -; equalize .8 - equalize .6 -;
        posterize .6 7 posterize .6 6; equalize .4 - solarize .2 4; equalize .4 - rotate .8 8;
        solarize .6 3 equalize .6 -; posterize .8 5 equalize 1 -; rotate .2 3 solarize .6 8;
        equalize .6 - posterize .4 6; rotate .8 8 color .4 0; rotate .4 9 equalize .6 -; equalize 0 - equalize .8 -;
        invert .6 - equalize 1 -; color .6 4 contrast 1 8; rotate .8 8 color 1 2; color .8 8 solarize .8 7;
        sharpness .4 7 invert .6 -; shear_x .6 5 equalize 1 -; color .4 0 equalize .6 -; equalize .4 - solarize .2 4;
        solarize .6 5 autocontrast .6 -; invert .6 - equalize 1 -; color .6 4 contrast 1 8; equalize .8 - equalize .6 -
    """,
}
"""25 pairs each: operation, probability, strength 0 to 9."""


class RandAugment:
    """Draw `layers` operations for each image, all of one strength."""

    def __init__(self, layers: int, magnitude: int, size: int, device: torch.device) -> None:
        """Work out what the strength means for images of `size` pixels a side."""
        level = magnitude / 10
        values = {
            **dict.fromkeys(("shear_x", "shear_y"), 0.3 * level),
            **dict.fromkeys(("translate_x", "translate_y"), 150 / 331 * size * level),
            "rotate": 30 * level,
            **dict.fromkeys(_ENHANCES, 0.1 + 1.8 * level),
            "posterize": max(1, int(4 * level)),
            "solarize": int(256 * level),
        }
        self.layers, self.columns = layers, 2 * layers
        self._value = torch.tensor([float(values.get(name, 0)) for name in OPERATIONS], device=device)
        self._signed = torch.tensor([name in _MOVES for name in OPERATIONS], device=device)

    def __call__(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Change a batch of uint8 images by `draws`, (B, columns) uniform numbers."""
        for layer in range(self.layers):
            choices = CODE["invert"]  # all operations before it
            operation = (draws[:, 2 * layer] * choices).long()
            value = self._value[operation]
            negative = self._signed[operation] & (draws[:, 2 * layer + 1] < 0.5)
            images = apply_operations(images, operation, torch.where(negative, -value, value))
        return images


class AutoAugment:
    """Draw one of 25 pairs of operations for each image; either happens with its own probability."""

    columns = 5

    def __init__(self, policy: str, size: int, device: torch.device) -> None:
        """Read the policy's table for images of `size` pixels a side."""
        pairs = [pair.split() for pair in POLICIES[policy].split(";")]
        cells = [[pair[:3], pair[3:]] for pair in pairs]
        self._operation = torch.tensor([[CODE[cell[0]] for cell in row] for row in cells], device=device)
        self._chance = torch.tensor([[float(cell[1]) for cell in row] for row in cells], device=device)
        self._value = torch.tensor(
            [[_strength(cell[0], 0 if cell[2] == "-" else int(cell[2]), size) for cell in row] for row in cells],
            device=device,
        )
        self._signed = torch.tensor([name in _MOVES + _ENHANCES for name in OPERATIONS], device=device)
        self._base = torch.tensor([float(name in _ENHANCES) for name in OPERATIONS], device=device)

    def __call__(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Change a batch of uint8 images by `draws`, (B, columns) uniform numbers."""
        pair = (draws[:, 0] * len(self._operation)).long()
        for place in (0, 1):
            operation = self._operation[pair, place]
            value = self._value[pair, place]
            negative = self._signed[operation] & (draws[:, 3 + place] < 0.5)
            value = self._base[operation] + torch.where(negative, -value, value)
            happens = draws[:, 1 + place] < self._chance[pair, place]
            images = apply_operations(images, operation * happens, value)
        return images


def _strength(name: str, level: int, size: int) -> float:
    """What a strength from 0 to 9 means: the ranges of AutoAugment's table 6; enhancements as a distance from 1."""
    share = level / 9
    if name in ("shear_x", "shear_y"):
        return 0.3 * share
    if name in ("translate_x", "translate_y"):
        return 150 / 331 * size * share
    if name == "rotate":
        return 30 * share
    if name in _ENHANCES:
        return 0.9 * share
    if name == "posterize":
        return 8 - round(4 * share)
    return 255 * (1 - share) if name == "solarize" else 0.0


def apply_operations(images: torch.Tensor, operation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Do to each image its own operation.

    Args:
        images: uint8, (B, C, H, W).
        operation: (B,), numbers of `OPERATIONS`.
        value: (B,): a shear's slope, a shift in pixels, an angle in degrees, an enhancement's factor (1 changes
            nothing), the bits `posterize` keeps, the first value that `solarize` inverts.
    """
    whole = images.device.type != "cpu" or torch.compiler.is_compiling()
    for change, names in _KINDS:
        if whole:
            images = change(images, operation, value)
            continue
        mine = _is(operation, *names).nonzero()[:, 0]  # on the CPU, counting them costs nothing
        if len(mine):
            images = images.index_copy(0, mine, change(images[mine], operation[mine], value[mine]))
    return images


def _is(operation: torch.Tensor, *names: str) -> torch.Tensor:
    found = operation == CODE[names[0]]
    for name in names[1:]:
        found = found | (operation == CODE[name])
    return found


def _move(images: torch.Tensor, operation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    count, channels, height, width = images.shape
    zero = torch.zeros_like(value)
    angle = torch.where(_is(operation, "rotate"), value, zero).deg2rad()[:, None, None]
    shear_x = torch.where(_is(operation, "shear_x"), value, zero)[:, None, None]
    shear_y = torch.where(_is(operation, "shear_y"), value, zero)[:, None, None]
    shift_x = torch.where(_is(operation, "translate_x"), value, zero).trunc()[:, None, None]
    shift_y = torch.where(_is(operation, "translate_y"), value, zero).trunc()[:, None, None]
    row = torch.arange(height, device=images.device, dtype=torch.float32)[None, :, None]
    column = torch.arange(width, device=images.device, dtype=torch.float32)[None, None, :]
    y, x = row - (height - 1) / 2, column - (width - 1) / 2
    from_x = angle.cos() * x - angle.sin() * y + shear_x * (row + 0.5) - shift_x + (width - 1) / 2
    from_y = angle.sin() * x + angle.cos() * y + shear_y * (column + 0.5) - shift_y + (height - 1) / 2
    from_x, from_y = from_x.round(), from_y.round()
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    source = from_y.clamp(0, height - 1) * width + from_x.clamp(0, width - 1)
    index = source.long().view(count, 1, -1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, index).view_as(images)
    return torch.where(inside[:, None], moved, FILL)


def _map_values(images: torch.Tensor, operation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    count, channels = images.shape[:2]
    device = images.device
    old = torch.arange(256, device=device, dtype=torch.float32).expand(count, channels, 256)
    flat = images.flatten(2)
    factor = value[:, None, None]

    def put(names: tuple[str, ...], new: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.where(_is(operation, *names)[:, None, None], new, table)

    pivot = torch.where(_is(operation, "contrast"), _grey(images).mean((1, 2, 3)), 0.0)[:, None, None]
    table = put(("brightness", "contrast"), (factor * old + (1 - factor) * pivot).clamp(0, 255).floor(), old)
    step = 2.0 ** (8 - factor)
    table = put(("posterize",), (old / step).floor() * step, table)
    table = put(("solarize",), torch.where(old >= factor, 255 - old, old), table)
    table = put(("invert",), 255 - old, table)
    low, high = (bound.float()[..., None] for bound in torch.aminmax(flat, dim=2))
    stretched = ((old - low) * (255 / (high - low))).clamp(0, 255).floor()
    table = put(("autocontrast",), torch.where(high > low, stretched, old), table)
    table = put(("equalize",), _equalising_table(flat, old), table)
    return table.to(torch.uint8).gather(2, flat.long()).view_as(images)


def _equalising_table(flat: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """PIL's: the cumulative histogram, with the share of the brightest value left out."""
    counts = torch.zeros(old.shape, device=flat.device, dtype=torch.int32)
    counts.scatter_add_(2, flat.long(), torch.ones((), device=flat.device, dtype=torch.int32).expand(flat.shape))
    below = counts.cumsum(2)
    brightest = flat.amax(2, keepdim=True).long()
    step = (flat.shape[2] - counts.gather(2, brightest)) // 255
    safe = step.clamp_min(1)
    table = torch.div(below + safe // 2, safe, rounding_mode="floor")
    table = F.pad(table[..., :-1], (1, 0)).clamp(0, 255)
    return torch.where(step > 0, table.float(), old)


def _grey(images: torch.Tensor) -> torch.Tensor:
    if images.shape[1] != 3:
        return images.float()
    red, green, blue = images.float().unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).floor()[:, None]


def _blend(images: torch.Tensor, operation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Give factor · image + (1 - factor) · duller image: without its colours, or smoothed inside its border."""
    concerned = ("color", "sharpness") if images.shape[1] == 3 else ("sharpness",)
    factor = torch.where(_is(operation, *concerned), value, 1.0)[:, None, None, None]
    sharp = images.float()
    smooth = sharp.clone()
    if min(images.shape[-2:]) > 2:
        around = F.avg_pool2d(sharp, 3, 1) * 9
        smooth[..., 1:-1, 1:-1] = ((around + 4 * sharp[..., 1:-1, 1:-1]) / 13).round()
    dull = torch.where(_is(operation, "color")[:, None, None, None], _grey(images), smooth)
    return (factor * sharp + (1 - factor) * dull).clamp(0, 255).to(torch.uint8)


_KINDS = (
    (_move, _MOVES),
    (_map_values, ("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize", "invert")),
    (_blend, ("color", "sharpness")),
)
