"""SAM with mixed precision, gradient accumulation and clipping. Run: python examples/amp_and_accumulation.py.

The closure runs all micro-batches, so both the ascent and the descent gradient are those of the large batch. With fp16
(on a GPU) the minimizer knows the gradient scaler: an overflow in either pass skips the step. With bf16 (here on the
CPU) there is no scaler to speak of.
"""

from __future__ import annotations

import torch
from digits import accuracy, load_data, make_model
from torch.nn.functional import cross_entropy

from steppe.minimizers import SAM


def main(epochs: int = 4, micro_batches: int = 4) -> float:
    """Train and return the test accuracy."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    train, test = load_data()
    (x, y), test = (tuple(t.to(device) for t in pair) for pair in (train, test))
    model = make_model().to(device)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    minimizer = SAM(base, rho=0.05, model=model, scaler=scaler, clip_norm=1.0)
    for epoch in range(epochs):
        for large in torch.randperm(len(x), device=device).split(256):

            def closure(large: torch.Tensor = large) -> torch.Tensor:
                total = torch.zeros((), device=device)
                for part in large.chunk(micro_batches):
                    with torch.autocast(device, dtype=dtype):
                        loss = cross_entropy(model(x[part]), y[part]) * (len(part) / len(large))
                    scaler.scale(loss).backward()
                    total += loss.detach()
                return total

            loss = minimizer.step(closure)
            scaler.update()
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}, test accuracy {accuracy(model, *test):.3f}")
    return accuracy(model, *test)


if __name__ == "__main__":
    main()
