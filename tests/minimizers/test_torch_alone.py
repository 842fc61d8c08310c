"""`pip install --no-deps steppe` beside torch: `steppe.minimizers` steps where nothing but torch can be imported."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

SOURCE = Path(__file__).parents[2] / "src"

CODE = """
import json, sys
import torch
from steppe.minimizers import METHODS, Batch, create

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()
losses = {}
for method in METHODS:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)]
    model = torch.nn.Sequential(*layers)
    minimizer = create(method, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    one_each = lambda part: torch.nn.functional.cross_entropy(model(x[part]), y[part], reduction="none")
    losses[method] = [float(minimizer.step(Batch(len(x), one_each))) for _ in range(5)]
try:
    import numpy
except ModuleNotFoundError:
    print(json.dumps(losses))
"""


def names_torch_needs() -> set[str]:
    """Torch and its dependencies, and theirs, as they are installed here."""
    found, waiting = set(), ["torch"]
    while waiting:
        name = waiting.pop()
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # a dependency that is left out here
            continue
        found.add(name)
        wanted = [one for one in map(Requirement, required) if one.marker is None or one.marker.evaluate({"extra": ""})]
        waiting += [one.name for one in wanted if one.name not in found]
    return found


def test_minimizers_step_where_only_torch_can_be_imported(tmp_path):
    allowed = {name.lower().replace("_", "-") for name in names_torch_needs()}
    for top, owners in metadata.packages_distributions().items():
        if not allowed & {owner.lower().replace("_", "-") for owner in owners}:
            continue
        for folder in map(Path, sys.path):
            for place in (folder / top, folder / f"{top}.py"):
                if place.exists() and not (tmp_path / place.name).exists():
                    (tmp_path / place.name).symlink_to(place.resolve())
    assert (tmp_path / "torch").exists()
    paths = os.pathsep.join([str(tmp_path), str(SOURCE)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-W", "ignore", "-c", CODE]  # -S: no site-packages
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = json.loads(done.stdout)
    assert len(losses) > 10
    for method, (first, *_, last) in losses.items():
        assert last < first, method


def test_a_package_that_imports_more_would_fail(tmp_path):
    """The same isolation refuses `steppe.config`, which needs pydantic."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-S", "-c", "import steppe.config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert "ModuleNotFoundError" in done.stderr
