"""What each of two processes does in the distributed tests; results go to a folder, one file a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cases import TinyTransformer, images

from steppe.minimizers import Batch, Every, create

STEPS = 4
DDP_CASES = {
    "sam": ("sam", {"rho": 0.3}),
    "asam": ("asam", {"rho": 0.5}),
    "gsam": ("gsam", {"rho": 0.3}),
    "looksam": ("looksam", {"rho": 0.3, "k": 2}),
    "sam bucket views": ("gsam", {"rho": 0.3}),
    "per rank": ("sam", {"rho": 0.3, "m": "rank"}),
    "micro": ("sam", {"rho": 0.3, "m": 2}),
    "per rank, every other step": ("sam", {"rho": 0.3, "m": "rank", "schedule": Every(2)}),
    "per rank, base": ("base", {"m": "rank"}),
    "esam": ("esam", {"rho": 0.3, "beta": 0.5, "gamma": 1.0}),
    "inner bucket views": ("gsam", {"rho": 0.3}),
}
FSDP_CASES = {
    "sam": ("sam", {"rho": 0.3, "clip_norm": 0.5}),
    "asam": ("asam", {"rho": 0.5}),
    "layer": ("asam", {"rho": 0.1, "scaling": "layer"}),
    "gsam": ("gsam", {"rho": 0.3}),
    "looksam": ("looksam", {"rho": 0.3, "k": 2}),
    "fsam": ("fsam", {"rho": 0.3}),
    "msam": ("msam", {"rho": 0.3}),
    "samon": ("samon", {"rho": 0.3}),
    "esam": ("esam", {"rho": 0.3, "beta": 0.5, "gamma": 1.0}),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return TinyTransformer().double()


def train(model: nn.Module, method: str, options: dict, part: slice, given: nn.Module | None = None) -> list[float]:
    """A few steps on this process's part of a batch of eight; the minimizer may be given the unwrapped model."""
    x, y = images(8)
    x, y = x[part].double(), y[part]
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    minimizer = create(method, base, given or model, **options)
    if not dist.is_initialized():
        minimizer.seed = 0  # as it is among several processes, whatever theirs are
    batch = Batch(len(x), lambda examples: cross_entropy(model(x[examples]), y[examples], reduction="none"))
    return [float(minimizer.step(batch)) for _ in range(STEPS)]


def whole(model: nn.Module) -> list[torch.Tensor]:
    tensors = [p.detach() for p in model.parameters()]
    return [t.full_tensor() if hasattr(t, "full_tensor") else t.clone() for t in tensors]


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    part = slice(0, 4) if rank == 0 else slice(4, 8)
    results: dict[str, list[torch.Tensor]] = {}
    for name, (method, options) in DDP_CASES.items():
        inner = make_model()
        model = DistributedDataParallel(inner, gradient_as_bucket_view="views" in name)
        torch.manual_seed(rank)
        train(model, method, options, part, given=inner if "inner" in name else model)
        results[f"ddp {name}"] = whole(model)
    for name, (method, options) in FSDP_CASES.items():
        model = make_model()
        fully_shard(model.attention)
        fully_shard(model)
        torch.manual_seed(rank)
        train(model, method, options, part)
        results[f"fsdp {name}"] = whole(model)
    results["overflow"] = overflow(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def overflow(rank: int) -> list[torch.Tensor]:
    """Per-rank ε, fp16-style: one process alone overflows in its first pass; both must skip the step."""
    model = DistributedDataParallel(make_model())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    minimizer = create("sam", torch.optim.SGD(model.parameters(), lr=0.1), model, m="rank", scaler=scaler)
    x, y = images(4)

    def losses(examples):
        bad = float("inf") if rank == 1 and minimizer.step_count == 0 else 1.0
        return cross_entropy(model(x[examples].double()), y[examples], reduction="none") * bad

    for _ in range(2):
        minimizer.step(Batch(4, losses, scaler))
        scaler.update()
    return [torch.tensor(scaler.get_scale()), *whole(model)]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
