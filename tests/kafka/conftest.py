"""Starts Kafka's own classes once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.oracle.driver import Oracle


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add how long a broker is copied from while it works."""
    parser.addoption("--beside-seconds", help="how long a store is copied beside a broker")


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The referee; fetches Kafka's jars on first use."""
    with Oracle() as running:
        yield running
