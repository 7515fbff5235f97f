"""The chart renders what Kubernetes and keeplast take, whichever of its values are set."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

import keeplast
from keeplast.cli.main import app
from keeplast.cluster.client_properties import decode_client_properties
from keeplast.cluster.live_cluster import METADATA_TOPIC
from keeplast.config.places import CONFIG_VARIABLE, FoundPlace, find_place
from tests.kafka.test_attach_secured import CHANGE, TOPIC

pytestmark = pytest.mark.watch

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "keeplast"
HERE = Path(__file__).parent
GIVEN = yaml.safe_load((HERE / "chart.values.yaml").read_text())
KINDS = yaml.safe_load((HERE / "kinds.yaml").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
KUBERNETES = ("1.30", "1.37")
"""The releases whose schemas the objects are held against, the oldest and the newest."""
PODS = ("Deployment", "CronJob")
FOREIGN = ("KafkaUser", "PodMonitor", "PrometheusRule")
"""Kinds of operators: Kubernetes itself has no schema of them."""
Object = dict[str, Any]


def helm(verb: str, tmp_path: Path, values: Object) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    binary = shutil.which("helm") or str(ROOT / "build" / "bin" / "helm")
    words = {"lint": ["lint", "--strict"], "template": ["template", "release"]}[verb]
    return subprocess.run(
        [binary, *words, CHART, "--values", path, "--kube-version", "1.30.0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def rendered(tmp_path: Path, values: Object) -> list[Object]:
    done = helm("template", tmp_path, values)
    assert 0 == done.returncode, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name))
    return found


def pod_of(workload: Object) -> Object:
    spec = workload["spec"]
    spec = spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec
    pod: Object = spec["template"]["spec"]
    return pod


def leaves(values: Object, before: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def changed(path: str) -> Object:
    values: Object = copy.deepcopy(GIVEN["baseline"])
    at = values
    *folders, last = path.split(".")
    for each in folders:
        at = at.setdefault(each, {})
    at[last] = GIVEN["changes"][path]
    return values


def test_each_value_has_another_one_to_try() -> None:
    assert sorted(leaves(DEFAULTS)) == sorted(GIVEN["changes"])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    return rendered(tmp_path_factory.mktemp("baseline"), GIVEN["baseline"])


def held(objects: list[Object]) -> None:
    """Hold objects against the schemas of their kinds, Kubernetes' and ours."""
    for each in objects:
        jsonschema.validate(each, KINDS.get(each["kind"], {}))
        if each["kind"] not in FOREIGN:
            for version in KUBERNETES:
                kubernetes_validate.validate(each, version, strict=True)


def test_everything_that_is_rendered_is_what_kubernetes_takes(baseline: list[Object]) -> None:
    assert {
        "ConfigMap", "CronJob", "Deployment", "KafkaUser", "NetworkPolicy", "PersistentVolumeClaim",
        "PodMonitor", "PrometheusRule", "ServiceAccount",
    } == {each["kind"] for each in baseline}  # fmt: skip
    held(baseline)


@pytest.mark.parametrize("path", GIVEN["changes"])
def test_a_value_changes_what_is_rendered(
    tmp_path: Path, path: str, baseline: list[Object]
) -> None:
    found = rendered(tmp_path, changed(path))
    news = [each for each in found if each not in baseline]
    assert news or len(found) < len(baseline)
    held(news)


@pytest.mark.parametrize("values", [{}, GIVEN["baseline"]], ids=["nothing", "everything"])
def test_lint_finds_nothing(tmp_path: Path, values: Object) -> None:
    done = helm("lint", tmp_path, values)
    assert 0 == done.returncode, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("case", GIVEN["refused"], ids=lambda each: str(each["why"]))
def test_a_mistake_in_values_is_refused(tmp_path: Path, case: Object) -> None:
    done = helm("template", tmp_path, case["values"])
    assert 0 != done.returncode
    assert re.search(case["why"], done.stderr), done.stderr


def place_of(objects: list[Object], name: str, tmp_path: Path) -> FoundPlace:
    path = tmp_path / "keeplast.toml"
    path.write_text(one(objects, "ConfigMap", f"-{name}")["data"]["keeplast.toml"])
    return find_place(name, environment={CONFIG_VARIABLE: str(path)}, folder=tmp_path)


def test_keeplast_reads_the_places_that_are_rendered(
    tmp_path: Path, baseline: list[Object]
) -> None:
    prod = place_of(baseline, "prod", tmp_path)
    assert ("kafka://kafka-kafka-bootstrap:9093", "20000", "false", "2h", "1", "256m") == (
        prod.address, *map(prod.text, ("records-per-day", "accept-untested", "grace-ms")),
        *map(prod.text, ("cores", "memory")),
    )  # fmt: skip
    assert ("http://b1:7071/metrics", "http://b2:7071/metrics") == prod.texts("broker-metrics")
    assert prod.settings is not None
    assert "/etc/keeplast/login/client.properties" == prod.text("command-config")
    history = place_of(baseline, "history", tmp_path)
    # Of a host the name changes with the pod, and partitions would stay the last pod's.
    assert ("release-history", "4") == (history.text("owner"), history.text("cores"))
    assert "/var/lib/keeplast/history.receipts" == history.text("receipt")
    assert "/data" == place_of(baseline, "mirror", tmp_path).address


