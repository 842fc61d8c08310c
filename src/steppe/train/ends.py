"""How a training ends before its time, as the user is told."""

from __future__ import annotations

from steppe.errors import Interrupted, TrainingError
from steppe.runs import Run
from steppe.train.checkpoint import load_checkpoint
from steppe.train.contrastive import Stage


def diverged(run: Run, step: int, steps_per_epoch: int, stage: Stage) -> TrainingError:
    """The loss is no longer a finite number: since when, what is kept, and what to try.

    Args:
        run: whose checkpoint is kept, where there is one.
        step: the first one that was off.
        steps_per_epoch: of the run.
        stage: whose settings are to be changed.
    """
    kept = "there is no checkpoint before it"
    if run.checkpoint.exists():
        epoch = load_checkpoint(run.checkpoint)["steps"] / steps_per_epoch
        kept = f"the last good checkpoint, after epoch {epoch:g}, is kept"
    config = stage.config
    key = "objective.head_lr" if stage.name == "head" else "optimizer.lr"
    sharp = ", a smaller minimizer.rho" if config.minimizer.rho else ""
    return TrainingError(
        f"the loss is no longer a finite number; {kept}",
        where=f"{run.path}, step {step} (epoch {step // steps_per_epoch + 1})",
        fix=f"try a smaller {key} than {config.optimizer.lr:g}{sharp}, schedule.warmup, or clip_norm",
    )


def interrupted(run: Run, steps: int, epochs: float, total_epochs: float) -> Interrupted:
    """The user stopped it, and can go on.

    Args:
        run: that goes on from here.
        steps: made so far.
        epochs: that these are.
        total_epochs: that it was to have.
    """
    return Interrupted(
        f"stopped after step {steps} (epoch {epochs:.2f} of {total_epochs:g}); nothing is lost",
        where=str(run.path),
        fix="run the same command again to go on from here",
    )
