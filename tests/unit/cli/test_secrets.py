"""Options with secrets, and what commands print when something fails."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

from keeplast.api.stored_logs import StoredLogs
from keeplast.cli.frame.command import run_guarded
from keeplast.cli.frame.values import object_option
from keeplast.errors import InvalidError, UnavailableError
from keeplast.log.paths import place_path
from keeplast.tier.objects.object_store import OPTION_BYTES_MAX
from keeplast.tier.objects.stores import lasting_url, open_tree, reason_of

SECRET = "s3cret"
URL = f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}"


def test_a_value_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("MY_KEY", SECRET)
    expected = ("secret_access_key", SECRET)
    assert expected == object_option(f"secret_access_key=@{tmp_path / 'key'}")
    assert expected == object_option("secret_access_key=env:MY_KEY")
    assert ("endpoint", "http://h:1/x=y") == object_option("endpoint=http://h:1/x=y")


@pytest.mark.parametrize(
    "content", [None, b"", b"\n", b"s3cret\nand more", b"\xff\xfe", b"x" * (OPTION_BYTES_MAX + 1)]
)
def test_a_file_without_a_value_is_named_and_not_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidError) as caught:
        object_option(f"token=@{path}")
    assert SECRET not in str(caught.value)
    assert f"--object-option=token path={path}" in str(caught.value)


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(InvalidError, match="variable=MY_KEY"):
        object_option("token=env:MY_KEY")


@pytest.mark.parametrize(
    "error", [UnavailableError(f"no. url={URL}"), OSError(5, "no", URL), RuntimeError(f"no {URL}")]
)
def test_whatever_fails_is_printed_without_secrets(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also a traceback of what was not foreseen, and the document."""
    with pytest.raises(typer.Exit):
        run_guarded(Mock(side_effect=error), as_json=True)
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert "host/db" in err
    assert "***@host" in json.loads(out)["error"]["message"]


def test_the_name_of_a_store_on_lines_pages_and_labels_is_without_secrets() -> None:
    """What the loop calls the store, in its first line, in its status and in its metrics."""
    assert "postgresql://***@host/db?sslpassword=***" == StoredLogs(URL).address


@pytest.mark.parametrize(
    "url",
    [f"s3://me:{SECRET}@bucket/x", f"s3://{SECRET}@bucket", f"az://box/x?sig={SECRET}"],
)
def test_the_url_of_an_object_store_has_no_credentials(url: str) -> None:
    """It is remembered in the metadata, and shown by every command."""
    for opens in (lasting_url, open_tree):
        with pytest.raises(InvalidError, match="credentials") as caught:
            opens(url)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [f"s3:/me:{SECRET}@bucket", f"s3:me:{SECRET}@bucket", f"file://me:{SECRET}@host/x",
     f"memory://me:{SECRET}@x"],
)  # fmt: skip
def test_what_is_nearly_a_url_makes_no_directory_and_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidError) as caught:
        lasting_url(url)
    assert SECRET not in str(caught.value)


def test_nor_has_that_of_a_data_directory() -> None:
    with pytest.raises(InvalidError, match="credentials") as caught:
        place_path(f"s3://me:{SECRET}@bucket/x")
    assert SECRET not in str(caught.value)


def test_what_a_store_answers_is_without_the_values_of_its_options() -> None:
    error = ValueError(f"cannot use {SECRET} at http://k:{SECRET}x@h")
    assert "cannot use *** at http://***@h" == reason_of(error, (SECRET,))


def test_an_option_that_is_not_the_stores_is_a_line_without_values() -> None:
    with pytest.raises(InvalidError, match=r"url=s3://bucket options=secret_access_key,timeout "):
        open_tree("s3://bucket", {"timeout": "1 s", "secret_access_key": SECRET})
