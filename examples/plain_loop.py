"""ASAM in a plain torch loop. Run: python examples/plain_loop.py  (a few seconds on a CPU; accuracy about 0.93)."""

from __future__ import annotations

import torch
from digits import accuracy, load_data, make_model
from torch.nn.functional import cross_entropy

from steppe.minimizers import ASAM


def main(epochs: int = 5) -> float:
    """Train and return the test accuracy."""
    (x, y), test = load_data()
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    minimizer = ASAM(base, rho=0.5, model=model)  # model: parameter names, and BatchNorm's statistics once a step
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(minimizer, epochs)
    for epoch in range(epochs):
        for part in torch.randperm(len(x)).split(128):

            def closure(part: torch.Tensor = part) -> torch.Tensor:
                loss = cross_entropy(model(x[part]), y[part])
                loss.backward()
                return loss

            loss = minimizer.step(closure)  # both passes; the loss is the first one's
        scheduler.step()
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}, test accuracy {accuracy(model, *test):.3f}")
    print(f"paid {minimizer.gradient_evaluations:.0f} gradients in {minimizer.step_count} steps")
    return accuracy(model, *test)


if __name__ == "__main__":
    main()
