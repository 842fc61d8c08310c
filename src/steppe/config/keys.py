"""The keys of a run, and the one word for each: a flag of the command line, an argument of `steppe.train`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from steppe.config.run import RunConfig
from steppe.config.toml import leaves
from steppe.errors import ConfigError, unknown_name

KEYS = dict(leaves(RunConfig))
"""Key, such as "minimizer.rho" -> its field."""
_LAST = Counter(key.rpartition(".")[2] for key in KEYS)


def flag_of(key: str) -> str:
    """The flag of a key: `data.name` is --data, `minimizer.rho` is --rho, with its section where two would clash."""
    section, _, last = key.rpartition(".")
    if last == "name":
        return f"--{section}"
    return "--" + (f"{section}-{last}" if _LAST[last] > 1 else last).replace("_", "-").replace(".", "-")


def argument_of(key: str) -> str:
    """The name of a key as an argument in Python: its flag, with underscores."""
    return flag_of(key).removeprefix("--").replace("-", "_")


def ambiguous_flags() -> dict[str, list[str]]:
    """Flags that there would be if two sections had no key of the same name -> the keys that one may mean."""
    shared = [last for last, count in _LAST.items() if count > 1 and last != "name"]
    return {f"--{last.replace('_', '-')}": [key for key in KEYS if key.endswith(f".{last}")] for last in shared}


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put values by key into tables by section, as a configuration file has them; those that are None are left out.

    Args:
        values: such as {"minimizer.rho": 0.1}.
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None:
            *sections, last = key.split(".")
            table = out
            for section in sections:
                table = table.setdefault(section, {})
            table[last] = value
    return out


def nest_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Put arguments such as {"minimizer": "sam", "rho": 0.1} into tables by section.

    Args:
        arguments: by the names that `argument_of` gives.

    Raises:
        ConfigError: there is no such argument, or it may mean several keys.
    """
    known = {argument_of(key): key for key in KEYS}
    unclear = {flag.removeprefix("--").replace("-", "_"): keys for flag, keys in ambiguous_flags().items()}
    for name in arguments:
        if name in unclear:
            meant = [f"{argument_of(key)} ({KEYS[key].description})" for key in unclear[name]]
            what, fix = f"{name} could mean several arguments", f"say {' or '.join(meant)}"
            raise ConfigError(what, where="the arguments", fix=fix)
        if name not in known:
            raise unknown_name("argument", name, known, where="the arguments", see="steppe train --help")
    return nest({known[name]: value for name, value in arguments.items()})
