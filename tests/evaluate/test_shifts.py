from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from torch import nn

from steppe import data
from steppe.config import DataConfig
from steppe.data import CORRUPTIONS, Dataset, Split, Variant, corrupt
from steppe.errors import ConfigError, MeasureError
from steppe.evaluate import measure_corruptions, measure_variant

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def colours() -> Dataset:
    """Forty images of 8×8 pixels in three classes, under CIFAR-10's name."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (40, 3, 8, 8), generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.arange(40) % 3)
    return Dataset("cifar10", ("a", "b", "c"), split, split, split, (0.5,) * 3, (0.25,) * 3, "x")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def test_each_figure_is_the_accuracy_on_those_very_images(model, colours):
    names = ("contrast", "gaussian_noise")
    found = measure_corruptions(model, colours, device=CPU, batch_size=16, names=names)
    for name in names:
        for severity in (1, 5):
            changed = corrupt(colours.test.images, name, severity, indices=torch.arange(40))
            right = model((changed / 255 - 0.5) / 0.25).argmax(1) == colours.test.labels
            assert found["table"][name][severity - 1] == pytest.approx(right.double().mean().item())
    assert found["means"]["contrast"] == pytest.approx(statistics.fmean(found["table"]["contrast"]))
    assert found["mean"] == pytest.approx(statistics.fmean(found["means"].values()))
    assert found["mean_15"] is None
    assert set(found["source"].values()) == {"made here"}


def test_the_whole_table_counts_fifteen_for_the_published_mean(model, colours):
    found = measure_corruptions(model, colours, device=CPU, examples=6)
    assert list(found["table"]) == list(CORRUPTIONS)
    assert all(len(row) == 5 for row in found["table"].values())
    assert found["mean_15"] == pytest.approx(statistics.fmean(list(found["means"].values())[:15]))
    assert found["examples"] == 6


def test_goes_on_after_the_rows_it_has(model, colours):
    kept: list[dict] = []
    names = ("contrast", "fog", "snow")
    whole = measure_corruptions(model, colours, device=CPU, names=names, keep=lambda rows: kept.append(dict(rows)))
    assert [len(rows) for rows in kept] == [1, 2, 3]
    known = {"contrast": {"accuracy": [9.0] * 5, "source": "made here"}, "other": {}}
    told: list[tuple[int, int]] = []
    rest = measure_corruptions(
        model, colours, device=CPU, names=names, known=known, tell=lambda done, total: told.append((done, total))
    )
    assert rest["table"]["contrast"] == [9.0] * 5, "a row that is known is not measured again"
    assert rest["table"]["fog"] == whole["table"]["fog"]
    assert told == [(done, 15) for done in range(6, 16)]


def test_a_published_folder_is_preferred(model, colours, tmp_path):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    blank = np.zeros((200, 8, 8, 3), dtype=np.uint8)
    np.save(folder / "fog.npy", blank)
    np.save(folder / "labels.npy", np.tile(colours.test.labels.numpy(), 5))
    found = measure_corruptions(model, colours, device=CPU, names=("fog", "snow"), root=tmp_path)
    assert found["source"] == {"fog": "published", "snow": "made here"}
    answer = model(torch.full((1, 3, 8, 8), -2.0)).argmax(1)
    share = (colours.test.labels == answer).double().mean().item()
    assert found["table"]["fog"] == pytest.approx([share] * 5)


def test_refuses_points_and_unknown_names(model, colours):
    with pytest.raises(ConfigError, match="unknown corruption 'fogg'"):
        measure_corruptions(model, colours, device=CPU, names=("fogg",))
    with pytest.raises(MeasureError, match="points, not pictures"):
        measure_corruptions(model, data.load(DataConfig(name="toy_moons")), device=CPU)


def test_variants_bar_classes_and_take_every_right_answer(colours):
    class Says(nn.Module):
        """Logits 3, 2, 1 for every image."""

        def forward(self, x):
            return torch.tensor([[3.0, 2.0, 1.0]]).expand(len(x), -1)

    plain = measure_variant(Says(), Variant(colours.test), colours, device=CPU)
    assert plain == {"top1": 14 / 40, "examples": 40}
    barred = measure_variant(Says(), Variant(colours.test, allowed=(1, 2)), colours, device=CPU)
    assert barred["top1"] == 13 / 40
    answers = torch.zeros(40, 3, dtype=torch.bool)
    answers[:10, 0] = answers[:20, 1] = True
    real = measure_variant(Says(), Variant(colours.test, answers=answers), colours, device=CPU, batch_size=7)
    assert real == {"top1": 0.5, "examples": 20}
