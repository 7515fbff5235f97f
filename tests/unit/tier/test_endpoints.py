"""Which stores may be spoken to without TLS: those whose own server somebody has named so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keeplast.tier.objects.object_store import is_plain_http

PLAIN, SAFE = "http://127.0.0.1:1", "https://127.0.0.1:1"
NAMES = [
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "GOOGLE_BASE_URL", "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def account(server: str) -> str:
    return json.dumps({"gcs_base_url": server, "disable_oauth": True})


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b", "endpoint"), ("s3a://b", "endpoint_url"), ("s3://b", "aws_endpoint"),
        ("s3://b", "AWS_ENDPOINT_URL"), ("gs://b/p", "base_url"), ("gs://b", "google_base_url"),
        ("az://c", "endpoint"), ("az://c/p", "azure_storage_endpoint"), ("abfs://c", "endpoint"),
    ],
)  # fmt: skip
def test_an_option_names_the_server(url: str, name: str) -> None:
    assert is_plain_http(url, {name: PLAIN})
    assert not is_plain_http(url, {name: SAFE})
    assert not is_plain_http(url, {})


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b", "AWS_ENDPOINT_URL"), ("s3://b", "AWS_ENDPOINT"), ("gs://b", "GOOGLE_BASE_URL"),
        ("az://c", "AZURE_ENDPOINT"), ("az://c", "AZURE_STORAGE_ENDPOINT"),
    ],
)  # fmt: skip
def test_a_variable_names_it_and_an_option_instead(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, PLAIN)
    assert is_plain_http(url, {})
    option = "base_url" if url.startswith("gs") else "endpoint"
    assert not is_plain_http(url, {option: SAFE})


@pytest.mark.parametrize("url", ["gs://b", "az://c", "https://host/b", "file:///srv", "nothing"])
def test_what_is_meant_for_another_store_says_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did: with AWS_ENDPOINT_URL any store could have been asked in plain text."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", PLAIN)
    assert not is_plain_http(url, {})


@pytest.mark.parametrize("name", ["service_account", "google_service_account_path"])
def test_googles_service_account_names_the_server(name: str, tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text(account(PLAIN))
    assert is_plain_http("gs://b", {name: str(file)})
    assert not is_plain_http("gs://b", {name: str(file), "base_url": SAFE})
    assert is_plain_http("gs://b", {"service_account_key": account(PLAIN)})
    assert not is_plain_http("gs://b", {"service_account_key": account(SAFE)})
    assert not is_plain_http("az://b", {name: str(file)})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gcs_base_url": 1}', "[" * 100_000, "{}"])
def test_an_account_that_is_none_is_left_to_the_library(text: str, tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text(text)
    assert not is_plain_http("gs://b", {"service_account": str(file)})
    assert not is_plain_http("gs://b", {"service_account_key": text})
    assert not is_plain_http("gs://b", {"service_account": str(tmp_path / "away")})
