"""One run on many processes, as torchrun starts them: what they share, what they agree on, what the first one writes.

Each process makes its share of every batch; gradients are averaged by DDP, or by FSDP2 where the model is cut into
shards as well. All processes go through the same steps, so whatever a decision depends on (the loss, the clock,
Ctrl-C) is agreed on before it is used. The first process alone writes, and a checkpoint holds whole tensors, so a run
can go on with another number of processes, or with one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steppe.config import RunConfig
from steppe.data import Split
from steppe.errors import ConfigError, SteppeError
from steppe.evaluate import Accuracy
from steppe.runs import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes of a run. Where there is only one, everything here does nothing."""

    rank: int = 0
    count: int = 1
    sharded: bool = False
    """Whether the model is cut into shards (FSDP2) instead of being copied to every process (DDP)."""

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        if self.count == 1:
            return flag
        agreed = torch.tensor(float(flag))
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        return bool(agreed)

    def first(self, value: float) -> float:
        """The first process's value, for all."""
        if self.count == 1:
            return value
        agreed = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(agreed, 0)
        return float(agreed)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.count > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def led(self, work: Callable[[], T]) -> T | None:
        """Let the first process do something; an error of ours there ends all of them."""
        failure: list[Any] = [None]
        done = None
        if self.leads:
            try:
                done = work()
            except SteppeError as error:
                failure = [(type(error), error.what, error.where, error.fix)]
        if self.count > 1:
            dist.broadcast_object_list(failure, 0)
        if failure[0] is not None:
            kind, what, where, fix = failure[0]
            raise kind(what, where=where, fix=fix)
        return done

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Let the model's gradients be averaged over the processes."""
        if self.count == 1:
            return model
        if not self.sharded:
            return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (self.count,))
        for module in reversed(list(model.modules())):
            for child in module.children() if isinstance(module, nn.ModuleList | nn.Sequential) else ():
                if any(True for _ in child.children()) and any(True for _ in child.parameters()):
                    fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the first one's BatchNorm statistics, as DDP does before a pass."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def measure(self, split: Split, measure: Callable[[Split], Accuracy]) -> Accuracy:
        """Measure a split in equal parts, one a process; the few images that are left over are everyone's."""
        each = len(split) // self.count
        if self.count == 1 or not each:
            return measure(split)
        own = measure(split.take(torch.arange(self.rank * each, (self.rank + 1) * each)))
        sums = self.sum(torch.tensor([own["loss"] * each, round(own["accuracy"] * each)], dtype=torch.float64))
        if left := len(split) - each * self.count:
            rest = measure(split.take(torch.arange(each * self.count, len(split))))
            sums += torch.tensor([rest["loss"] * left, round(rest["accuracy"] * left)], dtype=torch.float64)
        loss, correct = (sums / len(split)).tolist()
        return {"loss": loss, "accuracy": correct, "examples": len(split)}


@contextmanager
def join(device: torch.device, sharded: bool) -> Iterator[tuple[Ranks, torch.device]]:
    """Take this process's place among those that torchrun started, and its device; alone where it started none."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    joined = dist.is_available() and dist.is_initialized()
    if not joined and count == 1:
        if sharded:
            fix = "start it with torchrun --nproc-per-node N -m steppe train … --shard"
            raise ConfigError("--shard needs more than one process", fix=fix)
        yield Ranks(), device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not joined:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), sharded), device
    finally:
        if not joined:
            dist.destroy_process_group()


def leads() -> bool:
    """Whether this process is the first, or the only one; also before they have joined."""
    return int(os.environ.get("RANK", "0")) == 0


def check(config: RunConfig, ranks: Ranks, batch_size: int) -> None:
    """Refuse what cannot be shared out among the processes."""
    if ranks.count == 1:
        return
    if batch_size % ranks.count:
        fix = f"try {max(1, batch_size // ranks.count) * ranks.count}"
        raise ConfigError(
            f"{batch_size} images cannot be shared by {ranks.count} processes", where="batch_size", fix=fix
        )
    if config.objective.name == "contrastive":
        fix = "train it in one process"
        raise ConfigError("the contrastive loss compares all images of a batch", where="objective.name", fix=fix)
    if ranks.sharded and config.optimizer.name == "muon":
        what = "muon orthogonalises whole matrices, and with shards no process has one"
        raise ConfigError(what, where="optimizer.name", fix="leave --shard away")
    if ranks.sharded and config.minimizer.per_rank:
        fix = "leave --shard away"
        what = "with shards no process has a gradient of its own, and per_rank asks for one"
        raise ConfigError(what, where="minimizer.per_rank", fix=fix)


class SilentRun(Run):
    """A run as the other processes see it: they read it, and leave the writing to the first."""

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write nothing."""

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Write nothing."""


# -- whole tensors and shards -----------------------------------------------------------------------------------------


def is_sharded(tensor: Any) -> bool:
    """Whether this is a `DTensor`."""
    return hasattr(tensor, "full_tensor")


def whole(node: Any) -> Any:
    """A tree of dicts and lists with its shards put together; all processes must call it."""
    if isinstance(node, dict):
        return {key: whole(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(whole(value) for value in node)
    return node.full_tensor() if is_sharded(node) else node


def whole_vector(vector: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Local parts, one for each parameter, put together; all processes must call it. Single numbers stay."""
    return [
        _as_shard(part, parameter).full_tensor() if _is_cut(part, parameter) else part
        for part, parameter in zip(vector, parameters, strict=True)
    ]


def local_vector(vector: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """This process's parts of whole tensors, one for each parameter."""
    return [
        shard_like(value, parameter).to_local() if _is_cut(value, parameter) else value
        for value, parameter in zip(vector, parameters, strict=True)
    ]


def _is_cut(value: Tensor | None, parameter: Tensor) -> TypeGuard[Tensor]:
    return value is not None and value.dim() > 0 and is_sharded(parameter)


def shard_like(value: Tensor, parameter: Any) -> Any:
    """A whole tensor cut as a parameter is; itself where the parameter is not cut."""
    if not is_sharded(parameter) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    there = value.to(parameter.device, parameter.dtype)
    return distribute_tensor(there, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _as_shard(part: Tensor, parameter: Any) -> Any:
    from torch.distributed.tensor import DTensor

    form = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **form)
