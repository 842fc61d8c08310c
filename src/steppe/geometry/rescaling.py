"""Figures 2 to 4 of Gomez Donoso, Ghenassia & Vannier for a run's own perceptron; see `steppe.geometry.symmetry`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steppe.config import derive_seed
from steppe.data import Dataset
from steppe.errors import MeasureError
from steppe.geometry.symmetry import CASES, follow_rescalings
from steppe.measuring import Settings


def rescaling(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """Rescale the neurons of a perceptron many times, in three ways, and follow its outputs and sharp losses.

    `weights` is the network without its biases, which it would need to be left alone by scaling weights only.
    """
    batches = settings.batches(dataset.train, dataset, max(1, settings["examples"]))
    images = torch.cat([images for images, _ in batches]).double()
    labels = torch.cat([labels for _, labels in batches])
    subject = settings.chosen_weights(model)
    options = {key: settings[key] for key in ("steps", "points", "rho", "asam_rho", "eta")}
    out: dict[str, Any] = {}
    for done, (case, (bias, scaled)) in enumerate(CASES.items()):
        settings.tell(done, len(CASES))
        generator = torch.Generator().manual_seed(derive_seed(settings["seed"], "rescaling"))
        chain = as_chain(subject, images, bias=bias)
        out[case] = follow_rescalings(chain, images.flatten(1), labels, generator, biases=scaled, **options)
    return out


def as_chain(model: nn.Module, images: Tensor, *, bias: bool) -> nn.Sequential:
    """A copy of a perceptron as a chain of linear layers and ReLUs in double precision, for flattened images.

    Args:
        model: the network; it is left alone.
        images: in double precision; what the chain is checked on.
        bias: keep its biases.

    Raises:
        MeasureError: the network is more than such a chain.
    """
    layers: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            copy = nn.Linear(module.in_features, module.out_features, device=images.device, dtype=torch.float64)
            with torch.no_grad():
                copy.weight.copy_(module.weight)
                if module.bias is None:
                    copy.register_parameter("bias", None)
                else:
                    copy.bias.copy_(module.bias)
            layers.append(copy)
        elif isinstance(module, nn.ReLU):
            layers.append(nn.ReLU())
    chain = nn.Sequential(*layers)
    with torch.no_grad():
        try:
            same = torch.allclose(chain(images.flatten(1)).float(), model(images.float()).float(), rtol=1e-3, atol=1e-4)
        except RuntimeError:  # its layers do not even follow one another
            same = False
    if not same:
        what = f"a {type(model).__name__} is no chain of linear layers and ReLUs"
        raise MeasureError(what, fix="choose a perceptron, such as mlp_64_64")
    if not bias:
        for layer in chain:
            if isinstance(layer, nn.Linear):
                layer.register_parameter("bias", None)
    return chain
