from __future__ import annotations

import math
import weakref
from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from torchvision.transforms import ColorJitter, InterpolationMode, RandomErasing, autoaugment

from steppe.config import AugmentConfig, DataConfig
from steppe.data import Augment, Draws, Loader, Source, Split, divide, load
from steppe.data.augment import cut_out, draw_boxes, draw_erased_boxes, jitter_colours, mix, shift
from steppe.data.policies import FILL, OPERATIONS, POLICIES, AutoAugment, Operations, RandAugment, TrivialAugment
from steppe.data.resample import resize, resize_boxes
from steppe.errors import ConfigError

CPU = torch.device("cpu")


def pictures(count: int = 24, side: int = 32, channels: int = 3) -> torch.Tensor:
    """Smooth pictures with some texture: real enough for operations on histograms and edges."""
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.random((count, channels, 5, 5)) * 255)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    return (smooth + torch.from_numpy(rng.normal(0, 6, smooth.shape))).clamp(0, 255).to(torch.uint8)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def dataset(count: int = 240, side: int = 32, image_size: int | None = None, channels: int = 3):
    images = pictures(count, side, channels)
    splits = [Split(images[i::3], torch.arange(count // 3) % 4) for i in range(3)]
    return divide(Source(("a", "b", "c", "d"), *splits), DataConfig(name="made", image_size=image_size))


def loader(data, **changes) -> Loader:
    options = {"batch_size": 16, "augment": AugmentConfig(), "seed": 0, "device": CPU}
    return Loader(data, **{**options, **changes})


def apply(name: str, images: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    operations = Operations([("identity", 0.0), (name, value)], images.shape[-1], CPU)
    return operations(images, torch.ones(len(images), dtype=torch.int64))


def test_shift_gives_every_window_of_the_padded_image():
    images = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(400, 1, 4, 4)
    out = shift(images, 1, uniform(400, 2))
    padded = torch.nn.functional.pad(images[0, 0], (1, 1, 1, 1))
    allowed = {bytes(padded[i : i + 4, j : j + 4].contiguous().numpy()) for i in range(3) for j in range(3)}
    assert {bytes(o.contiguous().numpy()) for o in out} == allowed


def test_shift_reflects_the_image_at_its_border():
    images = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5).expand(900, 1, 5, 5)
    out = shift(images, 2, uniform(900, 2), reflect=True)
    padded = torch.nn.functional.pad(images[:1].float(), (2, 2, 2, 2), mode="reflect")[0, 0].to(torch.uint8)
    allowed = {bytes(padded[i : i + 5, j : j + 5].contiguous().numpy()) for i in range(5) for j in range(5)}
    assert {bytes(o.contiguous().numpy()) for o in out} == allowed


def test_reflecting_more_than_the_image_is_refused():
    with pytest.raises(ConfigError, match="reflects 32 pixels"):
        Augment(dataset(), AugmentConfig(crop_padding=32, crop_reflect=True), CPU)


def test_draws_of_an_epoch_do_not_depend_on_its_length():
    config = AugmentConfig(crop_padding=2)
    short, long = (Draws(config, 2, 8, 0, CPU, batches=batches) for batches in (3, None))
    assert torch.equal(short.of(1, 2)[0], long.of(1, 2)[0])


def test_flip_mirrors_half_of_the_images():
    data = dataset()
    plain, config = loader(data), AugmentConfig(flip=True)
    pairs = [(plain.batch(0, i)[0], loader(data, augment=config).batch(0, i)[0]) for i in range(5)]
    before, after = (torch.cat(images) for images in zip(*pairs, strict=True))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m or s for m, s in zip(mirrored, same, strict=True))
    assert 20 < sum(mirrored) < 60


def mirrored_images(some: Loader, data, epoch: int, view: int = 0) -> dict[int, bool]:
    """Which images of the training set an epoch mirrors, by their number."""
    plain, found = loader(data), {}
    for index in range(len(some)):
        for number, own, other in zip(
            some.picked(epoch, index).tolist(),
            some.batch(epoch, index, view)[0],
            plain.batch(epoch, index)[0],
            strict=True,
        ):
            assert torch.equal(own, other) or torch.equal(own, other.flip(-1))
            found[number] = not torch.equal(own, other)
    return found


@pytest.mark.parametrize("resident", [True, False])
def test_alternate_flip_mirrors_each_image_in_every_second_epoch(resident):
    data = dataset(960)
    some = loader(data, augment=AugmentConfig(flip=True, alternate_flip=True), resident=resident)
    epochs = [mirrored_images(some, data, epoch) for epoch in (0, 1, 2, 5)]
    assert len(epochs[0]) == len(some.split) // 16 * 16
    assert 0.4 < sum(epochs[0].values()) / len(epochs[0]) < 0.6
    for number, mirrored in epochs[0].items():
        for turn, epoch in ((True, 1), (False, 2), (True, 3)):
            assert epochs[epoch].get(number, mirrored != turn) == (mirrored != turn)


def test_alternate_flip_begins_with_other_images_for_another_seed_or_view():
    data = dataset()
    config = AugmentConfig(flip=True, alternate_flip=True)
    first = mirrored_images(loader(data, augment=config), data, 0)
    assert mirrored_images(loader(data, augment=config), data, 0) == first
    assert mirrored_images(loader(data, augment=config), data, 0, view=1) != first
    draws = [Augment(data, config, CPU).draws(16, seed) for seed in (0, 1)]
    rows = [some.alternate(torch.zeros(60, 1), torch.arange(60), 0) for some in draws]
    assert not torch.equal(*rows)


@pytest.mark.parametrize("crop", [{"crop_padding": 4}, {"resized_crop": 0.3}])
def test_alternate_flip_leaves_the_other_draws_alone(crop):
    """An image that a plain flip treats alike comes out alike; every other one comes out mirrored."""
    data = dataset()
    options = {**crop, "flip": True, "cutout": 8}
    plain = loader(data, augment=AugmentConfig.model_validate(options)).batch(0, 0)[0]
    config = AugmentConfig.model_validate({**options, "alternate_flip": True})
    some = loader(data, augment=config)
    draws = some._draws_of(0)
    before = draws.of(0, 0)[0]
    after = draws.alternate(before, some.picked(0, 0), 0)
    column = 2 if "crop_padding" in crop else 4
    alike = (before[:, column] < 0.5) == (after[:, column] < 0.5)
    assert 0 < alike.sum() < len(alike)
    assert torch.equal(some.batch(0, 0)[0][alike], plain[alike])
    rest = [place for place in range(before.shape[1]) if place != column]
    assert torch.equal(before[:, rest], after[:, rest])


def reference(name: str, image: torch.Tensor, value: float) -> torch.Tensor:
    fill = [float(FILL)] * image.shape[0]
    nearest = InterpolationMode.NEAREST
    names = {"shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX", "translate_y": "TranslateY"}
    if name == "invert":
        return TF.invert(image)
    if name in ("brightness", "color", "contrast", "sharpness"):
        value -= 1
    return autoaugment._apply_op(
        image, names.get(name, name.title().replace("contrast", "Contrast")), value, nearest, fill
    )


VALUES = {
    "shear_x": (-0.3, 0.2),
    "shear_y": (-0.1, 0.3),
    "translate_x": (-14.0, 3.0),
    "translate_y": (-3.0, 14.0),
    "rotate": (-30.0, 11.0),
    "brightness": (0.1, 1.9),
    "color": (0.1, 1.264, 1.9),
    "contrast": (0.1, 1.264, 1.9),
    "sharpness": (0.1, 1.264, 1.9),
    "posterize": (4.0, 7.0),
    "solarize": (0.0, 110.0),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_are_torchvisions(name, channels):
    images = pictures(channels=channels)
    for value in VALUES.get(name, (0.0,)):
        mine = apply(name, images, value)
        if name == "autocontrast":
            theirs = torch.stack([TF.autocontrast(i) for i in images])
        elif name == "color" and channels == 1:
            theirs = images
        else:
            theirs = torch.stack([reference(name, i, value) for i in images])
        if name in ("rotate", "shear_x", "shear_y"):  # half way between two pixels, a coordinate may round either way
            assert (mine == theirs).float().mean() > 0.97
        else:
            assert torch.equal(mine, theirs)


def test_equalize_leaves_flat_images_alone():
    images = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    for name in ("equalize", "autocontrast"):
        assert torch.equal(apply(name, images), images)


EVERY = [(name, value) for name in OPERATIONS for value in VALUES.get(name, (0.0,))]


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_has_an_operation_of_its_own(channels):
    images = pictures(len(EVERY), channels=channels)
    together = Operations(EVERY, 32, CPU)(images, torch.arange(len(EVERY)))
    for number, (name, value) in enumerate(EVERY):
        one = slice(number, number + 1)
        assert torch.equal(together[one], apply(name, images[one], value)), name


@pytest.mark.parametrize(("channels", "side"), [(1, 32), (3, 32), (3, 2)])
def test_the_whole_batch_way_of_accelerators_gives_the_same(channels, side):
    images = pictures(64, side, channels)
    rows = torch.arange(64) % len(EVERY)
    operations = Operations(EVERY, side, CPU)
    whole = operations.blend(operations.map_values(operations.move(images, rows), rows), rows)
    assert torch.equal(whole, operations(images, rows))


@pytest.mark.parametrize("name", list(POLICIES))
def test_autoaugment_has_the_published_policies(name):
    kind = autoaugment.AutoAugmentPolicy.CIFAR10 if name == "cifar10" else autoaugment.AutoAugmentPolicy.IMAGENET
    theirs = autoaugment.AutoAugment(kind)
    mine = AutoAugment(name, 32, CPU)
    space = theirs._augmentation_space(10, (32, 32))
    for row, pair in enumerate(theirs.policies):
        for place, (operation, chance, level) in enumerate(pair):
            (name, plus), (again, minus) = mine.operations.cells[1 + 4 * row + 2 * place :][:2]
            assert name == again
            assert name.replace("_", "") == operation.lower()
            assert mine._chance[row, place] == pytest.approx(chance)
            if level is not None:
                strength = float(space[operation][0][level])
                base = 1.0 if name in ("brightness", "color", "contrast", "sharpness") else 0.0
                assert plus == pytest.approx(base + strength, abs=1e-4)
                assert minus == pytest.approx(base - strength if space[operation][1] else strength, abs=1e-4)


def test_autoaugment_draws_as_its_probabilities_say():
    """Draws that choose the pair (rotate .7, translate_x .3): both, one and none of its operations."""
    images = pictures(4)
    policy = AutoAugment("cifar10", 32, CPU)
    draws = torch.tensor([[0.05, 0.69, 0.31, 0.9, 0.9], [0.05, 0.71, 0.29, 0.9, 0.1], [0.05, 0.71, 0.31, 0, 0]])
    out = policy(images[:3], draws)
    turned = reference("rotate", images[0], 30 * 2 / 9)
    assert (out[0] == turned).float().mean() > 0.99
    assert torch.equal(out[1], reference("translate_x", images[1], -float(int(150 / 331 * 32))))
    assert torch.equal(out[2], images[2])


def test_randaugment_uses_its_fourteen_operations_evenly():
    images = pictures(1).expand(1400, 3, 32, 32)
    draws = torch.stack([torch.arange(1400) / 1400, uniform(1400)], 1)
    out = RandAugment(1, 9, 32, CPU)(images, draws).view(14, 100, -1)
    for number, name in enumerate(OPERATIONS[:14]):
        kinds = len(torch.unique(out[number], dim=0))
        assert kinds == (2 if name in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate") else 1), name
    assert torch.equal(out[0, 0], images[0].flatten())
    assert RandAugment(2, 15, 224, CPU).columns == 4


TRIVIAL_NAMES = {
    "Identity": "identity",
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "color",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
}


def trivial_draws(operation: int, strength: int, sign: int) -> list[float]:
    """Draws that choose this cell, in the middle of their share of 0 to 1."""
    return [(operation + 0.5) / 14, (strength + 0.5) / 31, 0.75 if sign > 0 else 0.25]


@pytest.mark.parametrize("number", range(14), ids=list(TRIVIAL_NAMES))
def test_trivialaugment_is_torchvisions_at_every_strength(number):
    theirs = autoaugment.TrivialAugmentWide()
    images = pictures(2)
    policy = TrivialAugment(32, CPU)
    (name, (strengths, signed)) = list(theirs._augmentation_space(31).items())[number]
    for place in range(31):
        for sign in (1, -1):
            strength = float(strengths[place] if strengths.ndim else strengths) * (sign if signed else 1)
            mine = policy(images, torch.tensor([trivial_draws(number, place, sign)] * 2))
            fill = [float(FILL)] * 3
            other = torch.stack(
                [autoaugment._apply_op(image, name, strength, InterpolationMode.NEAREST, fill) for image in images]
            )
            if name in ("Rotate", "ShearX", "ShearY"):  # half way between two pixels, a coordinate may round either way
                assert (mine == other).float().mean() > 0.97
            else:
                assert torch.equal(mine, other)


def test_trivialaugment_has_torchvisions_operations_in_its_order():
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    assert list(space) == list(TRIVIAL_NAMES)
    policy = TrivialAugment(32, CPU)
    assert [name for name, _ in policy.operations.cells[::62]] == list(TRIVIAL_NAMES.values())


def test_trivialaugment_draws_operations_strengths_and_signs_evenly():
    policy = TrivialAugment(8, CPU)
    seen = []
    policy.operations = lambda images, rows: seen.append(rows) or images
    policy(pictures(1, 8).expand(86800, 3, 8, 8), uniform(86800, 3))
    counts = torch.bincount(seen[0], minlength=14 * 31 * 2)
    assert len(counts) == 14 * 31 * 2
    assert abs(((counts - 100) ** 2 / 100).sum().item() - 867) < 5 * math.sqrt(2 * 867)  # chi-squared


@pytest.mark.parametrize(("box", "size"), [((0, 0, 32, 32), 48), ((3, 5, 20, 11), 32), ((1, 0, 30, 31), 12)])
def test_boxes_are_resized_as_torchvision_does(box, size):
    images = pictures(3)
    boxes = torch.tensor([box] * 3)
    expected = TF.resized_crop(images.float(), *box, size=[size, size], antialias=True)
    assert torch.allclose(resize_boxes(images, boxes, size), expected, atol=2e-3)
    flags = torch.tensor([True, False, True])
    mirrored = resize_boxes(images, boxes, size, flags)
    assert torch.allclose(mirrored[0], expected[0].flip(-1), atol=2e-3)
    assert torch.allclose(mirrored[1], expected[1], atol=2e-3)


def test_resize_is_bilinear_up_and_antialiased_down():
    images = pictures(2)
    for size in (16, 80):
        expected = TF.resize(images.float(), [size, size], antialias=True)
        assert torch.allclose(resize(images, size), expected, atol=1e-3)


def test_inception_crops_have_the_published_distribution():
    boxes = draw_boxes(uniform(20000, 22), 0.08, 224)
    top, left, height, width = boxes.unbind(1)
    assert bool(((top >= 0) & (left >= 0) & (top + height <= 224) & (left + width <= 224)).all())
    area, ratio = height * width / 224**2, (width / height).log()
    assert area.min() > 0.07
    assert ratio.abs().max() < math.log(4 / 3) + 0.05
    torch.manual_seed(0)
    from torchvision.transforms import RandomResizedCrop

    theirs = torch.tensor(
        [RandomResizedCrop.get_params(torch.empty(3, 224, 224), [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    ).float()
    for mine, other in ((area, theirs[:, 2] * theirs[:, 3] / 224**2), (top, theirs[:, 0]), (width, theirs[:, 3])):
        assert mine.mean().item() == pytest.approx(other.mean().item(), rel=0.05)
        assert mine.std().item() == pytest.approx(other.std().item(), rel=0.06)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_colour_jitter_is_torchvisions_in_every_order(channels, order):
    images = pictures(8, channels=channels)
    factors = uniform(8, 3)
    ranks = torch.tensor([[order.index(kind) / 3 for kind in range(3)]]).expand(8, 3)
    mine = jitter_colours(images, 0.6, torch.cat([ranks, factors], 1)) / 255
    changes = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)
    for image, own, out in zip(images / 255, 0.4 + 1.2 * factors, mine, strict=True):
        for kind in order:
            image = changes[kind](image, float(own[kind]))
        torch.testing.assert_close(out, image, atol=1e-5, rtol=0)


def test_colour_jitter_has_torchvisions_distribution():
    theirs = ColorJitter(0.4, 0.4, 0.4)
    images = pictures(1).expand(1500, 3, 32, 32)
    torch.manual_seed(0)
    other = torch.stack([theirs(image) for image in images / 255])
    mine = jitter_colours(images, 0.4, uniform(1500, 6)) / 255
    for figure in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x.std(1).mean((1, 2))):
        assert figure(mine).mean().item() == pytest.approx(figure(other).mean().item(), rel=0.03)
        assert figure(mine).std().item() == pytest.approx(figure(other).std().item(), rel=0.07)


def test_colour_jitter_takes_no_negative_factor():
    dark = jitter_colours(pictures(1), 3.0, torch.tensor([[0.0, 0.5, 0.9, 0.0, 0.3, 0.3]]))
    assert torch.equal(dark, torch.zeros(1, 3, 32, 32))


def test_cutout_blanks_one_square():
    out = cut_out(torch.ones(300, 3, 16, 16), 6, uniform(300, 2))
    blank = (out == 0).sum((1, 2, 3)) / 3
    assert blank.max() == 36
    assert blank.min() >= 9
    corner = cut_out(torch.ones(1, 1, 16, 16), 6, torch.tensor([[0.0, 0.999]]))[0, 0]
    assert corner[:3, 12:].sum() == 0
    assert corner.sum() == 256 - 12


@pytest.mark.parametrize("side", [32, 224])
def test_erased_boxes_have_torchvisions_distribution(side):
    top, left, height, width = draw_erased_boxes(uniform(20000, 23), 1.0, side).unbind(1)
    assert bool(((top >= 0) & (left >= 0) & (top + height <= side) & (left + width <= side)).all())
    torch.manual_seed(0)
    image, theirs = torch.empty(3, side, side), []
    for _ in range(4000):
        theirs.append(RandomErasing.get_params(image, (0.02, 1 / 3), (0.3, 10 / 3), [0.0])[:4])
    other = torch.tensor(theirs).float().unbind(1)
    area, ratio = height * width / side**2, (height / width).log()
    their_area, their_ratio = other[2] * other[3] / side**2, (other[2] / other[3]).log()
    assert ratio.mean().item() == pytest.approx(their_ratio.mean().item(), abs=0.05)
    assert ratio.std().item() == pytest.approx(their_ratio.std().item(), rel=0.05)
    for mine, their in ((area, their_area), (top, other[0]), (left, other[1]), (height, other[2]), (width, other[3])):
        assert mine.mean().item() == pytest.approx(their.mean().item(), rel=0.05)
        assert mine.std().item() == pytest.approx(their.std().item(), rel=0.06)


def test_erasing_blanks_one_box_in_its_share_of_the_images():
    data = dataset(1200)
    erased = [loader(data, augment=AugmentConfig(erasing=0.3)).batch(0, i)[0] for i in range(22)]
    plain = [loader(data).batch(0, i)[0] for i in range(22)]
    after, before = torch.cat(erased), torch.cat(plain)
    blank = ((after == 0) & (before != 0)).any(1)
    assert torch.equal(after, torch.where(blank[:, None], 0.0, before))
    touched = blank.flatten(1).any(1)
    assert touched.float().mean() == pytest.approx(0.3, abs=0.07)
    for mask in blank[touched]:
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
        assert mask.sum() >= 0.97 * height * width  # a pixel may have been 0 already
        assert 0.01 < height * width / 32**2 < 0.36


def test_erasing_leaves_the_other_draws_alone():
    data = dataset()
    config = {"resized_crop": 0.3, "flip": True, "cutout": 8}
    change = Augment(data, AugmentConfig.model_validate({**config, "erasing": 1e-9}), CPU)
    images, labels = data.train.images[:16], data.train.labels[:16]
    rows = uniform(16, change.columns)
    alone = Augment(data, AugmentConfig.model_validate(config), CPU)
    one = change(images, labels, change._prepare(rows), torch.empty(0))[0]
    other = alone(images, labels, alone._prepare(rows[:, : alone.columns]), torch.empty(0))[0]
    assert torch.equal(one, other)


def test_mixup_mixes_images_and_targets_alike():
    images, targets = torch.randn(4, 3, 8, 8), torch.eye(4)
    mixed, soft = mix(images, targets, torch.tensor([0.7, 1.0, 0.5, 0.5]), cutmix=False)
    assert torch.allclose(mixed[1], 0.7 * images[1] + 0.3 * images[0], atol=1e-6)
    assert torch.allclose(soft[1], torch.tensor([0.3, 0.7, 0, 0]))


def test_cutmix_counts_the_pixels_it_pasted():
    images, targets = torch.randn(4, 3, 16, 16), torch.eye(4)
    for kept, y, x in ((0.75, 0.5, 0.5), (0.5, 0.0, 0.9), (0.2, 0.3, 0.99), (1.0, 0.5, 0.5)):
        mixed, soft = mix(images, targets, torch.tensor([1.0, kept, y, x]), cutmix=True)
        pasted = (mixed[1] == images[0]).all(0)
        assert torch.equal((mixed[1] == images[1]).all(0), ~pasted)
        assert soft[1, 0] == pytest.approx(pasted.float().mean().item(), abs=1e-6)
        assert soft.sum(1) == pytest.approx(1.0)
        if (kept, y) == (0.75, 0.5):
            assert pasted.sum() == 64
        rows, columns = pasted.any(1).sum(), pasted.any(0).sum()
        assert pasted.sum() == rows * columns


def test_mixing_draws():
    config = AugmentConfig(mixup=0.2, cutmix=1.0, mixup_probability=0.5)
    draws = Draws(config, 1, 8, 0, CPU)
    rows = torch.stack([draws.of(0, i)[1] for i in range(2000)])
    up, cut = rows[:, 0] < 1, rows[:, 1] < 1
    assert not bool((up & cut).any())
    assert up.float().mean() == pytest.approx(0.25, abs=0.04)
    assert cut.float().mean() == pytest.approx(0.25, abs=0.04)
    assert rows[cut, 1].std() == pytest.approx(math.sqrt(1 / 12), abs=0.03)
    assert rows[up, 0].var() == pytest.approx(0.04 / (0.4**2 * 1.4), abs=0.03)


EVERYTHING = [
    {"crop_padding": 4, "flip": True},
    {"resized_crop": 0.08, "flip": True, "randaugment": 2, "randaugment_magnitude": 15, "mixup": 0.5},
    {"crop_padding": 4, "flip": True, "autoaugment": "cifar10", "cutout": 8, "cutmix": 1.0},
    {"crop_padding": 4, "crop_reflect": True, "flip": True, "trivialaugment": True, "colour_jitter": 0.3},
    {"resized_crop": 0.5, "flip": True, "alternate_flip": True, "colour_jitter": 0.4, "erasing": 0.5, "cutmix": 1.0},
]


@pytest.mark.parametrize("options", EVERYTHING)
@pytest.mark.parametrize("image_size", [None, 40])
def test_a_batch_is_a_function_of_seed_epoch_and_index(options, image_size):
    data = dataset(image_size=image_size)
    config = AugmentConfig.model_validate(options)
    one, two = loader(data, augment=config), loader(data, augment=config)
    first = {key: one.batch(*key) for key in ((0, 0), (0, 1), (2, 3))}
    for key in ((2, 3), (0, 0), (0, 1)):
        images, targets = two.batch(*key)
        assert torch.equal(images, first[key][0])
        assert torch.equal(targets, first[key][1])
        assert images.shape == (16, 3, image_size or 32, image_size or 32)
        assert bool(torch.isfinite(images).all())
    assert not torch.equal(first[0, 0][0], loader(data, augment=config, seed=1).batch(0, 0)[0])
    if config.mixes:
        assert targets.shape == (16, 4)
        assert targets.sum(1) == pytest.approx(1.0)
    else:
        assert targets.dtype == torch.int64


@pytest.mark.parametrize("options", EVERYTHING)
def test_the_augmentation_is_one_graph_of_fixed_shapes(options):
    """Traced whole, without a break and without a value asked of the host: it can be compiled or captured."""
    data = dataset()
    change = Augment(data, AugmentConfig.model_validate(options), CPU)
    draws, mixing = change.draws(16, 0).of(0, 0)
    images, labels = data.train.images[:16], data.train.labels[:16]
    traced = torch.compile(change.__call__, backend="eager", fullgraph=True)(images, labels, draws, mixing)
    for mine, theirs in zip(traced, change(images, labels, draws, mixing), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("alternate", [False, True])
def test_ranks_share_a_batch(alternate):
    data = dataset()
    config = AugmentConfig(crop_padding=4, flip=True, alternate_flip=alternate)
    whole = loader(data, augment=config).batch(1, 2)
    parts = [loader(data, augment=config, rank=r, ranks=3).batch(1, 2) for r in range(3)]
    assert torch.equal(torch.cat([p[0] for p in parts]), whole[0])
    assert torch.equal(torch.cat([p[1] for p in parts]), whole[1])


@pytest.mark.parametrize("resident", [True, False])
def test_views_are_other_augmentations_of_the_same_images(resident):
    data = dataset()
    some = loader(data, augment=AugmentConfig(crop_padding=4, flip=True), resident=resident)
    first, second, again = some.batch(1, 1), some.batch(1, 1, view=1), some.batch(1, 1)
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], again[0])
    plain = loader(data, resident=resident)
    assert torch.equal(plain.batch(1, 1)[0], plain.batch(1, 1, view=1)[0])


def test_a_loader_that_is_done_with_is_gone_at_once():
    """Its images may fill a GPU; they must not wait for the garbage collector."""
    some = loader(dataset(), augment=AugmentConfig(crop_padding=4, randaugment=2))
    some.batch(0, 0)
    gone = weakref.ref(some)
    del some
    assert gone() is None


def test_channels_last_changes_the_layout_alone():
    data = dataset()
    images = loader(data, channels_last=True).batch(0, 0)[0]
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, loader(data).batch(0, 0)[0])


def test_draws_are_the_same_in_every_version():
    """A change here changes every augmented run: make it on purpose only."""
    numbers = Draws(AugmentConfig(flip=True), 2, 2, 0, CPU).of(3, 1)[0]
    assert numbers.flatten().tolist() == pytest.approx([0.57080477, 0.85234731, 0.44284946, 0.76204795], abs=1e-7)


def test_draws_never_reach_one():
    draws = Draws(AugmentConfig(flip=True), 64, 512, 0, CPU)
    numbers = draws.of(0, 0)[0]
    assert numbers.max() < 1
    assert int((numbers.max() * 257).item()) <= 256
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)


def test_points_can_only_be_mixed():
    toy = load(DataConfig(name="toy_rings"))
    for config in (AugmentConfig(flip=True), AugmentConfig(colour_jitter=0.4)):
        with pytest.raises(ConfigError, match="points, not pictures"):
            Augment(toy, config, CPU)
    images, targets = loader(toy, augment=AugmentConfig(mixup=1.0)).batch(0, 0)
    assert images.shape == (16, 2, 1, 1)
    assert targets.shape == (16, 2)
