"""On what a benchmark ran: stored with its results, and said above every table made of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return what this machine is, how busy it is now, and the date (UTC)."""
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "date": datetime.now(UTC).date().isoformat(),
    }


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether counts of both may stand in one table."""
    return all(one[key] == other[key] for key in ("cpus", "processor", "memory_bytes", "system"))


def describe(machine: Mapping[str, Any], *, kafka: str | None = None) -> str:
    """Return the machine in a line, with the version of Kafka where it took part."""
    load = machine["load_before"]
    busy = "" if load is None else f" Load when it began: {load:.1f}."
    kafka_version = "" if kafka is None else f" Kafka {kafka};"
    return (
        f"{machine['cpus']} x {machine['processor']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']};{kafka_version} {machine['date']}.{busy}"
    )


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
