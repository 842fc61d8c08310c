"""What a search may spend, as a person writes it."""

from __future__ import annotations

import pytest

from steppe.errors import ConfigError
from steppe.search.budget import Budget, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [("90s", Budget(90)), ("20m", Budget(1200)), ("1h30m", Budget(5400)), ("200epochs", Budget(200, "epochs"))],
)
def test_budget_with_units_is_read(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10", "10m or 10s"),
        ("90", "90m or 90s"),
        ("0.5", "0.5m or 0.5s"),
        ("1h30", "1h30m or 1h30s"),
        ("2m30", "2m30s"),
    ],
)
def test_budget_without_a_unit_is_answered_with_units(text, meant):
    with pytest.raises(ConfigError, match="has no unit") as caught:
        parse_budget(text)
    assert caught.value.fix == f"did you mean {meant}?"
