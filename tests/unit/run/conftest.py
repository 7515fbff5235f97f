"""Runners that a file's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keeplast.run.local_runner import LocalRunner


@pytest.fixture(scope="module")
def threads() -> Iterator[LocalRunner]:
    with LocalRunner(cores=2) as runner:
        yield runner
