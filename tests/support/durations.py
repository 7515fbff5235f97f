"""Spans of time in milliseconds, as settings of Kafka have them."""

from __future__ import annotations

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
