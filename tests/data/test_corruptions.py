"""The corruptions against their definitions, written here one image at a time with numpy, scipy and PIL."""

from __future__ import annotations

import io

import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from steppe.data import CORRUPTIONS, corrupt
from steppe.data.corruption_tools import Keyed, disk, motion, shuffled, zoomed
from steppe.data.corruption_weather import _distance, _equalised, frosted_pane, plasma_fractal
from steppe.data.corruptions import CONSTANTS
from steppe.errors import ConfigError


def photographs(count: int = 6, side: int = 32) -> torch.Tensor:
    """A sky, some blobs, some texture: smooth parts, edges, and colours of every kind."""
    rng = np.random.default_rng(1)
    out = np.empty((count, 3, side, side))
    y, x = np.mgrid[:side, :side] / side
    for image in out:
        image[:] = rng.random((3, 1, 1)) * 0.6 + 0.4 * y
        for _ in range(5):
            cy, cx, radius = rng.random(), rng.random(), rng.random() * 0.3
            image[:, (y - cy) ** 2 + (x - cx) ** 2 < radius**2] = rng.random((3, 1))
        image += rng.normal(0, 0.02, image.shape)
    return torch.from_numpy((out.clip(0, 1) * 255).astype(np.uint8))


IMAGES = {"cifar": photographs(), "imagenet": photographs(2, 96)}
NUMBERS = {"cifar": torch.arange(6), "imagenet": torch.arange(2)}


def made(name: str, severity: int, scale: str = "cifar") -> np.ndarray:
    out = corrupt(IMAGES[scale], name, severity, indices=NUMBERS[scale], scale=scale)
    return out.permute(0, 2, 3, 1).numpy()


def clean(scale: str) -> np.ndarray:
    return IMAGES[scale].permute(0, 2, 3, 1).numpy() / 255


def as_bytes(images: np.ndarray) -> np.ndarray:
    return np.uint8(images.clip(0, 1) * 255)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


def constant(name: str, severity: int, scale: str):
    return CONSTANTS[scale][name][severity - 1]


def test_there_are_nineteen_with_five_severities():
    assert len(CORRUPTIONS) == 19
    assert all(set(table) == set(CORRUPTIONS) for table in CONSTANTS.values())
    assert all(len(row) == 5 for table in CONSTANTS.values() for row in table.values())
    with pytest.raises(ConfigError, match="did you mean 'fog'"):
        corrupt(IMAGES["cifar"], "foq", 1, indices=NUMBERS["cifar"])
    with pytest.raises(ConfigError, match="no severity 6"):
        corrupt(IMAGES["cifar"], "fog", 6, indices=NUMBERS["cifar"])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_corrupted_alike_in_every_batch(name):
    images = IMAGES["cifar"]
    together = corrupt(images, name, 3, indices=NUMBERS["cifar"])
    assert together.shape == images.shape
    assert together.dtype == torch.uint8
    assert not torch.equal(together, images)
    backwards = corrupt(images.flip(0), name, 3, indices=NUMBERS["cifar"].flip(0))
    assert torch.equal(backwards.flip(0), together)
    alone = corrupt(images[2:3], name, 3, indices=torch.tensor([2]))
    assert (alone[0].int() - together[2].int()).abs().max() <= 1
    grey = corrupt(images[:, :1], name, 3, indices=NUMBERS["cifar"])
    assert grey.shape == (6, 1, 32, 32)
    others = corrupt(images, name, 3, indices=NUMBERS["cifar"] + 100)
    plain = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur"}
    assert torch.equal(others, together) == (name in plain or name == "saturate")


def test_corrupting_leaves_the_precision_alone():
    """It is set inside, so that images do not depend on what a training or a measure has asked for."""
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ConfigError, match="no severity"):
            corrupt(IMAGES["cifar"], "fog", 0, indices=NUMBERS["cifar"])
        made("gaussian_blur", 1)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


MONOTONE = [n for n in CORRUPTIONS if n not in ("frost", "glass_blur", "elastic_transform", "spatter", "saturate")]


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
def test_severity_means_more(name, scale):
    """Not so, by their published constants: frost, glass blur, elastic transform, spatter, saturate."""
    strength = [apart(made(name, severity, scale), clean(scale) * 255) for severity in (1, 3, 5)]
    assert strength[0] < strength[1] * 1.02 < strength[2] * 1.04


