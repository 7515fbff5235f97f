"""Rows of the document of ``keeplast place check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def problems(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that would end a round."""
    return [each for each in document["checks"] if each["state"] == "problem"]


def findings(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that would end a round, and those that are to be known."""
    return [each for each in document["checks"] if each["state"] in ("problem", "warning")]
