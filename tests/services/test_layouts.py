"""Aiven's layout on a real S3 server: listings of many pages, conditions, logs in parts."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from msgspec.structs import replace

from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import ConflictError, CorruptError
from keeplast.tier.objects.stores import PART_BYTES, ObstoreObjects, open_tree
from tests.services.conftest import S3
from tests.support.plugin_vectors import CASES, PluginCase, read_case
from tests.support.remote_segments import PARTITION, remote_segment

pytestmark = pytest.mark.services

SEGMENTS = 1100
Open = Callable[[str], AivenLayout]


@pytest.fixture
def objects(s3_server: S3) -> ObstoreObjects:
    """The bucket itself."""
    return open_tree(s3_server.url, s3_server.options)


@pytest.fixture
def open_prefix(s3_server: S3, vectors: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the layout below a prefix; secrets are in the environment."""
    pair = "encryption.key.pairs.k1"
    given = {
        "encryption.key.pairs": "k1",
        f"{pair}.private.key.file": str(vectors / "keys" / "private.pem"),
    }
    for name, value in s3_server.options.items():
        monkeypatch.setenv(f"LAYOUT_{name.upper()}", value)
        given[name] = f"env:LAYOUT_{name.upper()}"

    def open_(prefix: str) -> AivenLayout:
        layout = open_layout(f"aiven:{s3_server.url}/{prefix}", given)
        assert isinstance(layout, AivenLayout)
        return layout

    return open_


def place(objects: ObstoreObjects, case: PluginCase, prefix: str) -> None:
    for suffix, data in case.objects.items():
        key = prefix + case.keys[suffix].removeprefix(case.prefix)
        assert objects.put_new(key, data)


@pytest.mark.parametrize("name", [each for each in CASES if "op_ok" not in each])
def test_objects_of_the_plugin_are_read_written_and_deleted(
    name: str, vectors: Path, objects: ObstoreObjects, open_prefix: Open
) -> None:
    prefix = f"{secrets.token_hex(6)}/some-"
    case = read_case(vectors, name)
    place(objects, case, prefix)
    layout = open_prefix(prefix)
    new = replace(case.segment, id=dataclasses.replace(case.segment.id, segment_id=bytes(16)))
    writer = layout.create_log(new.id, new.start_offset, case.segment)
    writer.write(case.log)
    custom = layout.complete(new, writer.close(), case.auxiliary, case.segment)
    for segment in (case.segment, replace(new, custom_metadata=custom)):
        reader = layout.open(segment)
        for start in range(0, len(case.log), 9973):
            assert case.log[start : start + 12345] == reader.read_log(start, start + 12345)
        for kind in AuxiliaryFile:
            assert case.auxiliary.get(kind) == reader.read_auxiliary(kind)
    assert 2 == len(list(layout.list(new.id.partition)))
    for segment in (case.segment, new, new):
        layout.delete(segment)
    assert [] == list(layout.list(new.id.partition))
    assert [] == list(objects.list(prefix.partition("/")[0]))


def test_listings_of_many_pages_are_whole(objects: ObstoreObjects, open_prefix: Open) -> None:
    """A page of S3 has 1,000 keys; the neighbour, whose number begins alike, is not in it."""
    prefix = f"{secrets.token_hex(6)}/"
    layout = open_prefix(prefix)
    neighbour = dataclasses.replace(PARTITION, partition=PARTITION.partition * 10)
    segments = [
        remote_segment(size_bytes=1, number=number, start_offset=number * 10)
        for number in range(SEGMENTS)
    ]
    segments.append(remote_segment(size_bytes=1, partition=neighbour))

    def fill(at: int) -> None:
        key = layout._key(segments[at].id, segments[at].start_offset)
        for size, suffix in enumerate(("log", "indexes", "rsm-manifest"), 1):
            assert objects.put_new(f"{key}.{suffix}", bytes(size))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill, range(len(segments))))
    assert 3 * len(segments) == len(list(objects.list(prefix)))
    found = list(layout.list(PARTITION))
    assert [(each.id.segment_id, each.start_offset, 6) for each in segments[:-1]] == [
        (each.segment_id, each.start_offset, each.size_bytes) for each in found
    ]
    (other,) = layout.list(neighbour)
    layout.delete_found(neighbour, other)
    assert [] == list(layout.list(neighbour))
    assert SEGMENTS == len(list(layout.list(PARTITION)))


@pytest.mark.parametrize("name", ["A-plain-4194304", "A-both-4194304"])
def test_a_log_of_many_parts_appears_when_it_is_whole(
    name: str, vectors: Path, objects: ObstoreObjects, open_prefix: Open
) -> None:
    prefix = f"{secrets.token_hex(6)}/"
    case = read_case(vectors, name)
    place(objects, case, prefix)
    layout = open_prefix(prefix)
    log = secrets.token_bytes(PART_BYTES * 2 + 12345)
    new = replace(
        case.segment,
        id=dataclasses.replace(case.segment.id, segment_id=bytes(16)),
        size_bytes=len(log),
    )
    writer, rival = (layout.create_log(new.id, 1120, case.segment) for _ in range(2))
    for at in range(0, len(log), 1 << 20):
        writer.write(memoryview(log)[at : at + (1 << 20)])
        rival.write(memoryview(log)[at : at + (1 << 20)])
    assert 1 == len(list(layout.list(new.id.partition)))
    written = writer.close()
    with pytest.raises(ConflictError):
        rival.close()
    layout.complete(new, written, case.auxiliary, case.segment)
    reader = layout.open(new)
    assert log == reader.read_log(0, len(log))
    middle = PART_BYTES + 17
    assert log[middle : middle + 99] == reader.read_log(middle, middle + 99)


def test_an_index_beyond_its_object_is_damage(
    vectors: Path, objects: ObstoreObjects, open_prefix: Open
) -> None:
    prefix = f"{secrets.token_hex(6)}/"
    case = read_case(vectors, "A-plain-10000")
    case.objects["indexes"] = case.objects["indexes"][:20]
    place(objects, case, prefix)
    reader = open_prefix(prefix).open(case.segment)
    for kind in AuxiliaryFile:
        with pytest.raises(CorruptError, match="shorter"):
            reader.read_auxiliary(kind)


def test_an_object_is_replaced_by_a_writer_that_knows_it(open_prefix: Open) -> None:
    layout = open_prefix(f"{secrets.token_hex(6)}/")
    layout.check_conditions()
    assert layout.put_new("owner", b"first")
    assert not layout.put_new("owner", b"second")
    assert layout.replace_own("owner", b"second", b"first")
    assert not layout.replace_own("owner", b"third", b"first")
    assert b"second" == layout.read_own("owner")
    assert not layout.replace_own("nobody", b"x", b"y")
    for name in ("work/a/one", "work/ab/two", "work/a/deep/three"):
        assert layout.put_new(name, b"x")
    (found,) = layout.list_own("work/a")
    assert "work/a/one" == found.name
    assert found.modified_ms > 0
    layout.delete_own("owner")
    layout.delete_own("owner")
    assert layout.read_own("owner") is None


def test_an_object_that_another_wrote_between_reading_and_writing_stays(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition is the version that was read, and not only a look before."""
    key = f"{secrets.token_hex(6)}/owner"
    assert objects.put_new(key, b"first")
    put = obstore.put

    def late(store: object, path: str, data: bytes, **how: object) -> object:
        monkeypatch.undo()
        assert objects.replace(key, b"rival", b"first")
        return put(store, path, data, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put", late)
    assert not objects.replace(key, b"second", b"first")
    assert b"rival" == bytes(objects.read_range(key, 0, 10))
