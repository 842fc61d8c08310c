"""SAM under DDP, with one perturbation for each process. Run on two CPU processes:

    torchrun --nproc-per-node 2 examples/distributed.py

`m="rank"` takes ε from each process's own share of the batch, without synchronising the first pass (as the ViT paper
did on its accelerators); leave it out for one ε from the global batch.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from digits import accuracy, load_data, make_model
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from steppe.minimizers import SAM


def main(epochs: int = 3) -> None:
    """Train on every process; the first one reports."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    train, test = load_data()
    (x, y), test = (tuple(t.to(device) for t in pair) for pair in (train, test))
    model = DistributedDataParallel(make_model().to(device))
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    minimizer = SAM(base, rho=0.05, model=model, m="rank")
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(order) // 128 * 128].split(128):
            part = batch[rank::world].to(device)

            def closure(part: torch.Tensor = part) -> torch.Tensor:
                loss = cross_entropy(model(x[part]), y[part])
                loss.backward()
                return loss

            minimizer.step(closure)
        if rank == 0:
            print(f"epoch {epoch + 1}: test accuracy {accuracy(model.module, *test):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
