"""Ports of tests that run side by side."""

from __future__ import annotations

import pytest

from tests.support.ports import free_port


def test_processes_that_run_tests_side_by_side_have_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    given = []
    for worker in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        given.append({free_port() for _ in range(20)})
    assert 60 == len(given[0] | given[1] | given[2])
    assert [{0}, {1}, {2}] == [{port % 3 for port in each} for each in given]
