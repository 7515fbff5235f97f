"""Unpacks the cases once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archive import unpack

ARCHIVE = Path(__file__).parent / "fixtures.tar.xz"


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every case of the archive; tests must not write into it."""
    directory = tmp_path_factory.mktemp("fixtures")
    unpack(ARCHIVE, directory)
    return directory
