"""Results of measures in a JSON file: the last one asked for stands under its key, those of other settings beside it.

    {"landscape": {… "settings": {"points": 50}}, "earlier": {"landscape": [{… "settings": {"points": 15}}]}}

A reader takes `file[key]` and has the newest; nothing that was measured is lost. A setting that came later than a
result counts as the default it has. A second run is known by the digest of its weights, `with_sha256`; `with` only says
where it lay, so that a run that was moved is the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EARLIER = "earlier"


def find_result(
    results: Mapping[str, Any], key: str, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Find the result of a measure that was made with just these settings; None where there is none.

    Args:
        results: what the file holds.
        key: the measure's.
        settings: all of them.
        defaults: stand for settings that a result does not mention.
    """
    return next((r for r in _all(results, key) if _same(r, settings, defaults)), None)


def put_result(
    results: Mapping[str, Any], key: str, result: dict[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the file's content with a result in front; one with the same settings is replaced, others are kept.

    Args:
        results: what the file holds.
        key: the measure's.
        result: with its `settings`.
        defaults: stand for settings that a result does not mention.
    """
    kept = [r for r in _all(results, key) if not _same(r, result.get("settings"), defaults)]
    return _laid_out(results, key, [result, *kept])


def drop_result(
    results: Mapping[str, Any], key: str, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the file's content without the result of these settings."""
    return _laid_out(results, key, [r for r in _all(results, key) if not _same(r, settings, defaults)])


def _all(results: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Every result of a measure, the newest first."""
    earlier = results.get(EARLIER)
    rest = earlier.get(key) if isinstance(earlier, Mapping) else None
    return [r for r in [results.get(key), *(rest if isinstance(rest, list) else [])] if isinstance(r, dict)]


def _same(result: Mapping[str, Any], settings: Any, defaults: Mapping[str, Any] | None) -> bool:
    own = result.get("settings")
    if not isinstance(own, Mapping) or not isinstance(settings, Mapping):
        return own == settings
    mine, asked = {**(defaults or {}), **own}, {**(defaults or {}), **settings}
    if "with_sha256" in mine and "with_sha256" in asked:
        asked["with"] = mine.get("with")
    return mine == asked


def _laid_out(results: Mapping[str, Any], key: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    old = results.get(EARLIER)
    earlier = {name: rest for name, rest in (old if isinstance(old, Mapping) else {}).items() if name != key}
    if found[1:]:
        earlier[key] = found[1:]
    out = {name: value for name, value in results.items() if name not in (EARLIER, *(() if found else (key,)))}
    if found:
        out[key] = found[0]
    return {**out, EARLIER: earlier} if earlier else out
