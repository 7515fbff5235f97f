"""Which tests one worker is given together."""

from __future__ import annotations

import pytest

from tests.conftest import CLUSTER_FILES, SPARK_ROOM, SPARK_TEST, FilesTogether


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/spark/test_tier_on_spark.py::test_a[x::y]", SPARK_ROOM),
        (f"tests/golden/test_fixtures.py::{SPARK_TEST}leaves_what_kafka[a]", SPARK_ROOM),
        ("tests/golden/test_fixtures.py::test_other", "tests/golden/test_fixtures.py"),
        (f"{CLUSTER_FILES[0]}::test_b", SPARK_ROOM),
    ],
)
def test_tests_that_share_the_session_stay_together(nodeid: str, expected: str) -> None:
    assert expected == FilesTogether._split_scope(object.__new__(FilesTogether), nodeid)
