"""Starts Kafka's own classes once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.oracle.driver import Oracle


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add how long what has no end by itself goes on."""
    parser.addoption("--beside-seconds", help="how long a store is copied beside a broker")
    parser.addoption("--soak-minutes", default="10", help="how long three brokers are soaked")
    parser.addoption("--plugin", help="the directory of Aiven's plugin's jars, for real_plugin.py")
    parser.addoption("--soak-seed", default="1", help="what happens to them is drawn from it")


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The referee; fetches Kafka's jars on first use."""
    with Oracle() as running:
        yield running
