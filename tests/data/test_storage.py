"""Images that are not in memory: the memory-mapped cache, streaming, and that neither changes a batch."""

from __future__ import annotations

import os
import pickle
import shutil
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from steppe.config import AugmentConfig, DataConfig
from steppe.data import Files, Keeping, Loader, Mapped, in_order, load, map_files
from steppe.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "set"
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 2), ("test", 3)):
        for name in ("a", "b"):
            (path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (20, 24, 3), np.uint8)
                Image.fromarray(pixels).save(path / split / name / f"{number:02d}.png")
    return path


def read(folder, storage: str, cache=None, **options):
    return load(DataConfig(name=str(folder), image_size=16, **options), keeping=Keeping(storage, cache=cache))


def batches(dataset, **changes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    config = AugmentConfig(crop_padding=2, flip=True)
    options = {"batch_size": 12, "augment": config, "seed": 0, "device": CPU}
    loader = Loader(dataset, **{**options, **changes})
    return [loader.batch(*key) for key in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 1), (0, 2))]


@pytest.mark.parametrize("storage", ["cache", "stream"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_same_batches_wherever_images_are_kept(folder, tmp_path, storage, workers):
    plain, kept = read(folder, "memory"), read(folder, storage, tmp_path)
    assert plain.train.in_memory
    assert not kept.train.in_memory
    assert (kept.mean, kept.std) == (plain.mean, plain.std)
    for mine, theirs in zip(batches(kept, workers=workers), batches(plain), strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    for mine, theirs in zip(
        in_order(kept.test, kept, batch_size=4, device=CPU),
        in_order(plain.test, plain, batch_size=4, device=CPU),
        strict=True,
    ):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])


def test_images_in_memory_need_not_live_on_the_device(folder):
    dataset = read(folder, "memory")
    for mine, theirs in zip(batches(dataset, resident=False), batches(dataset), strict=True):
        assert torch.equal(mine[0], theirs[0])


def test_splits_of_a_store_are_rows_and_not_copies(folder, tmp_path):
    kept = read(folder, "cache", tmp_path, fraction=0.5)
    assert kept.train.store is kept.test.store
    assert len(kept.train) == 20
    plain = read(folder, "memory", fraction=0.5)
    assert torch.equal(kept.train.images, plain.train.images)
    assert torch.equal(kept.train.take([3, 1]).images, plain.train.take([3, 1]).images)
    assert torch.equal(pickle.loads(pickle.dumps(kept.test)).images, plain.test.images)


def test_memory_is_chosen_up_to_a_limit(folder, tmp_path):
    size = 50 * 3 * 16 * 16
    config = DataConfig(name=str(folder), image_size=16)
    assert load(config, keeping=Keeping(memory_limit=size, cache=tmp_path)).train.in_memory
    assert not load(config, keeping=Keeping(memory_limit=size - 1, cache=tmp_path)).train.in_memory


def files_of(folder, size: int = 16) -> Files:
    return Files(folder, tuple(sorted(folder.rglob("*.png"))), size)


def test_a_cache_is_made_once_and_again_when_the_files_change(folder, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    cache = tmp_path / "cache"
    first = map_files(files_of(copy), cache)
    monkeypatch.setattr(Files, "decode_all", lambda *_: pytest.fail("decoded twice"))
    assert map_files(files_of(copy), cache).path == first.path
    monkeypatch.undo()
    assert map_files(files_of(copy, 12), cache).path != first.path
    before = first.array.copy()
    victim = sorted(copy.rglob("*.png"))[0]
    Image.fromarray(np.zeros((20, 24, 3), np.uint8)).save(victim)
    second = map_files(files_of(copy), cache)
    assert second.path != first.path
    assert second.fingerprint != first.fingerprint
    assert (second.array[0] == 0).all()
    assert np.array_equal(second.array[1:], before[1:])


def test_a_torn_cache_is_made_again(folder, tmp_path):
    mapped = map_files(files_of(folder), tmp_path)
    whole = mapped.path.read_bytes()
    for torn in (whole[: len(whole) // 2], b"", b"junk" * 100):
        mapped.path.write_bytes(torn)
        again = map_files(files_of(folder), tmp_path)
        assert np.array_equal(again.array[:], np.load(again.path))
        assert again.path.read_bytes() == whole


def test_nothing_half_made_is_left_behind(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "train" / "a" / "00.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"train/a/00\.png"):
        map_files(files_of(copy), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_at_once_make_one_cache(folder, tmp_path):
    made: list[Mapped] = []
    threads = [threading.Thread(target=lambda: made.append(map_files(files_of(folder), tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({m.path for m in made}) == 1
    assert len(list(tmp_path.iterdir())) == 1
    assert np.array_equal(made[0].array, made[1].array)


def test_a_full_disk_is_explained(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(DataError, match="STEPPE_CACHE"):
        map_files(files_of(folder), tmp_path)


def test_the_fingerprint_survives_a_copy(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for file in copy.rglob("*.png"):
        os.utime(file, (1, 1))
    here, there = read(folder, "stream"), read(copy, "stream")
    assert here.fingerprint == there.fingerprint
    (copy / "train" / "a" / "00.png").unlink()
    assert read(copy, "stream").fingerprint != here.fingerprint


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_named_while_streaming(folder, tmp_path, workers):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    dataset = read(copy, "stream")
    for file in (copy / "train").rglob("*.png"):
        file.write_bytes(b"junk")
    with pytest.raises(DataError, match=r"train/.*\.png") as caught:
        batches(dataset, workers=workers)
    assert "Traceback" not in str(caught.value)


def test_images_are_kept_no_larger_than_they_are(folder):
    dataset = load(DataConfig(name=str(folder), image_size=64))
    assert dataset.train.shape == (3, 20, 20)
    assert dataset.image_size == 64
    assert next(in_order(dataset.val, dataset, batch_size=2, device=CPU))[0].shape == (2, 3, 64, 64)
    larger = load(DataConfig(name=str(folder), image_size=12, stored_size=18))
    assert (larger.train.shape, larger.image_size) == ((3, 18, 18), 12)


@pytest.mark.parametrize("storage", ["memory", "cache", "stream"])
def test_names_need_not_be_utf8(folder, tmp_path, storage):
    first = next(folder.rglob("*.png"))
    os.rename(first, os.fsencode(first.parent) + b"/\xff.png")
    read = load(DataConfig(name=str(folder), image_size=8), keeping=Keeping(storage, cache=tmp_path / "cache"))
    assert read.fingerprint


def test_a_header_that_makes_no_sense_is_a_damaged_file(folder):
    (next(folder.rglob("*.png")).parent / "odd.ppm").write_bytes(b"P6 12 1225999999999999 255\n")
    with pytest.raises(DataError, match=r"odd\.ppm"):
        load(DataConfig(name=str(folder), image_size=8))


def test_cache_that_cannot_be_made_says_what_else_there_is(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="no cache of the images can be made") as caught:
        read(folder, "cache", tmp_path / "file" / "steppe")
    assert "--keep memory" in str(caught.value)
