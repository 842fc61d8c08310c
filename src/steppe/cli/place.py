"""Options that say where and how a run happens, not what it is: they do not change its name or its result."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from steppe.config.lookup import check_device_name
from steppe.errors import ConfigError
from steppe.runs import TRACKERS, check_trackers

_PANEL = "How images are kept"
_READERS = "processes that read images which are not kept in memory; 0 reads in a thread"


DataRootOption = Annotated[
    Path | None, typer.Option(help="where named data sets live  \\[default: $STEPPE_DATA, else ./data]")
]


def check_device(name: str | None) -> str | None:
    """Refuse a device of a kind that steppe does not know, before torch is imported; the callback of an option."""
    return None if name is None else check_device_name(name)


DeviceOption = Annotated[
    str | None,
    typer.Option(callback=check_device, help="cpu, cuda, cuda:1 …  \\[default: the GPU where there is one]"),
]


class Keep(StrEnum):
    """Where the images of a folder are kept."""

    auto = "auto"
    memory = "memory"
    cache = "cache"
    stream = "stream"


class Place(StrEnum):
    """Where many runs are made."""

    here = "here"
    ray = "ray"


OnOption = Annotated[Place, typer.Option("--on", help="on this machine, or as tasks of a Ray cluster")]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="--on ray: the cluster, as `ray start` says it  \\[default: $RAY_ADDRESS, else one made here]"
    ),
]


def check_place(on: Place, address: str | None) -> None:
    """Refuse the address of a cluster that is not asked for."""
    if address and on is not Place.ray:
        raise ConfigError("--address is the address of a Ray cluster", where="--address", fix="add --on ray")


KeepOption = Annotated[
    Keep,
    typer.Option(
        "--keep",
        help="images of a folder: in memory, in a memory-mapped cache (decoded once), or stream (decoded each time); "
        "auto: in memory where they fit",
        rich_help_panel=_PANEL,
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="folder of the caches  \\[default: $STEPPE_CACHE, else steppe in $XDG_CACHE_HOME or ~/.cache]",
        rich_help_panel=_PANEL,
    ),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-limit",
        min=0,
        help="--keep auto: so many GiB at most in memory  \\[default: a third of the machine's]",
        rich_help_panel=_PANEL,
    ),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", "--readers", min=0, max=1024, help=_READERS, rich_help_panel=_PANEL)
]
ReadersOption = Annotated[
    int, typer.Option("--readers", min=0, max=1024, help=f"for each run, {_READERS}", rich_help_panel=_PANEL)
]
ResidentOption = Annotated[
    bool | None,
    typer.Option(
        "--resident/--no-resident",
        help="keep training images that are in memory on the device  \\[default: where they fit]",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def _check_trackers(names: list[str] | None) -> list[str] | None:
    check_trackers(names or ())
    return names


TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help=f"also tell a tracker: {', '.join(TRACKERS)}; may be given several times",
        show_default=False,
        callback=_check_trackers,
    ),
]


def gibibytes(size: float | None) -> int | None:
    """Bytes of so many GiB; at least one, since none would mean no limit."""
    return None if size is None else max(1, int(size * 2**30))
