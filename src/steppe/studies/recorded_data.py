"""Which data the runs of a study's folder learned from: runs of one table must not have learned from different images.

Each run notes its data when it begins (`data.json`). A later run with the same section `data` in its configuration has
to find the same images, whoever makes it and wherever.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steppe.config import DataConfig, PlannedRun
from steppe.data import Dataset, check_unchanged, list_changes
from steppe.errors import DataError
from steppe.runs import Run

_MEND = "bring the old data back, or choose another folder with --out"


class RecordedData:
    """The data that runs of a folder have noted, for the runs that are made there next."""

    def __init__(self, out: Path, planned: Sequence[PlannedRun]) -> None:
        """Look into a study's folder.

        Args:
            out: the folder.
            planned: the study's runs.
        """
        self._out = out
        self._runs: dict[DataConfig, list[str]] = {}
        for run in planned:
            self._runs.setdefault(run.config.data, []).append(run.config.run_id)
        self._known: dict[DataConfig, dict[str, Any]] = {}

    def check(self) -> None:
        """Refuse a folder whose runs learned from different images under the same configuration of data.

        Raises:
            DataError: it names two such runs, and in what their data differ.
        """
        for config, names in self._runs.items():
            noted = {name: about for name in names if (about := self._read(name))}
            for name, about in noted.items():
                first = next(iter(noted))
                if changes := list_changes(noted[first], about):
                    what = f"the runs {first} and {name} learned from different data: {'; '.join(changes)}"
                    raise DataError(what, where=str(self._out), fix="remove the folders of the runs that are wrong")
            if noted:
                name = next(iter(noted))
                self._known[config] = {"run": name, "data": noted[name]}

    def of(self, config: DataConfig) -> dict[str, Any] | None:
        """What the first run with this configuration of data has noted, as a part of a worker's job.

        Args:
            config: of the run that is to be made.
        """
        for name in self._runs.get(config, ()) if config not in self._known else ():
            if about := self._read(name):
                self._known[config] = {"run": name, "data": about}
                break
        return self._known.get(config)

    def _read(self, name: str) -> dict[str, Any]:
        path = self._out / name
        return Run(path).read_or_empty("data.json") if (path / "config.toml").is_file() else {}


def check_recorded(recorded: dict[str, Any] | None, dataset: Dataset, folder: Path) -> None:
    """Refuse to make a run of a study from other data than its folder's runs.

    Args:
        recorded: from `RecordedData.of`.
        dataset: what was loaded for the run.
        folder: the study's.

    Raises:
        DataError: the data have changed; it names in what.
    """
    if recorded is not None:
        what = f"the data are not those that {recorded['run']} was made with"
        check_unchanged(recorded["data"], dataset, what=what, where=str(folder), fix=_MEND)
