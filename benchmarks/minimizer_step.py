"""Time of one optimizer step: ours (captured and eager) against the peers as their users run them.

On a CUDA machine, all five networks (about ten minutes on an H200, most of it compiling):

    python benchmarks/minimizer_step.py --out results/minimizer_step.csv [--peers-path FOLDER]

On a CPU, the elementwise part of ASAM alone (half a minute):

    python benchmarks/minimizer_step.py --cpu

Peers: `pytorch_optimizer` (skipped if it is not installed; `--peers-path` adds a folder to look in) and a loop over
tensors written here in the style of the ASAM authors' code. Both run eagerly, bf16 autocast, channels last. Times are
medians over repeats after warm-up, in one process on one device; the time to compile and record is given apart.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import provenance, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe.config import ModelConfig
from steppe.minimizers import CapturedStep, create
from steppe.models import build

SETTINGS = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base", {}),
    "sam": ("sam", {}),
    "asam": ("asam", {}),
    "msam": ("msam", {}),
    "looksam-k5": ("looksam", {"k": 5}),
    "sam-quarter": ("sam", {"ascent_fraction": 0.25}),
    "gsam": ("gsam", {}),
    "fsam": ("fsam", {}),
    "samon": ("samon", {}),
    "aesam": ("aesam", {}),
    "esam": ("esam", {}),
    "base on a quarter": ("base", {}),
}
"""The last is a plain step on a quarter of the batch: what sam-quarter's first pass costs at the least."""


MODELS: dict[str, tuple[str, int, int]] = {
    "resnet18@32": ("resnet18", 32, 128),
    "vit-6-8-384@32": ("vit_6l_8h_384", 32, 128),
    "wrn-28-10@32": ("wrn_28_10", 32, 128),
    "swin-t@224": ("swin_tiny_patch4_window7_224", 224, 32),
    "vit-b-16@224": ("vit_base_patch16_224", 224, 32),
}
"""Name in the table -> a model's name, side of its images, batch."""


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).float(), y)


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).float(), y, reduction="none")


