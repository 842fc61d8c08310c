"""Memory that runs out makes a measure work in smaller pieces, not fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from steppe.errors import SteppeError, ran_out_of_memory

T = TypeVar("T")


def in_smaller_chunks(work: Callable[[int], T], batch_size: int, say: Callable[[str], Any] | None = None) -> T:
    """Call work(batch_size); where memory runs out, again with half as many images at a time, down to one.

    Args:
        work: does it, with so many images at a time.
        batch_size: to begin with.
        say: told when it becomes smaller.

    Raises:
        SteppeError: one image alone does not fit.
    """
    while True:
        try:
            return work(batch_size)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if batch_size == 1:
            fix = "use another device (--device cpu), or a smaller image_size"
            raise SteppeError("the memory does not hold one image at a time", fix=fix)
        batch_size = max(1, batch_size // 2)
        if say is not None:
            say(f"memory ran out: going on with {batch_size} images at a time, which is the same figure")
