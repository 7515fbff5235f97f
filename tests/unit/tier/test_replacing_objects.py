"""An object is replaced by who saw it last; what goes meanwhile is reported, and is no failure."""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.exceptions import PreconditionError

from keeplast.tier.objects.stores import MEMORY, ObstoreObjects, open_tree


@pytest.fixture
def objects() -> ObstoreObjects:
    made = open_tree(MEMORY)
    assert isinstance(made, ObstoreObjects)
    return made


def test_an_object_that_is_another_by_now_stays(objects: ObstoreObjects) -> None:
    assert objects.put_new("a", b"1")
    assert objects.replace("a", b"2", b"1")
    assert not objects.replace("a", b"3", b"1")
    assert not objects.replace("b", b"3", b"1")
    assert b"2" == bytes(objects.read_range("a", 0, 10))


@pytest.mark.parametrize(("then", "expected"), [(b"ours", True), (b"theirs", False), (None, False)])
def test_a_condition_that_failed_is_ours_only_if_our_bytes_are_there(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch, then: bytes | None, expected: bool
) -> None:
    """The store wrote it and the answer was lost; somebody else was faster; it was removed."""
    assert objects.put_new("a", b"before")
    put = obstore.put

    def fails(store: Any, key: str, data: bytes, **options: Any) -> None:
        if then is None:
            obstore.delete(store, key)
        else:
            put(store, key, then, mode="overwrite")
        raise PreconditionError

    monkeypatch.setattr(obstore, "put", fails)
    assert expected == objects.replace("a", b"ours", b"before")
