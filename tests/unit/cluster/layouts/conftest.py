"""What Aiven's plugin wrote, unpacked once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin_vectors import unpack_vectors


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every case; tests must not write into it."""
    directory = tmp_path_factory.mktemp("plugin")
    unpack_vectors(directory)
    return directory


@pytest.fixture
def key_options(vectors: Path) -> dict[str, str]:
    """The plugin's settings that name its throw-away key pair."""
    pair = "encryption.key.pairs.k1"
    return {
        "encryption.key.pairs": "k1",
        f"{pair}.public.key.file": str(vectors / "keys" / "public.pem"),
        f"{pair}.private.key.file": str(vectors / "keys" / "private.pem"),
    }
