"""Snow, frost, fog and spatter: corruptions that lay something drawn over the image. See `corruptions`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from steppe.data.corruption_tools import Keyed, coloured, constant, filtered, gaussian, grey, motion, portions, zoomed

SOBEL = ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1))
SLOPE = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
WATER, MUD = (175, 238, 238), (63, 42, 20)
FAR = 20
"""Distances to the edge of a drop beyond this are all one."""
PANES = ((78, 149, 165, 16), (198, 202, 211, 20), (198, 202, 211, 20), (144, 159, 172, 26), (102, 113, 125, 37))
"""Mean colour, and contrast over 224 pixels, of the five photographs that the published program chooses from.

Measured on 60 crops of each; the second and the third are the same picture.
"""
SHADE = 15
"""So much brighter or darker than its picture a crop is."""


def snow(x: torch.Tensor, c: tuple[float, float, float, float, float, float, float], random: Keyed) -> torch.Tensor:
    """Lay blown flakes over a paler image.

    Flakes are normal noise (c₀, c₁), enlarged by c₂, kept above c₃ and blurred by motion (c₄, c₅); they fall twice,
    the second time upside down. The image pales by 1 - c₆.
    """
    mean, spread, zoom, threshold, radius, sigma, kept = c
    side = x.shape[-1]
    flakes = zoomed(mean + spread * random.normal(1, side, side), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1).mul(255).floor() / 255
    flakes = motion(flakes, radius, sigma, angle=random.uniform(1)[:, 0] * 90 - 135)
    flakes = (flakes * 255).round() / 255
    pale = torch.maximum(x, grey(x) * 1.5 + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.flip(2, 3)


def fog(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    """Add c₀ times a plasma fractal, and bring the brightest value back to what it was."""
    amount, decay = c
    side = x.shape[-1]
    plasma = plasma_fractal(2 ** math.ceil(math.log2(max(side, 32))), decay, random)[:, None, :side, :side]
    top = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * plasma) * top / (top + amount)


def plasma_fractal(side: int, decay: float, random: Keyed) -> torch.Tensor:
    """Heights (B, side, side) from 0 to 1, by the diamond-square algorithm on a torus; `side` is a power of two.

    Each finer step adds uniform noise of ±w², with w = 100 at first and divided by `decay` at every step.
    """
    wibble, step = 100.0, side
    heights = torch.zeros(random.count, side, side, device=random.device)
    sizes = [side // 2**k for k in range(int(math.log2(side)), 0, -1)]
    noises = random.several(*((size, size) for size in sizes for _ in range(3)))

    def place(rows: slice, columns: slice, total: torch.Tensor) -> None:
        heights[:, rows, columns] = torch.add(total / 4 - wibble**2, next(noises), alpha=2 * wibble**2)

    while step >= 2:
        half = step // 2
        even, odd = slice(0, side, step), slice(half, side, step)
        corners = heights[:, even, even]
        beside, below = corners + corners.roll(-1, 2), corners + corners.roll(-1, 1)
        place(odd, odd, below + below.roll(-1, 2))
        middles = heights[:, odd, odd]
        place(even, odd, middles + middles.roll(1, 1) + beside)
        place(odd, even, middles + middles.roll(1, 2) + below)
        step, wibble = half, wibble / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


def frost(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    """Give c₀ times the image plus c₁ times a frosted pane."""
    pane = frosted_pane(x.shape[-1], random)
    return c[0] * x + c[1] * (pane if x.shape[1] == 3 else grey(pane))


def frosted_pane(side: int, random: Keyed) -> torch.Tensor:
    """A frosted pane, (B, 3, side, side) from 0 to 1: one of `PANES`, with needles of ice at several scales.

    The needles are ridged noise, Σ aᵏ (1 - |2n_k - 1|)⁴ where n_k is smooth noise of cell size side/2ᵏ⁺², stretched
    along a direction of its own. A slow field makes some of the pane thick with ice and leaves some clear. The sum is
    brought to the pane's contrast about its colour; a = 1.25 gives the spectrum of photographs of frost.
    """
    line = torch.linspace(-1, 1, side, device=random.device)
    octaves = max(2, int(math.log2(side)) - 1)
    sizes = [1, 1, 1, *(2 ** (k + 2) + 1 for k in range(octaves)), 3]
    which, shade, turn, *grids, thick = random.several(*((1, size, size) for size in sizes))
    angle = turn[:, 0] * math.pi
    along = angle.cos() * line[None, None, :] + angle.sin() * line[None, :, None]
    across = -angle.sin() * line[None, None, :] + angle.cos() * line[None, :, None]
    needles = torch.zeros_like(along)
    for k, grid in enumerate(grids):
        places = torch.stack([across * 0.7, along * (0.7 if k < 2 else 0.35)], -1)
        smooth = F.grid_sample(grid, places, padding_mode="reflection", align_corners=True)[:, 0]
        needles = needles + 1.25**k * (1 - (2 * smooth - 1).abs()) ** 4
    thick = F.interpolate(thick, size=(side, side), mode="bicubic", align_corners=True)[:, 0]
    ice = (0.35 + 0.9 * thick).clamp(0.15, 1) * needles
    ice = (ice - ice.mean((1, 2), keepdim=True)) / ice.std((1, 2), keepdim=True)
    panes = constant(PANES, random.device)[(which.flatten() * len(PANES)).long()]
    contrast = panes[:, 3] * min(1.0, side / 224) ** 0.25
    level = panes[:, :3] + (2 * shade.view(-1, 1) - 1) * SHADE
    return ((level[:, :, None, None] + (contrast[:, None, None] * ice)[:, None]) / 255).clamp(0, 1)


def spatter(x: torch.Tensor, c: tuple[float, float, float, float, float, bool], random: Keyed) -> torch.Tensor:
    """Drops of water, lit from one side, or of mud: smooth noise (c₀, c₁, σ = c₂) above c₃, as strong as c₄."""
    mean, spread, sigma, threshold, strength, muddy = c
    side = x.shape[-1]
    liquid = gaussian(mean + spread * random.normal(1, side, side), sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if muddy:
        cover = gaussian((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + coloured(MUD, x) * cover
    liquid = (liquid * 255).clamp(0, 255).floor()
    distance = _distance(_edges(liquid, 50, 150))
    mean_of_nine, slope = constant(((1 / 9,) * 3,) * 3, x.device), constant(SLOPE, x.device)
    distance = _equalised(filtered(distance, mean_of_nine).floor())
    relief = filtered(distance, slope).clamp(0, 255)
    light = liquid * filtered(relief, mean_of_nine).round()
    cover = strength * light / light.amax((1, 2, 3), keepdim=True).clamp_min(1e-6)
    return x + cover * coloured(WATER, x)


def _edges(grey: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Canny's edges of (B, 1, H, W): crests of the Sobel gradient above `high`, and those above `low` they lead to."""
    sobel = constant(SOBEL, grey.device)
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    dx, dy = F.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]).split(1, 1)
    strength = dx.abs() + dy.abs()
    around = F.pad(strength, (1, 1, 1, 1))
    height, width = grey.shape[-2:]

    def beside(down: int, right: int) -> torch.Tensor:
        return around[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    flat, steep = dy.abs() < 0.41421 * dx.abs(), dy.abs() > 2.41421 * dx.abs()
    falling = dx * dy > 0
    before = torch.where(flat, beside(0, -1), torch.where(steep, beside(-1, 0), beside(-1, -1)))
    after = torch.where(flat, beside(0, 1), torch.where(steep, beside(1, 0), beside(1, 1)))
    before = torch.where(~flat & ~steep & ~falling, beside(-1, 1), before)
    after = torch.where(~flat & ~steep & ~falling, beside(1, -1), after)
    crest = (strength > before) & (strength >= after)
    weak, edge = (crest & (strength > low)).float(), (crest & (strength > high)).float()
    around_me = constant(((1,) * 3,) * 3, grey.device)[None, None]
    while True:
        grown = edge
        for _ in range(4):  # further rounds change nothing, but asking whether they did would wait for the device
            grown = (F.conv2d(grown, around_me, padding=1) > 0.5) * weak
        if torch.equal(grown, edge):
            return edge > 0
        edge = grown


def _distance(edge: torch.Tensor) -> torch.Tensor:
    """Euclidean distance of every pixel to the nearest edge, up to `FAR`: first along columns, then along rows."""
    far = float(4 * FAR**2)
    offset = torch.arange(-FAR, FAR + 1, device=edge.device) ** 2

    def nearest(squared: torch.Tensor) -> torch.Tensor:
        return (F.pad(squared, (FAR, FAR), value=far).unfold(-1, len(offset), 1) + offset).amin(-1)

    parts = portions(edge, edge[0].numel() * len(offset))
    squared = torch.cat([nearest(nearest(torch.where(part, 0.0, far)).mT).mT for part in parts])
    return squared.sqrt().clamp(max=FAR)


def _equalised(bytes_: torch.Tensor) -> torch.Tensor:
    """Spread the histogram of (B, 1, H, W) whole numbers from 0 to 255 evenly, its lowest value at 0."""
    flat = bytes_.flatten(1).long().clamp(0, 255)
    counts = torch.zeros(len(flat), 256, device=flat.device).scatter_add_(1, flat, torch.ones_like(bytes_).flatten(1))
    below = counts.cumsum(1)
    first = below.gather(1, flat.amin(1, keepdim=True))
    table = ((below - first) * 255 / (flat.shape[1] - first).clamp_min(1)).round().clamp(0, 255)
    table = torch.where(first == flat.shape[1], torch.arange(256.0, device=flat.device), table)
    return table.gather(1, flat).view_as(bytes_)
