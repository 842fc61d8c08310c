"""State that a second pass must not move: BatchNorm's running statistics and the random generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class RunningStatistics:
    """Keeps BatchNorm's running averages as the first pass left them.

    The buffers are copied after the first pass and copied back after the last, `num_batches_tracked` included. Nothing
    of the modules is toggled, so an interrupted step loses nothing.
    """

    def __init__(self, model: nn.Module | None) -> None:
        """Find the modules that keep running statistics."""
        modules = model.modules() if model is not None else ()
        self.modules = [
            module
            for module in modules
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        ]
        self.live: list[Tensor] = []
        self.pairs: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        self.saved = False

    def save(self) -> None:
        """Remember the running mean, variance and count of every module as they are."""
        live = [buffer for module in self.modules for buffer in module._buffers.values() if buffer is not None]
        if [id(buffer) for buffer in live] != [id(buffer) for buffer in self.live]:
            self.live, self.pairs = live, {}
            for buffer in live:
                originals, copies = self.pairs.setdefault((buffer.device, buffer.dtype), ([], []))
                originals.append(buffer)
                copies.append(torch.empty_like(buffer))
        for originals, copies in self.pairs.values():
            torch._foreach_copy_(copies, originals)
        self.saved = True

    def restore(self) -> None:
        """Put the remembered values back."""
        if not self.saved:
            return
        for originals, copies in self.pairs.values():
            torch._foreach_copy_(originals, copies)
        self.saved = False


class RandomReplay:
    """Gives the second pass the random numbers of the first: the same dropout masks, the same dropped paths."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        """Note which generators the model draws from: the CPU's and its CUDA devices'."""
        self.cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
        self.states: list[Tensor] | None = None

    def record(self) -> None:
        """Remember where the generators stand."""
        self.states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in self.cuda)]

    def replay(self, last: bool = True) -> None:
        """Set the generators back to where they were recorded; `last` unless there is one more pass to come."""
        if self.states is None:
            raise RuntimeError("replay_rng needs the first pass inside `with minimizer.first_pass():`")
        torch.set_rng_state(self.states[0])
        for index, state in zip(self.cuda, self.states[1:], strict=True):
            torch.cuda.set_rng_state(state, index)
        self.states = None if last else self.states


@torch.no_grad()
def reestimate_batchnorm(
    model: nn.Module, batches: Iterable[Tensor], forward: Callable[[Tensor], object] | None = None
) -> None:
    """Recompute BatchNorm's running statistics at the present weights as plain averages over the batches.

    For methods whose only pass runs at perturbed weights (MSAM), and for averaged weights: call it before evaluation.
    In a model that is in training mode, layers that are not (frozen BatchNorm) keep their statistics; a model that is
    in evaluation mode as a whole is set to training for the passes. Every module's mode is put back.
    """
    modes = [(module, module.training) for module in model.modules()]
    norms = [
        module
        for module, training in modes
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.track_running_stats
        and (training or not model.training)
    ]
    if not norms:
        return
    momenta = [module.momentum for module in norms]
    try:
        if not model.training:
            model.train()
        for module in norms:
            module.reset_running_stats()
            module.momentum = None
        for batch in batches:
            (forward or model)(batch)
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
        for owner, training in modes:
            owner.training = training
