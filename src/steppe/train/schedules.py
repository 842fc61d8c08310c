"""Learning-rate schedules, as functions of the share of the budget that is spent.

So one schedule serves every kind of budget. StepLR with a step of s epochs in a run of E is `drop_every = s / E`.
"""

from __future__ import annotations

import math

from steppe.config import MinimizerConfig, ScheduleConfig


def lr_factor(schedule: ScheduleConfig, share: float) -> float:
    """Return the learning rate at `share` (0 at the start, 1 at the end), as a factor of the peak rate.

    Warm-up rises linearly and reaches the peak when its share is over; the rest of the budget follows the schedule:
    cosine is final + (1 - final) (1 + cos(π u)) / 2, linear is 1 - (1 - final) u, step is gamma to the number of
    drops, where u is the share of what is left after the warm-up. With `hold` u is 1 before the end, and stays.
    """
    if share < schedule.warmup:
        return share / schedule.warmup
    left = (share - schedule.warmup) / (1 - schedule.warmup - schedule.hold)
    left = min(1.0, left) if schedule.hold else left
    if schedule.name == "cosine":
        return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * left)) / 2
    if schedule.name == "linear":
        return 1 - (1 - schedule.final) * left
    if schedule.name == "step":
        return schedule.gamma ** math.floor(share / schedule.drop_every + 1e-9)
    return 1.0


def radius_factor(minimizer: MinimizerConfig, share: float) -> float | None:
    """Return ρ, or for LE-SAM σ, at `share` of the budget as a factor of its peak; None where it stays.

    ρ falls along a cosine to `rho_final`, if that is given. σ rises linearly in the first twentieth, and falls to 0
    along a cosine in the last fifth, as in LE-SAM's authors' code.
    """
    if minimizer.name == "lesam":
        left = max(0.0, (min(share, 1.0) - 0.8) / 0.2)
        return min(1.0, share / 0.05) * (1 + math.cos(math.pi * left)) / 2
    if minimizer.rho_final is None:
        return None
    return minimizer.rho_final + (1 - minimizer.rho_final) * (1 + math.cos(math.pi * share)) / 2