def test_keyed_numbers():
    random = Keyed(torch.arange(50), 1, torch.device("cpu"))
    uniform, normal = random.uniform(40, 40), random.normal(40, 40)
    assert 0 < uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert torch.histc(uniform, 10, 0, 1).std() / 8000 < 0.02
    assert abs(normal.mean().item()) < 0.01
    assert normal.std().item() == pytest.approx(1, abs=0.01)
    assert (normal**4).mean().item() == pytest.approx(3, abs=0.1)
    flat = uniform.flatten(1)
    assert torch.corrcoef(flat[:20]).fill_diagonal_(0).abs().max() < 0.12
    assert not torch.equal(Keyed(torch.arange(50), 2, torch.device("cpu")).uniform(40, 40), uniform)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
@pytest.mark.parametrize("value", [20, 127, 250])
def test_noise_is_distributed_as_published(severity, scale, value):
    """Flat images; moments and quantiles against numpy's own generators."""
    flat = torch.full((40, 3, 32, 32), value, dtype=torch.uint8)
    level, shape, rng = value / 255, (40, 3, 32, 32), np.random.default_rng(0)
    c = {name: constant(name, severity, scale) for name in CORRUPTIONS if name.endswith("noise")}
    hit, salt = rng.random(shape) < c["impulse_noise"], rng.random(shape) < 0.5
    references = {
        "gaussian_noise": level + rng.normal(0, c["gaussian_noise"], shape),
        "speckle_noise": level + level * rng.normal(0, c["speckle_noise"], shape),
        "shot_noise": rng.poisson(level * c["shot_noise"], shape) / c["shot_noise"],
        "impulse_noise": np.where(hit, salt, level),
    }
    for name, reference in references.items():
        mine = corrupt(flat, name, severity, indices=torch.arange(40), scale=scale).numpy()
        theirs = as_bytes(reference)
        assert mine.mean() == pytest.approx(theirs.mean(), abs=0.01 * 255 * max(theirs.std() / 255, 0.05)), name
        assert mine.std() == pytest.approx(theirs.std(), rel=0.05 if name == "impulse_noise" else 0.03), name
        levels = np.linspace(0, 1, 21)[1:-1]
        assert np.abs(np.quantile(mine, levels) - np.quantile(theirs, levels)).max() <= 3 or name == "shot_noise", name


def test_shot_noise_is_poisson():
    grey = torch.full((60, 1, 32, 32), 51, dtype=torch.uint8)
    out = corrupt(grey, "shot_noise", 5, indices=torch.arange(60), scale="imagenet").numpy()
    photons = np.round(out / 255 * 3)
    for n, chance in ((0, 0.5488), (1, 0.3293), (2, 0.0988)):  # mean 0.2 · 3
        assert (photons == n).mean() == pytest.approx(chance, abs=0.005)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
def test_plain_ones_are_their_definitions(severity, scale):
    images = clean(scale)
    c = constant("gaussian_blur", severity, scale)
    blurred = as_bytes(np.stack([ndimage.gaussian_filter(i, (c, c, 0), mode="nearest") for i in images]))
    assert apart(made("gaussian_blur", severity, scale), blurred) < 0.02
    c = constant("contrast", severity, scale)
    means = images.mean((1, 2), keepdims=True)
    assert apart(made("contrast", severity, scale), as_bytes((images - means) * c + means)) < 0.05
    hsv = matplotlib.colors.rgb_to_hsv(images)
    bright = hsv.copy()
    bright[..., 2] = (bright[..., 2] + constant("brightness", severity, scale)).clip(0, 1)
    bright = as_bytes(matplotlib.colors.hsv_to_rgb(bright) + 1e-9)
    assert apart(made("brightness", severity, scale), bright) < 0.1
    c = constant("saturate", severity, scale)
    hsv[..., 1] = (hsv[..., 1] * c[0] + c[1]).clip(0, 1)
    assert apart(made("saturate", severity, scale), as_bytes(matplotlib.colors.hsv_to_rgb(hsv) + 1e-9)) < 0.1
    side = images.shape[1]
    pictures = [Image.fromarray(i) for i in IMAGES[scale].permute(0, 2, 3, 1).numpy()]
    small = int(side * constant("pixelate", severity, scale))
    box = Image.Resampling.BOX
    coarse = np.stack([np.asarray(p.resize((small, small), box).resize((side, side), box)) for p in pictures])
    assert np.abs(made("pixelate", severity, scale).astype(int) - coarse).max() <= 1
    assert apart(made("pixelate", severity, scale), coarse) < 0.01
    written = []
    for picture in pictures:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=constant("jpeg_compression", severity, scale))
        written.append(np.asarray(Image.open(buffer)))
    assert np.array_equal(made("jpeg_compression", severity, scale), np.stack(written))


