"""Numbers as people read them."""

from __future__ import annotations

import pytest

from steppe.report.numbers import compact, duration, loss, percent, points, shorten, whole


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (percent(0.978, 0.003), "97.8 ± 0.3 %"),
        (percent(1.0), "100.0 %"),
        (percent(None), "–"),
        (points(0.0111), "+1.11"),
        (points(-0.0111), "−1.11"),
        (points(-1e-9), "0.00"),
        (compact(53_130), "53.1k"),
        (compact(999), "999"),
        (compact(999_999), "1.00M"),
        (compact(4_120_000_000), "4.12G"),
        (compact(0), "0"),
        (compact(None), "–"),
        (whole(12_800), "12,800"),
        (whole(3.2e6), "3.20M"),
        (duration(0.0083), "8.3 ms"),
        (duration(0.49), "0.49 s"),
        (duration(12.34), "12.3 s"),
        (duration(250), "4 min 10 s"),
        (duration(7500), "2 h 05 min"),
        (duration(3599.7), "1 h 00 min"),
        (duration(None), "–"),
        (loss(0.1234, 0.01), "0.123 ± 0.010"),
        (loss(0.00001), "1.00e-05"),
        (loss(12.34), "12.3"),
        (loss(None), "–"),
        (shorten("short", 10), "short"),
    ],
)
def test_format(shown, text):
    assert shown == text


def test_shorten_keeps_both_ends():
    cut = shorten("a_very_long_model_name_large", 12)
    assert len(cut) == 12
    assert cut.startswith("a_very")
    assert cut.endswith("rge")
