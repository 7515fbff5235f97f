"""Prometheus scrapes loops: alerts fire, and each panel of the dashboard is answered.

The first loop works on the console's demo, whose logs are overdue and one of them damaged; the
second on a store; the third may write no receipt; of a fourth there is only the address. Rules are
those that are shipped, but without their time to wait.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.service.gauges import GAUGES
from keeplast.service.metrics import (
    ATTACHED_METRICS,
    BLOCKED,
    COUNTERS,
    PARTITION_GAUGES,
    PARTITIONS,
    REMOVED_RECORDS,
    TIER_COUNTERS,
    TIER_GAUGES,
)
from tests.support.ports import free_port
from tests.support.postgresql_server import stop_process
from tests.support.waiting import wait_until
from tools.demo_console import main as make_demo

pytestmark = pytest.mark.watch

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "keeplast.rules.yml"
RULE_TESTS = Path(__file__).with_name("keeplast.rules.test.yml")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "keeplast.json").read_text())
SAMPLE = ROOT / "src" / "keeplast" / "samples" / "broker-4.3.0"
NEEDS_A_CLUSTER = re.compile("keeplast_attached_|keeplast_tier_unserved_offsets")
"""Only a loop over a live cluster serves these; their names are held against its own table."""
ALERTS = {
    each["alert"]: each
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for each in group["rules"]
}
QUERIES = [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]  # fmt: skip
SETTINGS = {"demo": ("--config=log.cleaner.io.max.bytes.per.second=2000",)}
"""Its rounds take minutes, so that its logs stay overdue until they are asked for."""
DIRTY = "--config=min.cleanable.dirty.ratio=0.2"
"""The sample is due for a round by it, which a store keeps with its partitions."""
SCRAPES = "[10s]"
"""A rate's range in the dashboard's queries: so many scrapes of a second each."""


def promtool(*words: str | Path) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def asked(query: str) -> str:
    """Return a query of the dashboard as Grafana asks it where all is chosen."""
    return re.sub(r"\$(job|instance|topic)\b", ".*", query.replace("[$__rate_interval]", SCRAPES))


def test_rules_are_what_prometheus_takes() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_each_alert_fires_when_it_must_and_not_before() -> None:
    tests = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    checked: dict[str, set[bool]] = {}
    for each in tests:
        outcomes = checked.setdefault(each["name"], set())
        for check in each["promql_expr_test"]:
            assert f'alertname="{each["name"]}"' in check["expr"]
            outcomes.add(bool(check["exp_samples"]))
    assert {each: {True, False} for each in ALERTS} == checked
    promtool("test", "rules", RULE_TESTS)


def test_the_page_says_what_to_do_about_each_alert() -> None:
    page = (ROOT / "docs" / "how-to" / "alerts.md").read_text("utf-8")
    anchors = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    rows = dict(re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\w+) \|", page, re.MULTILINE))
    assert f"SUCCESS: {len(ALERTS)} rules found" in page
    assert set(ALERTS) == anchors
    assert {name: each["labels"]["severity"] for name, each in ALERTS.items()} == rows
    for name, each in ALERTS.items():
        assert f"docs/how-to/alerts.md#{name.lower()}" == each["annotations"]["runbook"]


def test_dashboard_and_rules_name_metrics_that_there_are(tmp_path: Path) -> None:
    served = {each.metric for each in GAUGES} | {BLOCKED, PARTITIONS, f"{REMOVED_RECORDS}_total"}
    served |= {f"{c.name}_total" for c in COUNTERS} | {f"{c.name}_total" for c in TIER_COUNTERS}
    served |= {each.name for each in (*PARTITION_GAUGES, *TIER_GAUGES)}
    served |= {f"{e.name}_total" if e.is_counter else e.name for e in ATTACHED_METRICS}
    text = "\n".join([*QUERIES, *(each["expr"] for each in ALERTS.values())])
    shown = set(re.findall(r"\b(?:keeplast|kafka_log)_\w+", text))
    assert set() == shown - served
    # What a loop serves and no page shows would never be found.
    seen = {name for query in QUERIES for name in re.findall(r"\b\w+", query)}
    assert {"kafka_log_LogCleaner_DeadThreadCount"} == served - seen
    recorded = [{"record": f"panel:{n}", "expr": asked(each)} for n, each in enumerate(QUERIES)]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", path)


class Watched(Struct, frozen=True):
    """A Prometheus, and the consoles of the loops that it scrapes, by the loops' names."""

    address: str
    consoles: dict[str, int]

    def get(self, query: str) -> list[dict[str, Any]]:
        """Return the series that answer a query now, none while nothing listens yet."""
        words = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/query?{words}", timeout=30) as got:
                found: list[dict[str, Any]] = json.load(got)["data"]["result"]
        except OSError:
            return []
        return found

    def firing(self, alert: str) -> list[str]:
        """Return the loops of which an alert fires."""
        found = self.get(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
        return sorted({each["metric"].get("loop", "") for each in found})


def keeplast(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "keeplast", *map(str, words)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    make_demo(root / "demo", time.time_ns() // 1_000_000)
    blocked = root / "blocked"
    shutil.copytree(SAMPLE, blocked)
    (blocked / RECEIPTS_NAME).mkdir()
    store = f"sqlite:///{root / 'meta.db'}"
    made = keeplast("copy", SAMPLE, store, "--new", "--objects", root / "objects", DIRTY)
    subprocess.run(made, check=True, capture_output=True)
    places = {"demo": str(root / "demo"), "store": store, "blocked": str(blocked)}
    ports = {name: (free_port(), free_port()) for name in places}
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"loop": name}}
        for name, (port, _) in (*ports.items(), ("gone", (free_port(), 0)))
    ]
    scrape = {"job_name": "keeplast", "static_configs": targets}
    (root / "rules.yml").write_text(
        re.sub(r"^( +for:) .+", r"\1 0s", RULES.read_text(), flags=re.M)
    )
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(root / "rules.yml")], "scrape_configs": [scrape],
    }  # fmt: skip
    (root / "prometheus.json").write_text(json.dumps(config))
    promtool("check", "config", root / "prometheus.json")
    address = f"127.0.0.1:{free_port()}"
    commands = {
        name: keeplast("run", place, "--cores=1", f"--metrics-port={ports[name][0]}",
                       f"--console=127.0.0.1:{ports[name][1]}",
                       *SETTINGS.get(name, ()))
        for name, place in places.items()
    }  # fmt: skip
    commands["prometheus"] = [
        "prometheus", f"--config.file={root / 'prometheus.json'}",
        f"--web.listen-address={address}", f"--storage.tsdb.path={root / 'series'}",
    ]  # fmt: skip
    with ExitStack() as stack:
        for name, command in commands.items():
            said = stack.enter_context((root / f"{name}.said").open("wb"))
            process = subprocess.Popen(command, stdout=said, stderr=said)
            stack.callback(stop_process, process, signal.SIGTERM)
        yield Watched(f"http://{address}", {name: port for name, (_, port) in ports.items()})


