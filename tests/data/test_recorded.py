"""Batches made by a recorded graph. These run where there is CUDA; CI has none and says so."""

from __future__ import annotations

import pytest
import torch
from test_augment import EVERYTHING, dataset

from steppe.config import AugmentConfig
from steppe.data import CORRUPTIONS, Loader, corrupt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def loader(options: dict[str, object], device: str, **changes: object) -> Loader:
    augment = AugmentConfig.model_validate(options)
    settings = {"batch_size": 16, "augment": augment, "seed": 0, "device": torch.device(device)}
    return Loader(dataset(), **{**settings, **changes})


@pytest.mark.parametrize("options", EVERYTHING)
@pytest.mark.parametrize("resident", [True, False])
def test_recorded_batches_are_the_eager_ones(options, resident):
    recorded = loader(options, "cuda", resident=resident, channels_last=True)
    eager = loader(options, "cuda", record=False, channels_last=True)
    assert recorded.recorded
    assert not eager.recorded
    keys = [(0, 0, 0), (0, 1, 0), (0, 1, 1), (2, 3, 0), (0, 0, 0)]
    batches = [recorded.batch(*key) for key in keys]
    for key, (images, targets) in zip(keys, batches, strict=True):  # a later batch must not change an earlier one
        expected = eager.batch(*key)
        assert torch.equal(images, expected[0])
        assert torch.equal(targets, expected[1])
        assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("options", EVERYTHING)
def test_batches_are_those_of_the_cpu(options):
    for key in ((0, 0), (1, 2)):
        images, targets = loader(options, "cuda").batch(*key)
        expected = loader(options, "cpu").batch(*key)
        assert ((images.cpu() - expected[0]).abs() > 0.1).float().mean() < 0.02  # where a value was just between two
        torch.testing.assert_close(targets.cpu(), expected[1])


@pytest.mark.parametrize("options", EVERYTHING)
def test_a_batch_never_waits_for_the_device(options):
    some = loader(options, "cuda")
    some.batch(0, 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        some.batch(0, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_large_batches_are_not_recorded():
    """A graph would keep their memory, and launching is not what they wait for."""
    assert not Loader(
        dataset(side=32, image_size=1024),
        batch_size=64,
        augment=AugmentConfig(),
        seed=0,
        device=torch.device("cuda"),
    ).recorded


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_are_those_of_the_cpu(name):
    images = dataset().train.images[:32]
    numbers = torch.arange(32)
    mine = corrupt(images.cuda(), name, 3, indices=numbers).cpu().int()
    apart = (mine - corrupt(images, name, 3, indices=numbers).int()).abs()
    if name == "jpeg_compression":
        assert apart.max() == 0
    assert (apart > 1).float().mean() < 0.01
