"""λmax by power iteration, as a multiple of as many gradients over the same data, ours beside others in one process.

    python benchmarks/hessian.py --out results/hessian_h200.csv                  # on a GPU
    python benchmarks/hessian.py --tiny --out /tmp/hessian.csv                   # on a CPU: 200 images of 8×8

A gradient evaluation is plain eager torch over all of the examples, batch by batch, with torch's fused attention, at
the same precision. Ours is `steppe.geometry`: double backward through graphs that are kept where they fit (`kept`),
and compiled (`compiled`); compiling is timed separately. `rebuilt` makes
the graph anew for every product, as most code does; `curvlinops` is what it says. These two are timed over
`--peer-products` products. Ours are timed from a cold start, graphs included; Ctrl-C ends a way with the products made
so far. `retries` counts how often the allocator had to give memory back before it found some. `off_by`
is the relative difference of a product from that of `rebuilt`; a ReLU that lies at its kink to rounding may fall to
either side, which shows as 1e-3. Images are random.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rows import provenance, save
from torch import Tensor, nn

from steppe.config import ModelConfig
from steppe.geometry.eigen import power_iteration
from steppe.geometry.how import borrowed
from steppe.geometry.products import Hessian
from steppe.measuring import numerics
from steppe.models import build

Batches = list[tuple[Tensor, Tensor]]


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def time_calls(call: Callable[[], Any], count: int, device: torch.device) -> float:
    """Seconds of the median call, after one that is not counted."""
    call()
    times = []
    for _ in range(count):
        start = wait(device)
        call()
        times.append(wait(device) - start)
    return statistics.median(times)


def evaluate_gradient(model: nn.Module, batches: Batches) -> list[Tensor]:
    parameters = list(model.parameters())
    examples = sum(len(targets) for _, targets in batches)
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for images, targets in batches:
        loss = F.cross_entropy(model(images), targets, reduction="sum") / examples
        torch._foreach_add_(sums, torch.autograd.grad(loss, parameters))
    return sums


def time_gradient(model: nn.Module, batches: Batches, count: int, device: torch.device, precision: Any) -> float:
    model.eval()
    with numerics(precision, repeatable=False):
        return time_calls(lambda: evaluate_gradient(model, batches), count, device)


def time_ours(
    model: nn.Module, batches: Batches, iterations: int, device: torch.device, *, warm: bool = False, **options: Any
) -> tuple[dict[str, Any], Tensor]:
    """All iterations from a cold start, the building of graphs included; compiling is told apart."""
    warmup_s = 0.0
    if warm:
        start = wait(device)
        with Hessian(model, batches, **options) as hessian:
            hessian.multiply(hessian.random("whole", torch.Generator().manual_seed(0)))
        warmup_s = wait(device) - start
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        retries = torch.cuda.memory_stats(device)["num_alloc_retries"]
    start = wait(device)
    ends: list[float] = []
    with Hessian(model, batches, **options) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))

        def multiply(along: Tensor) -> Tensor:
            product = hessian.multiply(along)
            ends.append(wait(device))
            return product

        pair = None
        try:
            pair = power_iteration(multiply, vector, iterations, tolerance=0.0)
        except KeyboardInterrupt:
            if not ends:
                raise
        chunks, kept = len(hessian._chunks()), len(hessian.graphs)
        product = hessian.multiply(vector)
    found = {
        "products": len(ends),
        "product_s": (ends[-1] - start) / len(ends),
        "later_product_s": statistics.median(b - a for a, b in pairwise(ends)) if len(ends) > 1 else None,
        "compile_s": round(warmup_s, 1),
        "lambda_max": pair and pair.value,
        "residual": pair and pair.residual,
        "chunk": hessian.chunk,
        "kept": f"{kept}/{chunks}",
    }
    if device.type == "cuda":
        found["retries"] = torch.cuda.memory_stats(device)["num_alloc_retries"] - retries
        found["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 1)
    return found, product


def time_curvlinops(
    model: nn.Module, batches: Batches, count: int, device: torch.device, precision: Any
) -> tuple[dict[str, Any], Tensor] | None:
    try:
        from curvlinops import HessianLinearOperator
    except ImportError:
        return None
    with borrowed(model, precision=precision), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = HessianLinearOperator(
            model,
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            batches,
            check_deterministic=False,
            num_data=sum(len(targets) for _, targets in batches),
        )
        vector = torch.randn(operator.shape[1], generator=torch.Generator().manual_seed(0)).to(device)
        seconds = time_calls(lambda: operator @ vector, count, device)
        return {"products": count, "product_s": seconds}, (operator @ vector).detach()


def profile(model: nn.Module, batches: Batches, device: torch.device, precision: Any) -> None:
    """Print which kernels a gradient and a product through kept graphs are made of, the longest first."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)

    def show(call: Callable[[], Any]) -> None:
        call()
        with torch.profiler.profile(activities=kinds) as profiled:
            call()
            wait(device)
        averages = profiled.key_averages()
        print(averages.table(sort_by=f"self_{device.type}_time_total", row_limit=25, max_name_column_width=90))

    with numerics(precision, repeatable=False):
        show(lambda: evaluate_gradient(model, batches))
    with Hessian(model, batches, precision=precision) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        show(lambda: hessian.multiply(vector))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "vit_s_p4"])
    parser.add_argument("--ways", nargs="+", default=["kept", "compiled", "rebuilt", "curvlinops"])
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--compiled-chunk", type=int, default=125)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--gradients", type=int, default=10)
    parser.add_argument("--peer-products", type=int, default=3)
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--profile", action="store_true", help="also print what a product of `kept` is made of")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small models, images and counts")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.models, arguments.image_size, arguments.channels = ["resnet_tiny", "vit_tiny_p2"], 8, 1
        arguments.examples, arguments.batch, arguments.compiled_chunk, arguments.iterations = 200, 100, 50, 10
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = provenance(device.type)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.examples, arguments.channels, arguments.image_size, arguments.image_size)
    images = torch.randn(shape, generator=generator).to(device)
    targets = torch.randint(10, (arguments.examples,), generator=generator).to(device)
    batches = list(zip(images.split(arguments.batch), targets.split(arguments.batch), strict=True))
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        torch.manual_seed(0)
        model = build(
            ModelConfig(name=name), image_size=arguments.image_size, channels=arguments.channels, classes=10
        ).to(device)
        gradient_s = time_gradient(model, batches, arguments.gradients, device, arguments.precision)
        if arguments.profile:
            profile(model, batches, device, arguments.precision)
        reference: Tensor | None = None
        for way in sorted(arguments.ways, key=lambda way: way != "rebuilt"):
            options: dict[str, Any] = {"precision": arguments.precision}
            if way == "curvlinops":
                timed = time_curvlinops(model, batches, arguments.peer_products, device, arguments.precision)
                if timed is None:
                    print("curvlinops is not installed: left out")
                    continue
            elif way == "rebuilt":
                timed = time_ours(model, batches, arguments.peer_products, device, keep=False, **options)
            elif way == "compiled":
                options |= {"compiled": True, "chunk": arguments.compiled_chunk}
                timed = time_ours(model, batches, arguments.iterations, device, warm=True, **options)
            else:
                timed = time_ours(model, batches, arguments.iterations, device, **options)
            figures, product = timed
            reference = product if reference is None else reference
            later = figures.pop("later_product_s", None)
            row = {
                "model": name,
                "way": way,
                "examples": arguments.examples,
                "batch": arguments.batch,
                "precision": arguments.precision,
                "products": figures.pop("products"),
                "gradient_s": round(gradient_s, 5),
                "product_s": round(figures.pop("product_s"), 5),
                "off_by": float((product - reference).norm() / reference.norm()),
            }
            row["product_over_gradient"] = round(row["product_s"] / row["gradient_s"], 3)
            row["later_over_gradient"] = later and round(later / gradient_s, 3)
            for key in ("compile_s", "lambda_max", "residual", "chunk", "kept", "peak_gib", "retries"):
                row[key] = figures.get(key)
            row |= made
            rows.append(row)
            shown = ("model", "way", "gradient_s", "product_s", "product_over_gradient", "kept", "compile_s", "off_by")
            print({key: row[key] for key in shown}, flush=True)
            save(rows, arguments.out)


if __name__ == "__main__":
    main()
