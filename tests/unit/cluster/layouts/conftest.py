"""The keys of what Aiven's plugin wrote."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def key_options(vectors: Path) -> dict[str, str]:
    """The plugin's settings that name its throw-away key pair."""
    pair = "encryption.key.pairs.k1"
    return {
        "encryption.key.pairs": "k1",
        f"{pair}.public.key.file": str(vectors / "keys" / "public.pem"),
        f"{pair}.private.key.file": str(vectors / "keys" / "private.pem"),
    }
