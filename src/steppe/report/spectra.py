"""Spectra as comparable lines: every node is a Gaussian of the same width in all that share a figure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import numpy as np

from steppe.report.numbers import number

_POINTS = 260
_PARTS = ("nodes", "weights")
_Key = TypeVar("_Key", bound=Hashable)


def smooth_alike(spectra: Mapping[_Key, Any]) -> dict[_Key, tuple[np.ndarray, np.ndarray]]:
    """Return eigenvalues and the density at each; anything that cannot be drawn is left out.

    Args:
        spectra: what `spectrum` of a `geometry.json` holds, by anything.
    """
    known = {}
    for key, found in spectra.items():
        nodes, weights = (_flat(found.get(part)) if isinstance(found, Mapping) else _flat(None) for part in _PARTS)
        if len(nodes) and len(nodes) == len(weights) and weights.sum() > 0:
            known[key] = nodes, weights / weights.sum()
    if not known:
        return {}
    width = 0.01 * max(float(np.ptp(np.concatenate([nodes for nodes, _ in known.values()]))), 1e-9)
    drawn = {}
    for key, (nodes, weights) in known.items():
        grid = np.linspace(nodes.min() - 5 * width, nodes.max() + 5 * width, _POINTS)
        bells = np.exp(-((grid[:, None] - nodes) ** 2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
        drawn[key] = grid, bells @ weights
    return drawn


def _flat(lists: Any) -> np.ndarray:
    if not isinstance(lists, list):
        return np.array([])
    flat = [number(value) for line in lists if isinstance(line, list) for value in line]
    return np.array([value for value in flat if value is not None]) if None not in flat else np.array([])
