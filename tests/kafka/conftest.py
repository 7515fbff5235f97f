"""Starts Kafka's own classes once per session, and a tiered broker once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.broker import VERSIONS, Broker, tiered_broker
from tests.kafka.oracle.driver import Oracle


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add how long what has no end by itself goes on."""
    parser.addoption("--store-seconds", help="how long a store is copied next to a broker")
    parser.addoption("--soak-minutes", default="10", help="how long three brokers are soaked")
    parser.addoption("--plugin", help="the directory of Aiven's plugin's jars, for real_plugin.py")
    parser.addoption("--soak-seed", default="1", help="what happens to them is drawn from it")


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The referee; fetches Kafka's jars on first use."""
    with Oracle() as running:
        yield running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for ``broker`` on each version, or on those of the module's ``BROKERS``."""
    if "broker_version" in metafunc.fixturenames:
        versions = getattr(metafunc.module, "BROKERS", VERSIONS)
        metafunc.parametrize("broker_version", versions, scope="module")


@pytest.fixture(scope="module")
def broker(broker_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a remote tier. A module that fills it has a fixture of this name over it."""
    with tiered_broker(broker_version, tmp_path_factory.mktemp("tiered")) as running:
        yield running
