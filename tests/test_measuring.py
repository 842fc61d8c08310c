from __future__ import annotations

import pytest
import torch
from cases import TinyConvNet, images

from steppe.errors import ConfigError, MeasureError, SteppeError
from steppe.evaluate import predict
from steppe.measuring import Measure, Settings, change_settings, check_finite, choose, in_smaller_chunks, sample

TABLE = {
    "one": Measure(lambda *_: {}, "", {"points": 3, "radius": 0.5, "flag": True, "name": "a"}),
    "two": Measure(lambda *_: {}, "", {}, by_default=False),
}


class Small(TinyConvNet):
    """Has room for four images at a time."""

    room = 4

    def forward(self, x):
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x)


def test_where_memory_runs_out_smaller_chunks_give_the_same_answer():
    torch.manual_seed(0)
    model = Small()
    x, y = images(10)
    said: list[str] = []
    sizes: list[int] = []

    def work(size: int) -> torch.Tensor:
        sizes.append(size)
        return predict(model, zip(x.split(size), y.split(size), strict=True))[0]

    found = in_smaller_chunks(work, 10, said.append)
    assert sizes == [10, 5, 2]
    assert len(said) == 2
    assert "2 images at a time" in said[-1]
    model.room = 10
    assert torch.allclose(found, predict(model, [(x, y)])[0], atol=1e-6)
    model.room = 0
    with pytest.raises(SteppeError, match="one image"):
        in_smaller_chunks(work, 3)
    assert model.training, "left as it was found"


def test_other_errors_go_through():
    with pytest.raises(RuntimeError, match="shape"):
        in_smaller_chunks(lambda size: (_ for _ in ()).throw(RuntimeError("shape mismatch")), 4)
    calls: list[int] = []

    def cpu(size: int) -> int:
        calls.append(size)
        if size > 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        return size

    assert in_smaller_chunks(cpu, 4) == 1
    assert calls == [4, 2, 1]


def test_choosing():
    assert list(choose(TABLE, None)) == ["one"]
    assert list(choose(TABLE, "two, one")) == ["one", "two"]
    with pytest.raises(ConfigError, match="unknown measure 'tow'"):
        choose(TABLE, "tow")
    with pytest.raises(ConfigError, match="no measure is named"):
        choose(TABLE, " , ")


def test_settings_are_read_like_their_defaults():
    found = change_settings(TABLE, ["one.points=7", "one.radius=1e-2", "one.flag=false", "one.name=b=c"])
    assert found == {"one": {"points": 7, "radius": 0.01, "flag": False, "name": "b=c"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("points=7", "not measure.key=value"),
        ("one.points", "not measure.key=value"),
        ("tree.points=7", "unknown measure 'tree'"),
        ("one.pints=7", "did you mean 'points'"),
        ("one.points=7.5", "not a whole number"),
        ("one.points=-1", "points cannot be -1"),
        ("one.radius=nan", "not a number"),
        ("one.flag=1", "not true or false"),
    ],
)
def test_wrong_settings_are_told(change, said):
    with pytest.raises(ConfigError) as caught:
        change_settings(TABLE, [change])
    assert said in str(caught.value)


def test_a_loss_that_is_not_known():
    with pytest.raises(ConfigError, match="loss cannot be 'hinge'"):
        _ = Settings({"loss": "hinge"}).chosen_loss


def test_weights_that_are_not_numbers_are_refused():
    model = TinyConvNet()
    check_finite(model, "here")
    model.norm.running_var[1] = float("inf")
    with pytest.raises(MeasureError, match=r"NaN or infinity, in 'norm.running_var'"):
        check_finite(model, "here")


def test_every_model_sees_the_same_images():
    assert torch.equal(sample(100, 10), sample(100, 10))
    assert torch.equal(sample(100, 10), sample(100, 20)[:10])
    assert sorted(sample(7, 100).tolist()) == list(range(7))


def test_numbers_no_machine_counts_with_are_refused():
    table = {"m": Measure(lambda *_: {}, "", {"count": 3})}
    with pytest.raises(ConfigError, match="count"):
        change_settings(table, [f"m.count={10**400}"])
