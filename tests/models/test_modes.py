"""Training modes: what learns, what stays, and that BatchNorm of what stays is left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from pydantic import ValidationError

from steppe.config import ModelConfig, RunConfig
from steppe.errors import ConfigError
from steppe.models import blocks, build


@pytest.fixture
def make(tmp_path):
    def inner(name: str, mode: str | None, size: int = 16, **options):
        torch.manual_seed(0)
        fresh = build(ModelConfig(name=name), image_size=size, channels=3, classes=5)
        torch.save(fresh.state_dict(), tmp_path / "w.pth")
        config = ModelConfig(name=name, mode=mode, weights=str(tmp_path / "w.pth") if mode else None, **options)
        return build(config, image_size=size, channels=3, classes=5)

    return inner


def train(model, steps: int = 3, size: int = 16) -> None:
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.1)
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(8, 3, size, size)), torch.arange(8) % 5).backward()
        optimizer.step()
        model.eval()


FAMILIES = ["resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "wrn_10_1", "mobilenetv3_small_050"]


@pytest.mark.parametrize("name", FAMILIES)
def test_frozen_trains_the_head_alone(name, make):
    model = make(name, "frozen", 32)
    assert sorted(k for k, p in model.named_parameters() if p.requires_grad) == sorted(blocks(model)["head"])
    before = copy.deepcopy(model.state_dict())
    train(model, size=32)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == set(blocks(model)["head"])


@pytest.mark.parametrize("name", FAMILIES)
def test_last_blocks_train_with_what_follows_them(name, make):
    model = make(name, "last_n_blocks", 32, last_blocks=2)
    parts = blocks(model)
    total = sum(part.startswith("block") for part in parts)
    wanted = [f"block{total - 1}", f"block{total}", "norm", "neck", "head"]
    expected = {key for part in wanted for key in parts.get(part, ())}
    assert {k for k, p in model.named_parameters() if p.requires_grad} == expected
    before = copy.deepcopy(model.state_dict())
    train(model, size=32)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    modules = {key.rpartition(".")[0] for key in expected}
    assert {key.rpartition(".")[0] for key in changed} <= modules
    assert set(parts["head"]) <= changed


@pytest.mark.parametrize("mode", [None, "scratch", "finetune"])
def test_the_other_modes_train_everything(mode, make):
    model = make("resnet_tiny", mode if mode != "scratch" else None)
    assert all(p.requires_grad for p in model.parameters())
    model.train()
    assert all(module.training for module in model.modules())


def test_frozen_parts_stay_in_evaluation_mode_whoever_asks(make):
    model = make("resnet_tiny", "frozen", dropout=0.5)
    for one in (model, copy.deepcopy(model)):
        one.train()
        one.bn1.train()
        assert not one.bn1.training
        assert not one.stages[0][0].bn2.training
        assert one.dropout.training
        assert one.head.training
        assert one.training
        one.eval()
        assert not one.training
        assert not one.head.training


def test_a_copy_is_held_still_on_its_own(make):
    """The stand-in for `train` must belong to the copy, not to the original."""
    model = make("resnet_tiny", "frozen")
    other = copy.deepcopy(model)
    assert other.bn1.train() is other.bn1
    assert other.bn1.train() is not model.bn1


def test_dropped_paths_rest_in_frozen_blocks(make):
    model = make("vit_tiny_p2", "frozen", drop_path=0.5, block_dropout=0.5).train()
    model.pos_drop.p = 0.0
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(model.forward_features(x), model.forward_features(x))


def test_more_blocks_than_there_are(make):
    with pytest.raises(ConfigError, match="the model has 3 blocks, not 4"):
        make("vit_tiny_p2", "last_n_blocks", last_blocks=4)


def test_last_blocks_of_a_family_without_names(make):
    with pytest.raises(ConfigError, match="have no names"):
        make("convnext_atto", "last_n_blocks", 32, last_blocks=1)


def test_frozen_needs_no_names_of_blocks(make):
    model = make("convnext_atto", "frozen", 32)
    assert [k for k, p in model.named_parameters() if p.requires_grad] == ["head.fc.weight", "head.fc.bias"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mode": "frozen"}, "begins from trained weights"),
        ({"mode": "scratch", "weights": "w.pth"}, "mode is scratch"),
        ({"mode": "last_n_blocks", "weights": "w.pth"}, "go together"),
        ({"mode": "finetune", "weights": "w.pth", "last_blocks": 2}, "go together"),
        ({"mode": "thaw", "weights": "w.pth"}, "Input should be"),
    ],
)
def test_modes_and_weights_must_agree(values, expected):
    with pytest.raises(ValidationError, match=expected):
        ModelConfig(**values)


def test_weights_without_a_mode_are_finetuned():
    assert ModelConfig(name="resnet18", weights="w.pth").mode == "finetune"


def test_weights_none_means_from_scratch():
    assert ModelConfig(weights="none") == ModelConfig()


def test_saying_scratch_does_not_rename_a_run():
    assert RunConfig.model_validate({"model": {"mode": "scratch"}}) == RunConfig()


@pytest.mark.parametrize("name", ["wrn_10_1", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "vit_1l_2h_32_free"])
def test_channels_last_and_bfloat16_change_little(name, make):
    x = torch.randn(2, 3, 16, 16)
    model = make(name, "finetune").eval()
    plain = model(x)
    moved = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(moved, plain, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(x).float(), plain, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", ["wrn_10_1", "vit_1l_2h_32_free", "vit_tiny_p2"])
def test_one_graph_without_breaks(name, make):
    model = make(name, "frozen", drop_path=0.1).train()
    x = torch.randn(2, 3, 16, 16)
    torch._dynamo.reset()
    torch.compile(model, fullgraph=True, backend="eager", dynamic=False)(x).sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