class LoopSAM:
    """SAM and ASAM by a loop over tensors, in the style of the ASAM authors' code: one kernel a tensor an operation."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module, rho: float, eta: float | None) -> None:
        self.optimizer, self.named, self.rho, self.eta = optimizer, list(model.named_parameters()), rho, eta
        self.moves: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def ascend(self) -> None:
        """Perturb each tensor in turn."""
        lengths = []
        for name, p in self.named:
            if p.grad is None:
                continue
            move = self.moves.setdefault(p, torch.clone(p)) if p not in self.moves else self.moves[p]
            if self.eta is not None and "weight" in name:
                move.copy_(p)
                move.abs_().add_(self.eta)
                p.grad.mul_(move)
            lengths.append(p.grad.norm(p=2))
        length = torch.stack(lengths).norm(p=2) + 1e-16
        for name, p in self.named:
            if p.grad is None:
                continue
            move = self.moves[p]
            if self.eta is not None and "weight" in name:
                p.grad.mul_(move)
            move.copy_(p.grad)
            move.mul_(self.rho / length)
            p.add_(move)
        self.optimizer.zero_grad()

    @torch.no_grad()
    def restore(self) -> None:
        """Subtract the perturbations again."""
        for _, p in self.named:
            if p.grad is not None:
                p.sub_(self.moves[p])

    def descend(self) -> None:
        """Restore and step."""
        self.restore()
        self.optimizer.step()
        self.optimizer.zero_grad()


# -- CUDA ---------------------------------------------------------------------------------------------------------


def time_ms(step: Callable[[], Any], repeats: int, group: int = 10, warmup: int = 10) -> list[float]:
    """Milliseconds a step, one number for each of `repeats` groups of steps."""
    for _ in range(warmup):
        step()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(group):
            step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / group)
    return times


def fresh_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peak_mib() -> float:
    return torch.cuda.max_memory_allocated() / 2**20


def sgd(model: nn.Module, **extra: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{**SETTINGS, **extra})


def measure_captured(
    model: nn.Module, batch: tuple[Tensor, Tensor], label: str, arguments: argparse.Namespace
) -> tuple[list[float], float, float]:
    """One of our methods as one graph."""
    name, options = METHODS[label]
    if label == "base on a quarter":
        batch = batch[0][: len(batch[0]) // 4].clone(memory_format=torch.channels_last), batch[1][: len(batch[1]) // 4]
    fresh_memory()
    started = time.perf_counter()
    minimizer = create(name, sgd(model, fused=True), model, **options)
    step = CapturedStep(minimizer, model, losses_of if name == "esam" else loss_of, batch)
    fraction = options.get("ascent_fraction") or (options.get("gamma", 0.5) if name == "esam" else None)
    for inputs in [batch] + ([tuple(t[: round(len(t) * fraction)] for t in batch)] if fraction else []):
        step.compute(*inputs)[0].backward()  # compile here, so that the peak below is a step's and not the compiler's
    model.zero_grad()
    fresh_memory()
    for _ in range(6):
        step(*step.inputs)
    torch.cuda.synchronize()
    compile_s = time.perf_counter() - started
    times = time_ms(lambda: step(*step.inputs), arguments.repeats)
    return times, peak_mib(), compile_s


def measure_eager(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    label: str,
    which: str,
    precision: str,
    arguments: argparse.Namespace,
) -> tuple[list[float], float, float]:
    """A method run eagerly, by default with bf16 autocast: ours, the loop, or pytorch_optimizer's."""
    x, y = batch

    def backward() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model, x, y)
        loss.backward()
        return loss

    if which == "steppe-eager":
        minimizer = create(label, sgd(model), model)

        def step() -> None:
            minimizer.step(backward)
    elif which == "loop":
        loop = LoopSAM(sgd(model), model, 0.05 if label == "sam" else 0.5, None if label == "sam" else 0.01)

        def step() -> None:
            backward()
            loop.ascend()
            backward()
            loop.descend()
    else:
        import pytorch_optimizer

        adaptive = label == "asam"
        rho = 2.0 if adaptive else 0.05
        peer = pytorch_optimizer.SAM(model.parameters(), torch.optim.SGD, rho=rho, adaptive=adaptive, **SETTINGS)

        def step() -> None:
            backward()
            peer.first_step(zero_grad=True)
            backward()
            peer.second_step(zero_grad=True)

    fresh_memory()
    model.zero_grad()
    times = time_ms(step, max(3, arguments.repeats // 3), group=5, warmup=5)
    model.zero_grad()
    return times, peak_mib(), 0.0


def run_cuda(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    made = provenance("cuda")
    peers = ["loop", "steppe-eager"]
    try:
        import pytorch_optimizer  # noqa: F401

        peers.insert(0, "pytorch_optimizer")
    except ImportError as error:
        print(f"pytorch_optimizer left out: {error}")
    for name in arguments.models:
        model_name, size, batch_size = MODELS[name]
        torch.manual_seed(0)
        model = build(ModelConfig(name=model_name), image_size=size, channels=3, classes=100)
        model = model.cuda().to(memory_format=torch.channels_last)
        x = torch.randn(batch_size, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
        batch = (x, torch.randint(100, (batch_size,), device="cuda"))
        base_ms = float("nan")
        jobs = [("steppe-captured", label, "bf16") for label in arguments.methods]
        if not arguments.no_peers:
            jobs += [(peer, label, "bf16") for peer in peers for label in ("sam", "asam")]
            jobs += [(peer, label, "fp32") for peer in peers[:2] for label in ("sam", "asam") if name == "swin-t@224"]
        for which, label, precision in jobs:
            if which == "steppe-captured":
                times, memory, compile_s = measure_captured(model, batch, label, arguments)
            else:
                times, memory, compile_s = measure_eager(model, batch, label, which, precision, arguments)
            median = statistics.median(times)
            base_ms = median if (which, label) == ("steppe-captured", "base") else base_ms
            row = {
                "model": name, "batch": batch_size, "method": label, "implementation": which, "precision": precision,
                "ms_median": round(median, 4), "ms_min": round(min(times), 4), "ms_max": round(max(times), 4),
                "ratio_to_captured_base": round(median / base_ms, 4), "peak_memory_mib": round(memory, 1),
                "compile_and_record_s": round(compile_s, 1), "repeats": len(times),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:16} {which:18} {label:18} {precision} {median:8.3f} ms  x{row['ratio_to_captured_base']:<6.3f} "
                f"{memory:8.0f} MiB  compile {compile_s:5.1f} s",
                flush=True,
            )
            if arguments.out is not None:
                save([{**row, **made} for row in rows], arguments.out)
        del model, batch
        torch._dynamo.reset()
        fresh_memory()
    return rows


# -- CPU ----------------------------------------------------------------------------------------------------------


def run_cpu(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The elementwise part of an ASAM step (perturb, put back), without forward and backward."""
    from timm.models.vision_transformer import VisionTransformer

    torch.set_num_threads(arguments.threads)
    rows = []
    for width, depth, heads in ((32, 12, 2), (64, 12, 4), (192, 12, 3), (384, 6, 8)):
        model = VisionTransformer(
            img_size=32, patch_size=4, embed_dim=width, depth=depth, num_heads=heads, num_classes=10
        )
        gradients = [torch.randn_like(p) * 0.01 for p in model.parameters()]
        loop = LoopSAM(torch.optim.SGD(model.parameters(), lr=0.0), model, 0.5, 0.01)
        minimizer = create("asam", torch.optim.SGD(model.parameters(), lr=0.0), model)

        def give_gradients(model: nn.Module = model, gradients: list[Tensor] = gradients) -> None:
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.grad = g.clone()

        halves = {"loop": (loop.ascend, loop.restore), "steppe": (minimizer.ascend, minimizer.abandon)}
        medians: dict[str, list[float]] = {which: [] for which in halves}
        for _ in range(arguments.repeats):  # alternating, so that a busy machine slows both alike
            for which, (first, second) in halves.items():
                give_gradients()
                started = time.perf_counter()
                first()
                spent = time.perf_counter() - started
                give_gradients()
                started = time.perf_counter()
                second()
                medians[which].append((spent + time.perf_counter() - started) * 1e3)
        count = len(gradients)
        millions = sum(g.numel() for g in gradients) / 1e6
        ours, theirs = (statistics.median(medians[which]) for which in ("steppe", "loop"))
        print(
            f"vit {width:4} x {depth:2}: {count} tensors, {millions:6.2f} M: loop {theirs:7.3f} ms, "
            f"steppe {ours:7.3f} ms, {theirs / ours:.2f} times faster",
            flush=True,
        )
        for which, value in (("loop", theirs), ("steppe", ours)):
            low, high = min(medians[which]), max(medians[which])
            row = {
                "model": f"vit-{depth}-{width}", "batch": 0, "method": "asam elementwise", "implementation": which,
                "precision": "fp32", "ms_median": round(value, 4), "ms_min": round(low, 4), "ms_max": round(high, 4),
                "ratio_to_captured_base": "", "peak_memory_mib": "", "compile_and_record_s": 0.0,
                "repeats": arguments.repeats,
            }  # fmt: skip
            rows.append(row)
    if arguments.out is not None:
        save([{**row, **provenance("cpu")} for row in rows], arguments.out)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers-path", type=Path, help="a folder to import pytorch_optimizer from")
    parser.add_argument("--cpu", action="store_true", help="time the elementwise part of ASAM on the CPU")
    parser.add_argument("--threads", type=int, default=1, help="torch threads in --cpu")
    parser.add_argument("--out", type=Path, help="CSV to write")
    arguments = parser.parse_args()
    if arguments.peers_path is not None:
        sys.path.append(str(arguments.peers_path))
    run_cpu(arguments) if arguments.cpu or not torch.cuda.is_available() else run_cuda(arguments)


if __name__ == "__main__":
    main()
