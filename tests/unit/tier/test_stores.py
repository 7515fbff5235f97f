"""Object stores by URL, on what needs no server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import obstore
import pytest
from obstore.exceptions import GenericError, NotFoundError

from keeplast.errors import InvalidError, UnavailableError
from keeplast.tier.objects import stores
from keeplast.tier.objects.object_store import (
    ObjectTree,
    StoreAction,
    fill,
    names_credentials,
)
from keeplast.tier.objects.stores import (
    check_directory,
    is_forbidden,
    lasting_url,
    open_objects,
    open_tree,
    reason_of,
)
from tests.support.heard_calls import hear


@pytest.fixture(params=["memory", "file"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectTree:
    return open_tree("memory://" if request.param == "memory" else f"file://{tmp_path}/objects")


def put(tree: ObjectTree, *keys: str) -> None:
    for key in keys:
        writer = tree.open_write(key)
        writer.write(b"x")
        writer.close()


def test_what_is_gone_already_keeps_nothing_else_from_being_deleted(tree: ObjectTree) -> None:
    put(tree, "p/a", "p/b", "p/c", "p/d")
    tree.delete(["p/a", "p/gone", "p/b", "p/also-gone", "p/c"])
    assert ["p/d"] == [found.key for found in tree.list("p/")]
    tree.delete([])


def test_a_path_is_the_url_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"file://{tmp_path}/objects" == lasting_url("objects")
    assert "file:///srv/objects" == lasting_url("file:///srv/objects")
    assert "s3://bucket/prefix" == lasting_url("s3://bucket/prefix")


@pytest.mark.parametrize("url", ["", "file://", "file://srv/objects", "memory://", "memory://x"])
def test_a_path_that_another_process_would_not_find_is_invalid(url: str) -> None:
    with pytest.raises(InvalidError):
        lasting_url(url)


def test_a_directory_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    check_directory(f"file://{tmp_path}")
    check_directory("s3://bucket/prefix")
    with pytest.raises(UnavailableError):
        check_directory(f"file://{tmp_path}/away")


def test_an_object_in_a_directory_survives_a_power_loss_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    hear(
        monkeypatch,
        os,
        "fsync",
        lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").resolve()),
    )
    objects = open_objects(f"file://{tmp_path}")
    for name in ("log", "index"):
        writer = objects.open_write(f"t-0/id/segment/{name}")
        writer.write(b"bytes")
        assert [] == synced
        writer.close()
        folder = tmp_path / "t-0" / "id" / "segment"
        assert [folder / name, folder] == synced[:2]
        if name == "log":
            assert [folder.parent, tmp_path / "t-0", tmp_path] == synced[2:]
        synced.clear()


@pytest.mark.parametrize("size", [1, 9 << 20])
def test_memory_that_was_written_from_may_be_used_again_at_once(
    tree: ObjectTree, size: int
) -> None:
    writer = tree.open_write("p/a")
    given = bytearray(size)
    for value in (1, 2, 3):
        given[:] = bytes([value]) * size
        writer.write(memoryview(given))
    given[:] = bytes(size)
    writer.close()
    expected = b"\1" * size + b"\2" * size + b"\3" * size
    assert expected == tree.read_range("p/a", 0, 4 * size)


def test_an_object_is_there_when_it_is_closed_and_whole(tree: ObjectTree) -> None:
    put(tree, "p/a")
    writer = tree.open_write("p/a")
    writer.write(b"new")
    other = tree.open_write("p/b")
    other.write(b"never")
    assert b"x" == bytes(tree.read_range("p/a", 0, 10))
    assert ["p/a"] == [found.key for found in tree.list("p/")]
    assert ["p/a"] == [found.key for found in tree.children("p")[0]]
    writer.close()
    other.abort()
    assert b"new" == bytes(tree.read_range("p/a", 0, 10))
    assert ["p/a"] == [found.key for found in tree.list("p/")]


def test_a_write_that_was_given_up_leaves_no_file(tmp_path: Path) -> None:
    objects = open_tree(f"file://{tmp_path}")
    writer = objects.open_write("p/a")
    writer.write(b"bytes")
    assert 1 == len(list((tmp_path / "p").iterdir()))
    writer.abort()
    writer.abort()
    assert [] == list((tmp_path / "p").iterdir())
    dropped = objects.open_write("p/a")
    dropped.write(b"bytes")
    del dropped
    assert [] == list((tmp_path / "p").iterdir())


def test_an_object_whose_name_a_directory_has_is_an_error_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    objects = open_tree(f"file://{tmp_path}")
    (tmp_path / "p" / "a" / "b").mkdir(parents=True)
    writer = objects.open_write("p/a")
    writer.write(b"bytes")
    with pytest.raises(UnavailableError):
        writer.close()
    assert ["a"] == [path.name for path in (tmp_path / "p").iterdir()]


def test_a_directory_fills_memory_and_leaves_to_the_library_what_is_odd(tmp_path: Path) -> None:
    objects = open_tree(f"file://{tmp_path}/objects")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "objects" / "p").mkdir()
    (tmp_path / "objects" / "p" / "a").write_bytes(b"0123456789")
    os.mkfifo(tmp_path / "objects" / "p" / "pipe")
    room = memoryview(bytearray(4))
    assert fill(objects, "p/a", 6, room)
    assert b"6789" == bytes(room)
    for key, start in (
        ("p/a", 7), ("p/none", 0), ("p", 0), ("p/pipe", 0), ("../outside", 0), ("p/./a", 0),
        (f"{tmp_path}/outside", 0), ("p//a", 0), ("/p/a", 0), ("p/a/", 0), ("", 0),
    ):  # fmt: skip
        assert not fill(objects, key, start, room), key
    assert not fill(open_tree("memory://"), "p/a", 0, room)


def failing(answers: list[str]) -> Callable[..., None]:
    """Make a deletion of many that fails with these words, one after another, and works then."""

    def delete(store: object, keys: object) -> None:
        if answers:
            raise GenericError(answers.pop(0))

    return delete


def test_a_deletion_whose_answer_was_lost_is_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = ["error sending request"]
    monkeypatch.setattr(obstore, "delete", failing(lost))
    open_tree("memory://").delete(["a", "b"])
    assert [] == lost
    lost += ["error sending request"] * 3
    with pytest.raises(UnavailableError, match="error sending request"):
        open_tree("memory://").delete(["a", "b"])
    assert 1 == len(lost)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_refusal_in_words_of_the_library_alone_is_one_and_is_not_asked_again(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [f"Server returned non-2xx status code: {status}: "] * 2
    monkeypatch.setattr(obstore, "delete", failing(answers))
    with pytest.raises(UnavailableError) as caught:
        open_tree("memory://").delete(["a", "b"])
    assert is_forbidden(caught.value)
    assert 1 == len(answers)


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"])
def test_a_bucket_that_is_gone_is_not_an_object_that_is(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        obstore,
        "get_range",
        Mock(side_effect=NotFoundError(f"404 Not Found: <Error><Code>{code}</Code></Error>")),
    )
    with pytest.raises(UnavailableError, match=f"no such bucket.*url=memory:// .*error={code}"):
        open_tree("memory://").read_range("a", 0, 1)


def test_a_message_of_a_store_is_one_line() -> None:
    said = "<Code>Nope</Code>\n  <Message>It is not.\nRequestId:7\nTime:now</Message>"
    assert "Nope: It is not." == reason_of(Exception(said))


CREDENTIALS = "AWS_", "GOOGLE_", "AZURE_"


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host that is no instance of a cloud, and a user without credentials."""
    for name in os.environ:
        if name.startswith(CREDENTIALS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(stores, "_has_metadata", lambda: False)


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    ("url", "options", "source"),
    [
        ("s3://b/p", {}, "AWS_ACCESS_KEY_ID"),
        ("gs://b/p", {}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://c/p", {"account_name": "a"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_without_credentials_it_says_at_once_where_they_were_looked_for(
    url: str, options: dict[str, str], source: str
) -> None:
    tree = open_tree(url, options)
    with pytest.raises(UnavailableError) as raised:
        tree.children("")
    assert str(raised.value).startswith("no credentials were found in ")
    assert source in str(raised.value)
    assert "the instance's metadata" in str(raised.value)
    assert not is_forbidden(raised.value)


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    ("url", "options", "variable"),
    [
        ("s3://b", {"access_key_id": "a"}, None), ("s3://b", {}, "AWS_ACCESS_KEY_ID"),
        ("s3://b", {"skip_signature": "true"}, None), ("s3://b", {}, "AWS_ROLE_SESSION_TOKEN"),
        ("gs://b", {"service_account": "/f"}, None), ("az://c", {}, "AZURE_STORAGE_SAS_TOKEN"),
        ("az://c", {"account_name": "a", "use_azure_cli": "true"}, None),
    ],
)  # fmt: skip
def test_whatever_may_be_credentials_is_left_to_the_library(
    url: str, options: dict[str, str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        assert not names_credentials(url, options)
        monkeypatch.setenv(variable, "x")
    assert names_credentials(url, options)


@pytest.mark.usefixtures("no_credentials")
def test_gclouds_own_file_counts(tmp_path: Path) -> None:
    assert not names_credentials("gs://b", {})
    (tmp_path / ".config" / "gcloud").mkdir(parents=True)
    (tmp_path / ".config" / "gcloud" / "application_default_credentials.json").write_text("{}")
    assert names_credentials("gs://b", {})
    assert not names_credentials("s3://b", {})


def test_what_the_metadata_of_an_instance_refuses_is_no_refusal_of_the_store() -> None:
    tree = open_tree("s3://b", {"access_key_id": "a", "secret_access_key": "b"})
    said = GenericError("Error performing PUT http://169.254.169.254/latest/api/token: 403")
    with (
        pytest.raises(UnavailableError, match=r"^no credentials were found in ") as raised,
        tree._translated("k", StoreAction.READ),
    ):
        raise said
    assert "169.254" not in str(raised.value)
    assert not is_forbidden(raised.value)


@pytest.mark.usefixtures("no_credentials")
def test_azure_without_an_account_asks_for_its_name() -> None:
    with pytest.raises(InvalidError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_tree("az://c/p")
