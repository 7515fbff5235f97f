"""The page of compatibility says of versions what the files that decide them say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from keeplast.cluster.tested_releases import TESTED_VERSIONS
from tests.kafka.broker import VERSIONS
from tools.reference.compatibility_page import areas

ROOT = Path(__file__).resolve().parents[3]
ROWS = [row for area in areas() for row in area["row"]]
CI = (ROOT / ".ci" / "run").read_text("utf-8")
RUN = r"(?:step|begin(?= ([a-z-]+) )(?=[\s\S]*^finish \1$))"
"""How CI runs a command. One that is begun counts when it is waited for: else it cannot fail."""


def of_ci(what: str) -> set[str]:
    """Return the versions that CI tries of one thing."""
    rows = [row for row in ROWS if row["what"] == what and row["how"] == "ci"]
    assert rows, what
    return {version for row in rows for version in row["versions"]}


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['what']} {r['how']}" for r in ROWS])
def test_a_row_is_proven_as_it_says(row: dict[str, Any]) -> None:
    if row["how"] == "ci":
        assert re.search(rf"^{RUN} [a-z-]+ \d+m {re.escape(row['step'])}( |$)", CI, re.MULTILINE)
        assert row["proof"]
    elif row["how"] == "hand":
        assert re.fullmatch(r"(\d{1,2} )?[A-Z][a-z]+ 20\d\d", row["date"])
    else:
        assert ("no", []) == (row["how"], row.get("proof", []))
    for name, text in row.get("proof", []):
        assert text in (ROOT / name).read_text("utf-8"), name


def test_kafkas_releases_are_those_of_the_brokers_that_tests_start() -> None:
    poms = {path.name.split("-")[1] for path in (ROOT / "tests/kafka").glob("kafka-*.pom.xml")}
    releases = {name.removesuffix(".pom.xml") for name in poms}
    assert releases == set(VERSIONS) == set(TESTED_VERSIONS)
    assert releases == of_ci("Data directories of brokers") == of_ci("Live clusters")


def test_exporters_are_those_that_tests_start() -> None:
    found = (ROOT / "tests" / "kafka").glob("jmx-exporter-*.pom.xml")
    names = {path.name.removeprefix("jmx-exporter-").removesuffix(".pom.xml") for path in found}
    assert names == of_ci("Prometheus JMX exporter, for `broker-metrics`")


@pytest.mark.parametrize(
    ("what", "name", "pattern"),
    [
        ("Spark and PySpark", "requirements.lock", r"^pyspark==(.+)$"),
        ("confluent-kafka, for live clusters", "requirements.lock", r"^confluent-kafka==(.+)$"),
        ("S3: versitygw", "Makefile", r"versitygw@v(\S+)$"),
        ("Azure: Azurite, Microsoft's emulator", "Makefile", r"^AZURITE_VERSION := (\S+)$"),
        ("Python", "Makefile", r"for p in python(\S+) "),
        ("Java, for Spark", "Makefile", r"^Spark needs Java (\d+) or newer"),
    ],
)
def test_a_version_is_the_one_that_is_installed(what: str, name: str, pattern: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert set(re.findall(pattern, text, re.MULTILINE)) == of_ci(what)


def test_what_is_refused_of_live_clusters_is_between_the_tested_releases() -> None:
    (row,) = [r for r in ROWS if r["what"] == "Live clusters" and r["how"] == "no"]
    assert set() == set(row["versions"]) & {v.rpartition(".")[0] for v in TESTED_VERSIONS}