def test_commands_are_those_that_keeplast_has(baseline: list[Object]) -> None:
    commands: Any = typer.main.get_command(app)
    verbs = {}
    for each in (o for o in baseline if o["kind"] in PODS):
        verb, *words = pod_of(each)["containers"][0]["args"]
        verbs[words[0]] = verb
        context = commands.commands[verb].make_context(verb, words)
        assert context.params["take_over"]
    assert {"prod": "run", "history": "run", "mirror": "clean"} == verbs


def test_a_pod_asks_its_own_console_whether_it_can_work(baseline: list[Object]) -> None:
    (container,) = pod_of(one(baseline, "Deployment", "-history"))["containers"]
    (console,) = (each for each in container["args"] if each.startswith("--console="))
    program, url = container["readinessProbe"]["exec"]["command"]
    assert f"http://{console.removeprefix('--console=')}/healthz" == url
    image = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    assert re.search(rf"^COPY healthy\.py \S+/bin/{program}$", image, re.MULTILINE)
    user = re.search(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    defaults = DEFAULTS["placeDefaults"]
    assert user is not None
    assert (user[1], user[2]) == (str(defaults["runAsUser"]), str(defaults["runAsGroup"]))


def test_a_secret_is_only_ever_named(baseline: list[Object]) -> None:
    pod = pod_of(one(baseline, "Deployment", "-prod"))
    (container,) = pod["containers"]
    named = {each["name"]: each.get("valueFrom") for each in container["env"]}
    assert {"secretKeyRef": {"name": "tiered", "key": "secret"}} == named["TIERED_SECRET"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "secret-tier")
    assert {"secretName": "tier-keys"} == volume["secret"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "secret-tier")
    assert "/etc/keeplast/secrets/tier" == mount["mountPath"]


def test_a_pod_logs_in_as_the_user_that_strimzi_made(
    tmp_path: Path, baseline: list[Object]
) -> None:
    (init,) = pod_of(one(baseline, "Deployment", "-prod"))["initContainers"]
    for name in ("login", "user", "ca"):
        (tmp_path / name).mkdir()
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="keeplast" '
    (tmp_path / "user" / "sasl.jaas.config").write_text(f'{jaas}password="a$(b)c";')
    script = init["args"][0].replace("/etc/keeplast", str(tmp_path))
    subprocess.run([*init["command"], script], check=True)
    written = tmp_path / "login" / "client.properties"
    assert 0o600 == written.stat().st_mode & 0o777
    found = decode_client_properties(written.read_bytes(), str(written))
    assert {
        "security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "keeplast", "sasl.password": "a$(b)c",
        "ssl.ca.location": str(tmp_path / "ca" / "ca.crt"),
    }.items() <= found.items()  # fmt: skip


def test_the_user_may_do_what_rounds_need_and_the_page_says_so(baseline: list[Object]) -> None:
    user = one(baseline, "KafkaUser")
    assert "keeplast" == user["metadata"]["name"]
    allowed = {
        (operation, each["resource"]["type"], each["resource"].get("name"))
        for each in user["spec"]["authorization"]["acls"]
        for operation in each["operations"]
    }
    # Each of these is taken away and given back on a broker, by the test that names them.
    tried = {(operation, "topic" if name else "cluster", name) for operation, name in CHANGE}
    assert tried | {("Describe", "group", "billing")} == allowed
    assert {METADATA_TOPIC, TOPIC, "billing", None} == {name for _, _, name in allowed}
    page = (ROOT / "docs" / "how-to" / "attach-permissions.md").read_text("utf-8")
    lines = [
        (
            re.findall(r"--operation (\w+)", line),
            re.search(r"--(cluster|(topic|group) (\S+))", line),
        )
        for line in re.findall(r"^ *kafka-acls\.sh .*$", page, re.MULTILINE)
    ]
    listed = {
        (operation, where[2] or where[1], where[3])
        for operations, where in lines if where is not None
        for operation in operations
    }  # fmt: skip
    assert allowed == listed


def test_the_chart_has_the_release_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (keeplast.__version__, keeplast.__version__) == (chart["version"], chart["appVersion"])


@pytest.mark.parametrize("number", range(2))
def test_values_on_the_page_are_those_that_the_chart_takes(tmp_path: Path, number: int) -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text("utf-8")
    values = yaml.safe_load(re.findall(r"^```yaml\n(\w.*?)^```", page, re.M | re.S)[number])
    found = rendered(tmp_path, values)
    assert (
        values["places"][0]["name"] == place_of(found, values["places"][0]["name"], tmp_path).name
    )
    held(found)
    assert f"Kubernetes {' and '.join(KUBERNETES)}" in page


def test_alerts_and_dashboard_go_along_as_they_are(baseline: list[Object]) -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "keeplast.rules.yml").read_text())
    assert rules == one(baseline, "PrometheusRule")["spec"]
    dashboard = (ROOT / "deploy" / "grafana" / "keeplast.json").read_text()
    assert dashboard == one(baseline, "ConfigMap", "-dashboard")["data"]["keeplast.json"]
