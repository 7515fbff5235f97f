"""Builds cases with Kafka's own writer and cleaner: a script becomes ``before/`` and ``after/``.

A case to build is a dictionary: ``name``, ``config`` (topic settings for writing and cleaning),
``now``, ``stages`` (``{"write": [operations]}``, ``{"clean": params}``, ``{"patch": damage}``) that
make the log as it is before, and ``params``, the cleaning that is recorded. What comes out is the
layout that ``tests/golden/README.md`` describes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.kafka.oracle.driver import KAFKA_VERSION, Oracle

Json = dict[str, Any]

PARTITION = "t-0"


def build_case(oracle: Oracle, case: Json, root: Path) -> Path:
    """Build ``case`` in the directory ``root / name`` and return that directory."""
    directory = root / str(case["name"])
    directory.mkdir(parents=True)
    config: Json = case.get("config", {})
    source = _write_stages(oracle, case, config, directory / "stages")
    shutil.copytree(source, directory / "before" / PARTITION)
    params = {**case["params"], "config": {**config, **case["params"].get("config", {})}}
    # A copy has new file times, and legacy tombstones, lags and merged segments depend on them.
    params.setdefault(
        "mtimes",
        {path.name: path.stat().st_mtime_ns // 10**6 for path in sorted(source.glob("*.log"))},
    )
    answer = oracle.demand(
        {
            "op": "clean",
            "id": case["name"],
            "in": str(source),
            "out": str(directory / "after" / PARTITION),
            "params": params,
            "dumps": str(directory / "after"),
        }
    )
    shutil.rmtree(directory / "stages")
    results = answer["rounds"]
    (directory / f"after.{len(results)}.jsonl").rename(directory / "after.jsonl")
    document: Json = {key: case[key] for key in ("name", "kind", "about", "seed") if key in case}
    document |= {
        "kafka": KAFKA_VERSION,
        "partition": PARTITION,
        "params": params,
        "expect": {"checkpoint": answer["checkpoint"], "rounds": results},
    }
    (directory / "case.json").write_text(json.dumps(document, indent=1) + "\n")
    return directory


def _write_stages(oracle: Oracle, case: Json, config: Json, work: Path) -> Path:
    """Carry out the stages below ``work``; return the partition directory they end in."""
    current = work / "0" / PARTITION
    for number, stage in enumerate(case["stages"], start=1):
        if "write" in stage:
            request: Json = {
                "op": "write",
                "dir": str(current),
                "now": stage.get("now", case.get("now", 0)),
                "config": {**config, **stage.get("config", {})},
                "ops": stage["write"],
                "log_start": stage.get("log_start", 0),
            }
            request |= {key: stage[key] for key in ("mtime", "mtimes") if key in stage}
            oracle.demand(request)
        elif "patch" in stage:
            file = str(current / stage["patch"]["file"])
            oracle.demand({**stage["patch"], "op": "patch", "file": file})
        else:
            cleaned = work / str(number) / PARTITION
            params = {**stage["clean"], "config": {**config, **stage["clean"].get("config", {})}}
            oracle.demand(
                {"op": "clean", "in": str(current), "out": str(cleaned), "params": params}
            )
            current = cleaned
    return current
