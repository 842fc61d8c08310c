"""RandAugment, AutoAugment and TrivialAugment on whole batches.

Every image has an operation of its own, and none waits for another. A policy knows few pairs of operation and
strength, so `Operations` works out all of them beforehand, and a batch looks up a row for each of its images. The
operations fall into three kinds, each one pass over the batch in which the images it does not concern stay as they
are: those that move pixels (one gather, by a list of sources per row), those that map a channel's values (one table of
256 entries per image and channel), and those that blend an image with a duller version of it. So shapes are fixed,
nothing is asked of the host, and a layer takes fewer than sixty operators.
On uint8 they equal torchvision's operations; what moves in is grey, 128.

Cubuk et al., AutoAugment (arXiv:1805.09501), with the policies of its appendix, and RandAugment (arXiv:1909.13719)
with its 14 operations. RandAugment's strength is on the paper's scale as in its authors' code: magnitude 10 is the
range AutoAugment searched, more goes beyond (15: rotations by 45°); their `posterize` and `solarize` grow milder with
it. torchvision's RandAugment divides by 30 instead, so its 15 is a third as strong. Müller and Hutter, TrivialAugment
(arXiv:2103.10158), in its wide space, which is torchvision's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast"),
    *("sharpness", "posterize", "solarize", "autocontrast", "equalize", "invert"),
)
FILL = 128
STRENGTHS = 31
"""Of each operation of TrivialAugment."""
MANY = 64
"""Lists of sources beyond which they are kept in half the memory: TrivialAugment's 306 take 61 MB at 224 pixels."""

_MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_ENHANCES = ("brightness", "color", "contrast", "sharpness")
_BLENDS = ("color", "contrast", "sharpness")

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
        self._choices = OPERATIONS[: OPERATIONS.index("invert")]
        cells = [(name, float(values.get(name, 0))) for name in self._choices]
        both = [(name, sign * value) for name, value in cells for sign in (1, -1 if name in _MOVES else 1)]
        self.operations = Operations(both, size, device)

    def __call__(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Change a batch of uint8 images by `draws`, (B, columns) uniform numbers."""
        rows = 2 * (draws[:, 0::2] * len(self._choices)).long() + (draws[:, 1::2] < 0.5)
        for layer in range(self.layers):
            images = self.operations(images, rows[:, layer])
        return images


class AutoAugment:
    """Draw one of 25 pairs of operations for each image; either happens with its own probability."""

    columns = 5

    def __init__(self, policy: str, size: int, device: torch.device) -> None:
        """Read the policy's table for images of `size` pixels a side."""
        words = POLICIES[policy].replace(";", " ").split()
        self._chance = torch.tensor([float(chance) for chance in words[1::3]], device=device).view(-1, 2)
        cells = [("identity", 0.0)]
        for name, level in zip(words[0::3], words[2::3], strict=True):
            value = _strength(name, 0 if level == "-" else int(level), size)
            base = 1.0 if name in _ENHANCES else 0.0
            cells += [(name, base + value), (name, base - value if name in _MOVES + _ENHANCES else value)]
        self.operations = Operations(cells, size, device)
        self._first = torch.tensor([1, 3], device=device)

    def __call__(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Change a batch of uint8 images by `draws`, (B, columns) uniform numbers."""
        pair = (draws[:, 0] * len(self._chance)).long()
        rows = 4 * pair[:, None] + self._first + (draws[:, 3:] < 0.5)
        rows = rows * (draws[:, 1:3] < self._chance[pair])
        for place in (0, 1):
            images = self.operations(images, rows[:, place])
        return images


class TrivialAugment:
    """Draw one operation, one of its 31 strengths and its sign for each image."""

    columns = 3

    def __init__(self, size: int, device: torch.device) -> None:
        """Make the operations of every strength for images of `size` pixels a side."""
        self._choices = OPERATIONS[: OPERATIONS.index("invert")]
        cells = [
            (name, sign * strength + (1.0 if name in _ENHANCES else 0.0))
            for name in self._choices
            for strength in _wide_strengths(name)
            for sign in (1, -1 if name in _MOVES + _ENHANCES else 1)
        ]
        self.operations = Operations(cells, size, device)

    def __call__(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Change a batch of uint8 images by `draws`, (B, columns) uniform numbers."""
        operation = (draws[:, 0] * len(self._choices)).long()
        number = (draws[:, 1] * STRENGTHS).long()
        return self.operations(images, 2 * (STRENGTHS * operation + number) + (draws[:, 2] < 0.5))


def _wide_strengths(name: str) -> list[float]:
    """List the strengths of TrivialAugment's wide space, as torchvision rounds them; shifts are pixels at any size."""
    if name == "posterize":
        return [8.0 - round(number / 5) for number in range(STRENGTHS)]
    tops = {"shear": 0.99, "translate": 32.0, "rotate": 135.0, **dict.fromkeys(_ENHANCES, 0.99)}
    ends = (255.0, 0.0) if name == "solarize" else (0.0, tops.get(name.removesuffix("_x").removesuffix("_y"), 0.0))
    strengths: list[float] = torch.linspace(*ends, STRENGTHS).tolist()
    return strengths


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


class Operations:
    """A list of operations with their strengths; every image of a batch is changed by one of them."""

    def __init__(self, cells: Sequence[tuple[str, float]], size: int, device: torch.device) -> None:
        """Work out what can be known without an image.

        Args:
            cells: names of `OPERATIONS`, each with a shear's slope, a shift in pixels, an angle in degrees, an
                enhancement's factor (1 changes nothing), the bits `posterize` keeps, or the first value that
                `solarize` inverts; others ignore theirs.
            size: of the images, in pixels a side.
            device: where they will be.
        """
        self.cells = list(cells)
        moves = {cell: number for number, cell in enumerate(dict.fromkeys(c for c in cells if c[0] in _MOVES), start=1)}
        kind = torch.int32 if len(moves) > MANY else torch.int64
        self._sources = torch.stack([_sources(*cell, size).to(kind) for cell in (("identity", 0.0), *moves)]).to(device)
        self._move_of = torch.tensor([moves.get(cell, 0) for cell in cells], device=device)
        self._tables = torch.stack([_table(*cell) for cell in cells])[:, None].to(device)
        self._is_mapped = _which(cells, "autocontrast", "equalize").to(device)
        self._is_blended = _which(cells, "color", "contrast").to(device)[..., None]
        factors = [value if name in _BLENDS else 1.0 for name, value in cells]
        shares = [(factor, 1 - factor) for factor in factors]  # of the image and the duller one, each rounded once
        self._factors = torch.tensor(shares, device=device)[..., None, None, None]
        kinds = {**dict.fromkeys(_MOVES, 0), **dict.fromkeys(_BLENDS, 2), "identity": -1}
        self._kind = torch.tensor([kinds.get(name, 1) for name, _ in cells])
        self._inner = torch.zeros(size, size, dtype=torch.bool, device=device)
        self._inner[1:-1, 1:-1] = True
        self._values = torch.arange(256.0, device=device)
        self._one = torch.ones((), dtype=torch.int32, device=device)

    def __call__(self, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Do to each image its own operation.

        Args:
            images: uint8, (B, C, size, size).
            rows: (B,), which cell.
        """
        whole = images.device.type != "cpu" or torch.compiler.is_compiling()
        for kind, change in enumerate((self.move, self.map_values, self.blend)):
            if whole:
                images = change(images, rows)
                continue
            mine = (self._kind[rows] == kind).nonzero()[:, 0]  # on the CPU, counting them costs nothing
            if len(mine):
                images = images.index_copy(0, mine, change(images[mine], rows[mine]))
        return images

    def move(self, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Let every pixel take the value of its source; the last source stands for all that lies outside."""
        sources = self._sources.index_select(0, self._move_of[rows]).long()
        known = F.pad(images.flatten(2), (0, 1), value=FILL)
        return known.gather(2, sources[:, None].expand(-1, images.shape[1], -1)).view_as(images)

    def map_values(self, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Look every value up in the table of its image and channel."""
        flat = images.flatten(2)
        index = flat.long()
        low, high = torch.aminmax(flat, dim=2, keepdim=True)
        span = high - low
        stretched = ((self._values - low) * (255 / span)).clamp(0, 255).to(torch.uint8)
        stretches, equalizes = self._is_mapped[rows].unbind(1)
        table = torch.where(stretches & (span > 0), stretched, self._tables[rows])
        # PIL's equalisation: the cumulative histogram, with the share of the brightest value left out
        counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int32, device=flat.device)
        counts.scatter_add_(2, index, self._one.expand(flat.shape))
        below = counts.cumsum(2, dtype=torch.int32) - counts
        step = below.gather(2, high.long()) // 255
        safe = step.clamp_min(1)
        even = ((below + safe // 2) // safe).clamp(max=255).to(torch.uint8)
        table = torch.where(equalizes & (step > 0), even, table)
        return table.gather(2, index).view_as(images)

    def blend(self, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Give factor · image + (1 - factor) · duller image: its mean, without its colours, or smoothed inside."""
        sharp = images.float()
        grey = sharp
        if images.shape[1] == 3:
            red, green, blue = sharp.unbind(1)
            grey = (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]
        colours, contrasts = self._is_blended[rows].unbind(1)
        dull = torch.where(colours, grey, self._smooth(sharp))
        dull = torch.where(contrasts, grey.mean((1, 2, 3), keepdim=True), dull)
        factor, rest = self._factors[rows].unbind(1)
        out = (factor * sharp + rest * dull).clamp_(0, 255).to(torch.uint8)
        return out if images.shape[1] == 3 else torch.where(colours, images, out)

    def _smooth(self, sharp: torch.Tensor) -> torch.Tensor:
        around = F.avg_pool2d(sharp, 3, 1, padding=1, divisor_override=1)
        smooth = around.add_(sharp, alpha=4).div_(13).round_()
        return torch.where(self._inner, smooth, sharp)


def _which(cells: Sequence[tuple[str, float]], *names: str) -> torch.Tensor:
    """For each cell, (cells, names, 1, 1), whether it has that name."""
    return torch.tensor([[cell[0] == name for name in names] for cell in cells])[..., None, None]


def _sources(name: str, value: float, size: int) -> torch.Tensor:
    """Where each pixel of a moved image comes from, (size²,): a pixel's number, or size² for what lies outside."""
    amount = torch.tensor(value)
    angle = amount.deg2rad() if name == "rotate" else torch.zeros(())
    row, column = torch.arange(float(size))[:, None], torch.arange(float(size))[None, :]
    middle = (size - 1) / 2
    y, x = row - middle, column - middle
    from_x = angle.cos() * x - angle.sin() * y
    from_y = angle.sin() * x + angle.cos() * y
    if name == "shear_x":
        from_x = from_x + amount * (row + 0.5)
    elif name == "shear_y":
        from_y = from_y + amount * (column + 0.5)
    elif name == "translate_x":
        from_x = from_x - amount.trunc()
    elif name == "translate_y":
        from_y = from_y - amount.trunc()
    from_x, from_y = (from_x + middle).round(), (from_y + middle).round()
    inside = (from_x >= 0) & (from_x < size) & (from_y >= 0) & (from_y < size)
    return torch.where(inside, from_y * size + from_x, size**2).long().flatten()


def _table(name: str, value: float) -> torch.Tensor:
    """What becomes of the values 0 to 255 where that does not depend on the image; else they stay."""
    old = torch.arange(256.0)
    if name == "brightness":
        old = (value * old).clamp(0, 255).floor()
    elif name == "posterize":
        old = (old / 2 ** (8 - value)).floor() * 2 ** (8 - value)
    elif name == "solarize":
        old = torch.where(old >= value, 255 - old, old)
    elif name == "invert":
        old = 255 - old
    return old.to(torch.uint8)
