"""Names in any spelling: upper or lower case, `-` or `_` or neither; a configuration keeps the canonical one."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from steppe.config.names import DATASETS, MODELS, is_short_name

_FROM_TIMM = "timm:"


def fold(name: str) -> str:
    """Drop what does not distinguish names: case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def spell(name: str, known: Iterable[str]) -> str:
    """Return the known name that is spelled almost like this one; the name itself where none or several are.

    Args:
        name: as the user wrote it.
        known: canonical names.
    """
    known = list(known)
    alike = [one for one in known if fold(one) == fold(name)]
    return alike[0] if len(alike) == 1 and name not in known else name


def spell_data(name: str) -> str:
    """Return a data set's canonical name, or a path without a slash at its end.

    A file or folder of exactly this spelling comes before a data set in another spelling: `Pets` stays the folder
    `./Pets` where there is one. A slash at the end always means a folder.

    Args:
        name: a data set, a folder or a file.
    """
    bare = name.rstrip("/") or name
    known = spell(bare, DATASETS)
    if known not in DATASETS or name in DATASETS:
        return bare
    is_path = bare != name or (bare != known and _exists(bare))
    return f"./{bare}" if is_path else known


def spell_model(name: str) -> str:
    """Return the canonical name of a model, ours or timm's; parts that are joined by + one by one.

    Args:
        name: such as "ResNet-18" or "timm:ViT_Tiny_Patch16_224"; a name that nobody knows stays as it is.
    """
    return "+".join(map(_spell_one_model, name.split("+")))


def is_timm_name(name: str) -> bool:
    """Say whether timm has a model of this name, with or without a tag of its weights; timm is not imported for it."""
    return name.partition(".")[0] in timm_names()


def timm_names() -> frozenset[str]:
    """Return the names of timm's models, and of those that the user's program registered there."""
    timm = sys.modules.get("timm")
    registered = timm.list_models() if timm is not None and hasattr(timm, "list_models") else ()
    return _names_in_source().union(registered)


@cache
def _names_in_source() -> frozenset[str]:
    """Read the names of timm's models from its source: importing it takes seconds."""
    found = importlib.util.find_spec("timm")
    folder = Path(found.origin if found and found.origin else "").parent / "models"
    names: set[str] = set()
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        names |= set(re.findall(r"@register_model\s+def (\w+)\(", text))
        for old in re.findall(r"register_model_deprecations\(__name__, \{(.*?)\}\)", text, re.DOTALL):
            names |= set(re.findall(r"""['"](\w+)['"]\s*:""", old))
    return frozenset(names)


def _spell_one_model(name: str) -> str:
    lower = name.lower()
    prefix = _FROM_TIMM if lower.startswith(_FROM_TIMM) else ""
    own = name[len(prefix) :]
    if own == (plain := own.lower().replace("-", "_")):
        return prefix + own
    if not prefix and is_short_name(plain):
        return plain
    if is_timm_name(own):
        return prefix + own
    architecture, dot, tag = plain.partition(".")
    if is_timm_name(architecture):
        return prefix + plain
    known = [*([] if prefix or dot else MODELS), *timm_names()]
    spelled = spell(architecture, dict.fromkeys(known))
    return f"{prefix}{spelled}{dot}{tag}" if spelled in known else name


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
