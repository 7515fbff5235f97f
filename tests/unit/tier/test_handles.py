"""Objects as open files."""

from __future__ import annotations

import pytest

from keeplast.errors import CorruptError, UnavailableError
from keeplast.tier.objects.handles import ObjectReadHandle, ObjectWriteHandle
from keeplast.tier.objects.stores import open_objects

KEY = "t-0/" + "0" * 32 + "/" + "1" * 32 + "/00000000000000000000.log"


def test_an_object_that_the_store_cut_short_is_written_again_and_not_called_corrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = open_objects("memory://", {})
    completed: list[int] = []
    whole = ObjectWriteHandle(objects, KEY, completed.append)
    whole.write(b"0123456789")
    whole.fsync()
    assert completed == [10]
    cut = ObjectWriteHandle(objects, KEY.replace("1", "2"), completed.append)
    cut.write(b"0123456789")
    small = objects.stat(KEY)
    monkeypatch.setattr(
        type(objects), "stat", lambda _, key: type(small)(key, 4, small.modified_ms)
    )
    with pytest.raises(UnavailableError, match="expected_bytes=10 found_bytes=4"):
        cut.fsync()
    assert completed == [10]


def test_an_object_that_became_shorter_is_corrupt() -> None:
    objects = open_objects("memory://", {})
    handle = ObjectWriteHandle(objects, KEY, lambda _: None)
    handle.write(b"0123456789")
    handle.fsync()
    with pytest.raises(CorruptError, match="shorter"):
        ObjectReadHandle(objects, KEY, 12).pread_into(memoryview(bytearray(12)), 0)
