"""``compact,delete`` under load: two hosts on PostgreSQL and S3, killed and frozen at random.

``make soak ARGS='--minutes 10 --seed 7'`` runs the long form and prints what happened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.conftest import S3
from tests.support.soak import SETTINGS, Soak, described, place_for

pytestmark = pytest.mark.services

SHORT_SECONDS = 20
EXPIRING_SECONDS = 180
"""Retention has had something by then; see its time in the settings."""
MIB = 1 << 20


def test_two_hosts_under_load_stay_within_bounds_and_lose_nothing(
    database: str, s3: S3, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    minutes = request.config.getoption("--minutes", None)
    seconds = SHORT_SECONDS if minutes is None else 60 * float(minutes)
    seed = int(request.config.getoption("--seed", None) or 1)
    place = place_for(database, s3.url, tmp_path, SETTINGS, s3.options)
    counts = Soak(place, seed).run(seconds)
    print(described(counts))
    assert counts.reads > 0
    assert counts.kills > 0
    if seconds > EXPIRING_SECONDS:
        assert counts.segments_expired > 0
    assert counts.local_bytes_max < 4 * MIB
    assert counts.remote_bytes_max < 8 * MIB
    assert counts.objects_max < 3000
    assert counts.resident_bytes_max < 1024 * MIB
