"""What of a URL is shown, whatever its writer and its driver make of it."""

from __future__ import annotations

import pytest

from keeplast.model.text import (
    option_secrets,
    secrets_of,
    shown_url,
    without_folders,
    without_secrets,
)

SECRET = "s3cret"
LEAKING = [
    "postgresql://me:s3cret@host/db",
    "postgresql://me:p@s3cret@host/db",
    "postgresql://me:s3cret/x@host/db",
    "postgresql://me:s3cret?x@host/db",
    "postgresql://me:a s3cret\n@host/db",
    "postgresql://me:%73s3cret@host/db",
    "postgresql://s3cret@host/db",
    "postgresql+psycopg://:s3cret@host",
    "postgresql://host/db?password=s3cret",
    "postgresql://host/db?sslmode=require&sslpassword=s3cret",
    "postgresql://host/db?PASSWORD=s3cret",
    "postgresql://host/db?p%61ssword=s3cret",
    "postgresql://host/db?a=b;password=s3cret",
    "postgresql://host/db?options=-cx%3Ds3cret",
    "postgresql://host/db#password=s3cret",
    "postgresql:me:s3cret@host/db",
    "postgresql//me:s3cret@host/db",
    "me:s3cret@host",
    "postgresql:// me:s3cret@host/db",
    "s3cret:foo@bar",
    "https://key:s3cret@minio:9000/bucket",
    "az://container/x?sig=s3cret",
]


@pytest.mark.parametrize("url", LEAKING)
def test_a_secret_is_shown_in_no_place_of_a_url(url: str) -> None:
    assert SECRET not in shown_url(url)
    assert shown_url(url).isprintable()


@pytest.mark.parametrize("url", [url for url in LEAKING if "://" in url and "\n" not in url])
def test_nor_in_a_message_that_quotes_it(url: str) -> None:
    assert SECRET not in without_secrets(f"cannot be reached. url={url.replace(' ', '+')} x=1")


def test_an_example_of_a_url_is_shown_in_full() -> None:
    words = "give sqlite:///FILE or postgresql://USER@HOST/DATABASE, and write @ as %40"
    assert words == without_secrets(words)
    for text in ("postgresql://USER:s3cret@HOST/DATABASE", "postgresql://s3cret@HOST/DATABASE"):
        assert SECRET not in without_secrets(text)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////srv/me@home/meta.db", "sqlite:///C:/data/x.db", "file:///srv/a:b@c",
        "/srv/me@home", "./me@home", "s3://bucket/a@b", "s3://bucket/pre:fix@x",
        "postgresql://host:5432/db?sslmode=require&connect_timeout=3", "postgresql:///db",
    ],
)  # fmt: skip
def test_text_without_secrets_is_shown(url: str) -> None:
    assert url == shown_url(url) == without_secrets(url)


def test_the_rest_of_a_url_is_shown() -> None:
    assert "postgresql://***@host:1/db?sslmode=require&password=***" == shown_url(
        "postgresql://me:s3cret@host:1/db?sslmode=require&password=s3cret"
    )


def test_the_words_of_a_driver_are_without_the_secrets_of_the_url() -> None:
    url = "postgresql://me:s3%20cret@host/db?sslpassword=other"
    words = "no host \"s3 cret\" for s3%20cret, key other; password='x y' sslpassword=z user=me"
    assert (
        'no host "***" for ***, key ***; password=*** sslpassword=*** user=me'
        == without_secrets(words, secrets_of(url))
    )


def test_what_is_too_short_to_be_a_secret_garbles_no_message() -> None:
    assert "a banana" == without_secrets("a banana", secrets_of("postgresql://x:a@h/d"))


def test_options_of_an_object_store_are_secrets_unless_they_are_known() -> None:
    options = {
        "endpoint": "http://h", "secret_access_key": "s3cret", "new_kind": "t0ken",
        "base_url": "http://h", "account_name": "me", "use_emulator": "true",
    }  # fmt: skip
    assert ("s3cret", "t0ken") == option_secrets(options.items())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bad. source=/etc/kafka/server.properties line=3", "bad. source=server.properties line=3"),
        ("bad. source=/etc/my broker/a.toml line=3", "bad. source=a.toml line=3"),
        ("bad. path=/logs/t-0/0.log position=7", "bad. path=/logs/t-0/0.log position=7"),
        ("bad. path=/logs-2/t-0/0.log", "bad. path=0.log"),
        ("[Errno 2] No such file: '/etc/a/b.toml'", "[Errno 2] No such file: 'b.toml'"),
        ("see /etc/a/b, and sqlite:////x/meta.db", "see b, and sqlite:////x/meta.db"),
        ("1/2 of it, read/write, ~/x, ./a/b", "1/2 of it, read/write, ~/x, ./a/b"),
        ("cannot look at /logs", "cannot look at /logs"),
        ("", ""),
    ],
)
def test_files_outside_a_place_are_shown_by_their_names(text: str, shown: str) -> None:
    assert shown == without_folders(text, "/logs")


def test_without_a_place_every_file_is_shown_by_its_name() -> None:
    assert "path=0.log" == without_folders("path=/logs/t-0/0.log", "")
