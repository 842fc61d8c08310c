"""Whether what a configuration names is there: looked at before torch is imported and before an image is read."""

from __future__ import annotations

import re
from pathlib import Path

from steppe.config.folders import data_root
from steppe.config.names import DATASETS, DEVICES, MODELS, is_short_name
from steppe.config.pretrained import PRETRAINED, locate
from steppe.config.run import RunConfig
from steppe.config.spelling import is_timm_name, spell_data, timm_names
from steppe.config.study import OF_SEVERAL, OF_THE_STUDY
from steppe.errors import ConfigError, DataError, SteppeError, nearest, unknown_name


def check_names(config: RunConfig, root: str | Path | None = None) -> None:
    """Refuse a run whose data, model or weights are not there.

    Args:
        config: the run.
        root: the folder of data sets; see `data_root`.

    Raises:
        ConfigError: there is no such data set or model, or there are no such weights.
        DataError: there is no such folder or file.
    """
    find_data(config.data.name, root)
    check_model_name(config.model.name)
    if config.model.weights is not None:
        check_weights(config.model.weights, root)


def check_data_name(name: str, root: str | Path | None = None) -> str:
    """Return the canonical name of a data set, a folder or a file; raise an error where there is no such thing.

    Args:
        name: as the user wrote it.
        root: the folder of data sets; see `data_root`.

    Raises:
        ConfigError: there is no such data set.
        DataError: there is no such folder or file.
    """
    name = spell_data(name)
    find_data(name, root)
    return name


def find_data(name: str, root: str | Path | None = None) -> Path | None:
    """Find the folder or the .npz file that is meant by a name; None for a data set that steppe knows.

    Args:
        name: of the configuration. NAME.npz and folders NAME in the folder of data sets are found by their name, too.
        root: the folder of data sets; see `data_root`.

    Raises:
        ConfigError: there is no such data set.
        DataError: there is no such folder or file, or it holds no images.
    """
    if name in DATASETS:
        return None
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # there is no such user
        path = Path(name)
    is_bare = len(path.parts) == 1 and "/" not in name
    try:
        if is_bare and not path.exists():
            base = data_root(root)
            path = next((p for p in (base / f"{path.name}.npz", base / path.name) if p.exists()), path)
        if path.is_dir() or (path.exists() and path.suffix.lower() == ".npz"):
            return path
        if path.exists():
            fix = "name a folder with a sub-folder of images for each class, or a .npz file"
            raise DataError("this is neither a folder nor an .npz file", where=str(path), fix=fix)
    except (OSError, ValueError) as error:  # a name too long, a null character, no right to look
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"the data cannot be found: {reason}", where=name[:200], fix="check the path") from None
    raise _no_such_data(name, path, is_bare)


def check_model_name(name: str) -> None:
    """Refuse a model that neither steppe nor timm knows.

    Args:
        name: of the configuration; parts that are joined by + are checked one by one.

    Raises:
        ConfigError: there is no such model.
    """
    for part in name.split("+"):
        if not is_short_name(part) and not is_timm_name(part.removeprefix("timm:")):
            known = dict.fromkeys([*MODELS, *sorted(timm_names())])
            raise unknown_name("model", part, known, where="model.name", see="steppe models")


def check_device_name(name: str) -> str:
    """Return the name of a device; raise an error where no machine has one of this name.

    Args:
        name: as the user wrote it, such as "cuda:1".

    Raises:
        ConfigError: steppe computes on no such device.
    """
    if not re.fullmatch(rf"(?:{'|'.join(DEVICES)})(?::\d{{1,3}})?", name):
        what = f"device {name!r} cannot be used: steppe computes on {', '.join(DEVICES)}"
        raise ConfigError(what, where="--device", fix="use --device cpu, or leave it away")
    return name


def check_weights(source: str, root: str | Path | None = None) -> None:
    """Refuse weights that are not there; those of a hub, of timm or of a study's own runs are not looked for.

    Args:
        source: `model.weights`; parts that are joined by + are checked one by one.
        root: the folder of data sets; see `data_root`.

    Raises:
        ConfigError: there are no such weights.
    """
    for part in source.removeprefix(OF_SEVERAL).split("," if source.startswith(OF_SEVERAL) else "+"):
        if part in ("auto", "timm") or part.startswith(("timm:", "hf-hub:", "hf_hub:", OF_THE_STUDY)):
            continue
        known = PRETRAINED.get(part)
        path = Path(part).expanduser()
        if known is None and not path.exists() and path.suffix != ".pth":  # for some of those there is more to say
            raise no_weights(part, path)
        if known is not None and not known.hub and locate(part, root) is None:
            raise no_weights(part, path)


def no_weights(source: str, path: Path) -> ConfigError:
    """Build the error for weights that are not there.

    Args:
        source: `model.weights`.
        path: where they would be.
    """
    if source in PRETRAINED:
        what = f"the weights {source!r} are not on this machine"
        return ConfigError(what, where="model.weights", fix=f"fetch them: steppe weights get {source}")
    if is_timm_name(source):
        fix = f"did you mean timm:{source}?"
    else:
        close = nearest(source, PRETRAINED)
        fix = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        fix += "give a name of `steppe weights list`, a safetensors or .pth file, a run folder, timm:NAME or "
        fix += "hf-hub:OWNER/NAME"
    return ConfigError(f"there are no weights at {path}", where="model.weights", fix=fix)


def _no_such_data(name: str, path: Path, is_bare: bool) -> SteppeError:
    close = nearest(path.name, _names_in(path.parent))
    if is_bare and path.suffix.lower() != ".npz":
        error = unknown_name("data set", name, [*DATASETS, *close], where="data.name", see="steppe data")
        return ConfigError(f"{error.what}, and no folder of this name", where=error.where, fix=error.fix)
    what = "there is no such file" if path.suffix.lower() == ".npz" else "there is no such folder or .npz file"
    near = " or ".join(repr(str(path.parent / one)) for one in close)
    return DataError(what, where=str(path), fix=f"did you mean {near}?" if close else "check the path")


def _names_in(folder: Path) -> list[str]:
    """The names of folders and .npz files that stand in a folder."""
    try:
        return [p.name for p in sorted(folder.iterdir())[:1000] if p.is_dir() or p.suffix.lower() == ".npz"]
    except (OSError, ValueError):
        return []
