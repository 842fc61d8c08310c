"""LookSAM inside Lightning. Run: python examples/lightning_module.py  (needs `pip install lightning`).

With automatic optimization Lightning hands its optimizers a closure, and a minimizer calls it as often as it has passes
to make. `training_step` therefore runs twice on a sharp step, and `self.log` there logs both passes.

Leave two options of the trainer alone; with a minimizer they raise an error:
- `accumulate_grad_batches`: gradients are added up outside of `step`, where a second pass cannot repeat them. Use a
  larger batch, or set `self.automatic_optimization = False` and call `self.optimizers().step(closure)` in
  `training_step` with a closure that runs all micro-batches (`self.manual_backward` for each).
- `gradient_clip_val`: it clips after every pass. Pass `clip_norm=` to the minimizer: it clips the final gradient.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from digits import load_data, make_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from steppe.minimizers import LookSAM


class Digits(lightning.LightningModule):
    """A classifier trained with LookSAM around SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.right: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Loss of one pass."""
        x, y = batch
        return cross_entropy(self.model(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Collect the accuracy."""
        x, y = batch
        self.right.append(float((self.model(x).argmax(dim=1) == y).float().mean()))

    def configure_optimizers(self) -> dict[str, Any]:
        """A minimizer is an optimizer, and takes any scheduler."""
        base = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        minimizer = LookSAM(base, rho=0.05, k=5, model=self)
        return {"optimizer": minimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(minimizer, 5)}


def main(epochs: int = 3) -> float:
    """Train and return the validation accuracy."""
    train, test = load_data()
    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader = DataLoader(TensorDataset(*train), batch_size=128, shuffle=True)
    trainer.fit(module, loader, DataLoader(TensorDataset(*test), batch_size=len(test[0])))
    minimizer = trainer.optimizers[0]
    print(f"accuracy {module.right[-1]:.3f} after {minimizer.gradient_evaluations:.0f} gradients")
    return module.right[-1]


if __name__ == "__main__":
    main()
