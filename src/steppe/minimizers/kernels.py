# mypy: ignore-errors
"""The two Triton kernels of `fused`. A row of the tensor table is: w, d, out (addresses), size, scaled, group.

Each program handles one chunk of one tensor. A full chunk takes the branch without masks: its loads are 16 bytes wide.
"""

import triton
import triton.language as tl


@triton.jit
def sum_of_squares(tensors, chunks, numbers, partial, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Σ (T d)² over one chunk."""
    program = tl.program_id(0)
    row = tensors + tl.load(chunks + 2 * program) * 6
    start = tl.load(chunks + 2 * program + 1) * CHUNK
    w = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    d = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    size, scaled = tl.load(row + 3), tl.load(row + 4)
    eta = tl.load(numbers + 2 * tl.load(row + 5) + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    if start + CHUNK <= size:
        for offset in tl.static_range(0, CHUNK, BLOCK):
            at = start + offset + tl.arange(0, BLOCK)
            value = tl.load(d + at)
            if scaled != 0:
                value *= tl.abs(tl.load(w + at)) + eta
            total += value * value
    else:
        for offset in tl.static_range(0, CHUNK, BLOCK):
            at = start + offset + tl.arange(0, BLOCK)
            value = tl.load(d + at, mask=at < size, other=0.0)
            if scaled != 0:
                value *= tl.abs(tl.load(w + at, mask=at < size, other=0.0)) + eta
            total += value * value
    tl.store(partial + program, tl.sum(total, axis=0))


@triton.jit
def displace(tensors, chunks, numbers, squared, length, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Write w + length · ρ T² d / ‖T d‖ for one chunk; w itself where the norm is 0."""
    program = tl.program_id(0)
    row = tensors + tl.load(chunks + 2 * program) * 6
    start = tl.load(chunks + 2 * program + 1) * CHUNK
    w = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    d = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    out = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    size, scaled, group = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)
    rho, eta = tl.load(numbers + 2 * group), tl.load(numbers + 2 * group + 1)
    norm = tl.sqrt(tl.load(squared))
    factor = tl.where(norm > 1.2e-38, length * rho / norm, 0.0)
    if start + CHUNK <= size:
        for offset in tl.static_range(0, CHUNK, BLOCK):
            at = start + offset + tl.arange(0, BLOCK)
            weight = tl.load(w + at)
            value = tl.load(d + at)
            if scaled != 0:
                value *= (tl.abs(weight) + eta) * (tl.abs(weight) + eta)
            tl.store(out + at, weight + factor * value)
    else:
        for offset in tl.static_range(0, CHUNK, BLOCK):
            at = start + offset + tl.arange(0, BLOCK)
            weight = tl.load(w + at, mask=at < size, other=0.0)
            value = tl.load(d + at, mask=at < size, other=0.0)
            if scaled != 0:
                value *= (tl.abs(weight) + eta) * (tl.abs(weight) + eta)
            tl.store(out + at, weight + factor * value, mask=at < size)
