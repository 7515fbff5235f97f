"""What is expected of a stored case where keeplast differs from Kafka on purpose."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cases import Json

OURS = Path(__file__).resolve().parents[1] / "golden" / "ours"


def expected_of_ours(name: str) -> tuple[Json, ...] | None:
    """Return the rounds of ``ours/<name>.json``; None where Kafka's result is the expected one."""
    path = OURS / f"{name}.json"
    if not path.exists():
        return None
    return tuple(json.loads(path.read_text())["rounds"])
