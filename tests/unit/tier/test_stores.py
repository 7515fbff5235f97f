"""Object stores by URL, on what needs no server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keeplast.errors import InvalidError, UnavailableError
from keeplast.tier.objects.object_store import ObjectTree
from keeplast.tier.objects.stores import check_directory, lasting_url, open_objects, open_tree


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
def test_what_another_process_would_not_find_is_invalid(url: str) -> None:
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
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").resolve())
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
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