@pytest.mark.parametrize(
    ("alert", "loop"),
    [
        ("KeeplastPartitionSkipped", "demo"),
        ("KeeplastDeadlineMissed", "demo"),
        ("KeeplastErasureOverdue", "demo"),
        ("KeeplastBlocked", "blocked"),
        ("KeeplastDown", "gone"),
    ],
)
def test_an_alert_fires_of_the_loop_that_it_is_about(
    watched: Watched, alert: str, loop: str
) -> None:
    wait_until(lambda: watched.firing(alert) == [loop], words=lambda: str(watched.get("ALERTS")))


@pytest.mark.parametrize("query", [q for q in QUERIES if not NEEDS_A_CLUSTER.search(q)])
def test_a_panel_is_answered(watched: Watched, query: str) -> None:
    wait_until(lambda: watched.get(asked(query)) != [], words=lambda: query)


def test_a_pod_is_ready_while_its_loop_can_work(watched: Watched) -> None:
    # The image has it as keeplast-healthy, which is what the chart's probe calls.
    script = (ROOT / "deploy" / "container" / "healthy.py").resolve(strict=True)

    def ended(loop: str) -> int:
        url = f"http://127.0.0.1:{watched.consoles[loop]}/healthz"
        return subprocess.run([sys.executable, script, url], check=False).returncode

    wait_until(lambda: ended("demo") == 0)
    wait_until(lambda: ended("store") == 0)
    assert 1 == ended("blocked")
