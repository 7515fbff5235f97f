"""The prediction is what the measured slopes say, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cost_model import MIB, Slopes, slopes_of, table


def point(series: str, label: str, *, mib: int, keys: int, seconds: float) -> dict[str, Any]:
    return {
        "series": series, "label": label, "log_bytes": mib * MIB, "keys": keys,
        "work": [seconds + 0.5, seconds],
    }  # fmt: skip


POINTS = [
    point("log size", "small", mib=100, keys=1000, seconds=1.2),
    point("log size", "large", mib=300, keys=3000, seconds=3.4),
    point("distinct keys", "few", mib=100, keys=1000, seconds=1.0),
    point("distinct keys", "many", mib=100, keys=11_000, seconds=2.0),
    point("partitions", "1", mib=100, keys=1000, seconds=1.0),
    point("partitions", "11", mib=100, keys=1000, seconds=1.5),
]


def test_slopes_take_keys_apart_from_bytes() -> None:
    """Of the 2.2 seconds that 200 MiB more take, 2000 keys more account for 0.2."""
    slopes = slopes_of(POINTS)
    assert slopes.seconds_a_key == pytest.approx(1e-4)
    assert slopes.seconds_a_mib == pytest.approx(0.01)
    assert slopes.seconds_a_partition == pytest.approx(0.05)


def test_a_log_of_the_series_takes_what_was_measured() -> None:
    slopes = Slopes(0.01, 1e-4, 0.05)
    assert 3.35 == pytest.approx(slopes.core_seconds(mib=300, keys=3000, partitions=1))


def test_results_without_a_series_are_refused() -> None:
    with pytest.raises(SystemExit):
        slopes_of(POINTS[:4])


def test_ten_times_the_executors_take_a_tenth_of_the_time() -> None:
    rows = table(Slopes(0.0, 0.0, 1080.0), tib=1, partitions=100, keys=0).splitlines()
    hours = {line.split("|")[1].strip(): float(line.split("|")[2]) for line in rows[4:]}
    assert {"10": 1.0, "50": 0.2, "100": 0.1, "500": 0.02} == hours