@pytest.mark.parametrize("severity", [1, 4, 5])
@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
def test_defocus_is_a_soft_disc(severity, scale):
    radius, soft = constant("defocus_blur", severity, scale)
    reach = 8 if radius <= 8 else radius
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    kernel = (y**2 + x**2 <= radius**2).astype(float)
    kernel /= kernel.sum()
    half = 1 if radius <= 8 else 2
    bell = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * soft**2))
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, bell / bell.sum(), axis, mode="mirror")
    mine = disk(radius, soft, torch.device("cpu")).numpy()
    assert np.allclose(np.pad(mine, (len(kernel) - len(mine)) // 2), kernel, atol=1e-4)
    assert mine[0].max() > 0
    expected = as_bytes(
        np.stack(
            [
                np.stack([ndimage.correlate(i[..., c], kernel, mode="mirror") for c in range(3)], -1)
                for i in clean(scale)
            ]
        )
    )
    assert apart(made("defocus_blur", severity, scale), expected) < 0.1


@pytest.mark.parametrize(("severity", "scale"), [(1, "cifar"), (5, "cifar"), (3, "imagenet"), (5, "imagenet")])
def test_zoom_blur_is_the_mean_of_zooms(severity, scale):
    images = clean(scale)
    factors = np.arange(1, *constant("zoom_blur", severity, scale))

    def zoom(image: np.ndarray, factor: float) -> np.ndarray:
        side = len(image)
        kept = int(np.ceil(side / factor))
        start = (side - kept) // 2
        large = ndimage.zoom(image[start : start + kept, start : start + kept], (factor, factor, 1), order=1)
        trim = (len(large) - side) // 2
        return large[trim : trim + side, trim : trim + side]

    expected = np.stack([(i + sum(zoom(i, f) for f in factors)) / (len(factors) + 1) for i in images])
    assert apart(made("zoom_blur", severity, scale), as_bytes(expected)) < 0.1


@pytest.mark.parametrize(("radius", "sigma", "angle"), [(6, 2.0, 0.0), (9, 2.5, 37.0), (10, 4.0, -110.0)])
def test_motion_is_one_sided_along_its_angle(radius, sigma, angle):
    """ImageMagick's definition: a point becomes a tail whose weights fall off like a Gaussian."""
    images = torch.from_numpy(clean("cifar")).permute(0, 3, 1, 2)
    out = motion(images, radius, sigma, torch.full((len(images),), angle))
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    expected = np.zeros((3, 32, 32))
    padded = np.pad(images[0].numpy(), ((0, 0), (40, 40), (40, 40)), mode="edge")
    for tap, weight in enumerate(weights / weights.sum()):
        dx = int(np.ceil(tap * np.cos(np.radians(angle)) - 0.5))
        dy = int(np.ceil(tap * np.sin(np.radians(angle)) - 0.5))
        expected += weight * padded[:, 40 + dy : 72 + dy, 40 + dx : 72 + dx]
    assert np.allclose(out[0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("reach", "side"), [(1, 32), (2, 32), (4, 40)])
def test_glass_shuffle_is_the_loop_it_replaces(reach, side):
    images = photographs(2, side).float()
    draws = torch.rand(2, 2, side, side, generator=torch.Generator().manual_seed(0))
    expected = images.clone()
    offset = (draws * 2 * reach).long() - reach
    for image, (dy, dx) in zip(expected, offset, strict=True):
        for h in range(side - reach, reach, -1):
            for w in range(side - reach, reach, -1):
                image[:, h, w] = image[:, h + dy[h, w], w + dx[h, w]]
    assert torch.equal(shuffled(images, reach, draws), expected)


def test_glass_blur_keeps_colours_and_loses_neighbours():
    out = made("glass_blur", 5).astype(float)
    before = clean("cifar") * 255
    assert np.abs(out.mean((1, 2)) - before.mean((1, 2))).max() < 12
    assert apart(out, before) > 3


def test_elastic_without_a_field_is_an_affine_map():
    """Severity 1 of CIFAR moves three corners only: the map that best explains the image is affine."""
    y, x = np.mgrid[:32, :32]
    ramp = torch.from_numpy(np.stack([4 + 3 * x + y, 4 + x + 3 * y, 128 + x - y]).astype(np.uint8))[None]
    out = corrupt(ramp, "elastic_transform", 1, indices=torch.tensor([5]))[0].numpy().astype(float)
    inner = (slice(10, 22), slice(10, 22))
    plane = np.stack([np.ones(144), y[inner].ravel(), x[inner].ravel()], 1)
    for channel in out:
        _, residual, *_ = np.linalg.lstsq(plane, channel[inner].ravel(), rcond=None)
        assert np.sqrt(residual[0] / 144) < 0.5
    moved = np.abs(out - ramp[0].numpy()).mean()
    assert 0.5 < moved < 20


def test_elastic_field_is_smoothed_noise():
    """A ramp shows the displacements: their spread is that of uniform noise through the published filter."""
    x = torch.arange(64, dtype=torch.uint8)[None, :].expand(64, 64) * 3
    ramps = x.expand(8, 3, 64, 64).contiguous()
    strength, sigma, _ = (c * 64 for c in constant("elastic_transform", 5, "cifar"))
    out = corrupt(ramps, "elastic_transform", 5, indices=torch.arange(8)).float()[:, 0].numpy() / 3
    inner = (slice(None), slice(20, 44), slice(20, 44))
    rough = (out - ndimage.gaussian_filter(out, (0, 4, 4)))[inner]
    field = np.random.default_rng(0).uniform(-1, 1, (8, 64, 64))
    smooth = ndimage.gaussian_filter(field, (0, sigma, sigma), mode="reflect", truncate=3) * strength
    expected = (smooth - ndimage.gaussian_filter(smooth, (0, 4, 4)))[inner]
    assert rough.std() == pytest.approx(expected.std(), rel=0.15)


def test_plasma_is_the_published_fractal():
    """Its finest step adds uniform noise of known size to the mean of four neighbours."""
    random = Keyed(torch.arange(300), 3, torch.device("cpu"))
    heights = plasma_fractal(32, 3.0, random).double()
    assert torch.equal(heights.amin((1, 2)), torch.zeros(300, dtype=torch.float64))
    assert torch.equal(heights.amax((1, 2)), torch.ones(300, dtype=torch.float64))
    corners = heights[:, ::2, ::2]
    mean = (corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))) / 4
    noise = heights[:, 1::2, 1::2] - mean
    coarser = heights[:, ::4, ::4]
    coarse_mean = (coarser + coarser.roll(-1, 1) + coarser.roll(-1, 2) + coarser.roll((-1, -1), (1, 2))) / 4
    coarse = heights[:, 2::4, 2::4] - coarse_mean
    ratio = (coarse.std((1, 2)) / noise.std((1, 2))).median().item()
    assert ratio == pytest.approx(9, rel=0.1)  # the size goes with the square of the decay


def test_fog_keeps_the_brightest_value_in_bounds():
    images = IMAGES["imagenet"]
    out = made("fog", 5, "imagenet")
    assert out.max() <= images.max().item()
    spread = [clean("imagenet").std((1, 2)).mean(), (out / 255).std((1, 2)).mean()]
    assert spread[1] < spread[0]


def test_snow_brightens_in_streaks():
    black = torch.zeros(4, 3, 64, 64, dtype=torch.uint8)
    out = corrupt(black, "snow", 3, indices=torch.arange(4)).float() / 255
    kept = constant("snow", 3, "cifar")[-1]
    assert out.min().item() == pytest.approx((1 - kept) * 0.5, abs=0.01)
    assert out.max() > 0.2
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.allclose(out, out.flip(2, 3), atol=1 / 255 + 1e-6)


PUBLISHED_FROST = {
    "cifar": {"side": 32, "colour": (144, 165, 177), "contrast": 14.7, "slope": -0.86, "distance": (30.7, 48.7, 41.1)},
    "imagenet": {
        "side": 224,
        "colour": (144, 165, 177),
        "contrast": 23.3,
        "slope": -0.78,
        "distance": (59.9, 74.0, 72.9),
    },
}
"""Measured on 300 crops of the pictures of the published program: the mean colour and the contrast of a crop, the slope
of its amplitude spectrum, and the mean distance from `photographs` at severities 1, 3 and 5."""


def spectral_slope(images: np.ndarray) -> float:
    """Slope of log amplitude over log frequency, of windowed (B, H, W)."""
    side = images.shape[1]
    window = np.outer(np.hanning(side), np.hanning(side))
    powers = np.abs(np.fft.fft2((images - images.mean((1, 2), keepdims=True)) * window)) ** 2
    mean = np.fft.fftshift((powers / images.var((1, 2), keepdims=True)).mean(0))
    y, x = np.indices(mean.shape) - side // 2
    ring = np.hypot(x, y).astype(int).ravel()
    profile = np.bincount(ring, mean.ravel()) / np.bincount(ring)
    frequency = np.arange(2, side // 3)
    return float(np.polyfit(np.log(frequency), 0.5 * np.log(profile[frequency]), 1)[0])


@pytest.mark.parametrize("scale", PUBLISHED_FROST)
def test_frosted_pane_has_the_published_colour_contrast_and_spectrum(scale):
    published = PUBLISHED_FROST[scale]
    panes = 255 * frosted_pane(published["side"], Keyed(torch.arange(100), 0, torch.device("cpu"))).numpy()
    assert panes.shape == (100, 3, published["side"], published["side"])
    assert panes.mean((0, 2, 3)) == pytest.approx(published["colour"], rel=0.08)
    luminance = np.einsum("bchw,c->bhw", panes, (0.299, 0.587, 0.114))
    assert luminance.std((1, 2)).mean() == pytest.approx(published["contrast"], rel=0.1)
    assert spectral_slope(luminance) == pytest.approx(published["slope"], abs=0.25)
    assert np.abs(panes[0] - panes[1]).mean() > 5


@pytest.mark.parametrize("scale", PUBLISHED_FROST)
def test_frost_is_as_far_from_the_image_as_published(scale):
    images = photographs(6, PUBLISHED_FROST[scale]["side"])[torch.arange(150) % 6]
    found = [
        apart(corrupt(images, "frost", severity, indices=torch.arange(150), scale=scale).numpy(), images.numpy())
        for severity in (1, 3, 5)
    ]
    assert found == pytest.approx(PUBLISHED_FROST[scale]["distance"], rel=0.08)


def test_frost_adds_to_what_is_left_of_the_image():
    c = constant("frost", 3, "imagenet")
    white = torch.full((4, 3, 96, 96), 255, dtype=torch.uint8)
    assert corrupt(white, "frost", 3, indices=torch.arange(4)).min() >= int(255 * c[0])


def test_spatter_is_water_or_mud():
    white = torch.full((4, 3, 32, 32), 255, dtype=torch.uint8)
    mud = corrupt(white, "spatter", 5, indices=torch.arange(4)).permute(0, 2, 3, 1).reshape(-1, 3)
    dirty = mud[(mud < 250).any(1)].float()
    assert 0.01 < len(dirty) / len(mud) < 0.6
    assert (dirty[:, 0] > dirty[:, 1]).all()
    assert (dirty[:, 1] > dirty[:, 2]).all()
    black = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    water = corrupt(black, "spatter", 2, indices=torch.arange(4)).float()
    assert 0 < water.max() <= 0.5 * 238 + 1
    wet = water[:, 1] > 20
    assert (water[:, 0][wet] / water[:, 1][wet]).mean().item() == pytest.approx(175 / 238, abs=0.03)


def test_distances_and_histograms_of_spatter():
    edge = torch.zeros(2, 1, 50, 50, dtype=torch.bool)
    edge[0, 0, 10, 12] = edge[0, 0, 40, 3] = edge[1, 0, 25, 25] = True
    for mine, mask in zip(_distance(edge), edge.numpy(), strict=True):
        expected = ndimage.distance_transform_edt(~mask[0]).clip(max=20)
        assert np.allclose(mine[0].numpy(), expected, atol=1e-5)
    values = torch.randint(3, 9, (1, 1, 64, 64), generator=torch.Generator().manual_seed(0)).float()
    out = _equalised(values)
    assert out.min() == 0
    assert out.max() == 255
    assert torch.equal(_equalised(torch.full((1, 1, 4, 4), 7.0)), torch.full((1, 1, 4, 4), 7.0))


def test_zoomed_keeps_the_size():
    for side in (31, 32, 96):
        for factor in (1.0, 1.01, 1.37, 4.5):
            assert zoomed(torch.rand(1, 1, side, side), factor).shape == (1, 1, side, side)
