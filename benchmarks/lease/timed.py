#!/usr/bin/env python3
"""Name runs of results/, as STUDY/RUN, whose claims are about time but which shared their GPU: they are timed anew.

All of these have three seeds; of the five models one rate will do, for time does not depend on it.
"""

from __future__ import annotations

from steppe.config import at_scale, plan
from steppe.studies import find_study

CELLS = {
    "five-models": {"training": {"AdamW"}, "rate": {"0.001"}},
    "accumulation": {"training": {"plain", "accumulated"}},
}


def main() -> None:
    for name, wanted in CELLS.items():
        study, where = find_study(name)
        for run in plan(at_scale(study, "small"), where=str(where)):
            if all(run.labels[axis] in values for axis, values in wanted.items()):
                print(f"{name}/{run.config.run_id}")


if __name__ == "__main__":
    main()
