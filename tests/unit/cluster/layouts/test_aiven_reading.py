"""A reader keeps the chunk that it has read last, with other readers and with any damage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.cluster.layouts.aiven_encryption import KeyRing
from keeplast.cluster.layouts.aiven_log import AivenLogWriter, AivenSegmentReader
from keeplast.cluster.layouts.aiven_manifest import decode_written
from keeplast.errors import CorruptError, UnavailableError
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.stores import ObstoreObjects, open_tree

CHUNK, CHUNKS = 1000, 5
LOG = np.random.default_rng(1).integers(0, 256, CHUNK * CHUNKS - 7, np.uint8).tobytes()
VARIANTS = [(True, False), (False, True), (True, True)]


@pytest.fixture(params=["file", "request"])
def objects(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObstoreObjects:
    """A store whose objects are files, and one that is asked for ranges."""
    if request.param == "request":
        monkeypatch.setattr(ObstoreObjects, "fill", lambda *_: False)
    return open_tree(f"file://{tmp_path}")


def written(
    objects: ObstoreObjects, ring: KeyRing, is_compressed: bool, is_sealed: bool
) -> AivenSegmentReader:
    sealing, cipher = ring.new_segment(None) if is_sealed else (None, None)
    target = NewObject(objects, "log")
    writer = AivenLogWriter(target, CHUNK, sealing, cipher, is_compressed=is_compressed)
    writer.write(LOG)
    manifest = replace(decode_written(writer.close().description), files={})
    return AivenSegmentReader(objects, "url", "log", "indexes", manifest, cipher)


@pytest.mark.parametrize(("is_compressed", "is_sealed"), VARIANTS)
def test_threads_that_read_one_segment_read_it_right(
    objects: ObstoreObjects, ring: KeyRing, is_compressed: bool, is_sealed: bool
) -> None:
    reader = written(objects, ring, is_compressed, is_sealed)

    def read(seed: int) -> bool:
        starts = np.random.default_rng(seed).integers(0, len(LOG), 60).tolist()
        return all(LOG[at : at + 300] == reader.read_log(at, at + 300) for at in starts)

    with ThreadPoolExecutor(4) as threads:
        assert [True] * 4 == list(threads.map(read, range(4)))


@pytest.mark.parametrize(("is_compressed", "is_sealed"), VARIANTS)
def test_nothing_is_given_of_a_damaged_chunk_and_others_are_read_on(
    objects: ObstoreObjects, ring: KeyRing, is_compressed: bool, is_sealed: bool, tmp_path: Path
) -> None:
    reader = written(objects, ring, is_compressed, is_sealed)
    stored = bytearray((tmp_path / "log").read_bytes())
    # Of the second chunk's frame, or of its tag.
    at = len(stored) * 2 // CHUNKS - 1 if is_sealed else len(stored) // CHUNKS + 6
    stored[at] ^= 0x80
    (tmp_path / "log").write_bytes(stored)
    for _ in range(2):
        assert LOG[10:500] == reader.read_log(10, 500)
        with pytest.raises(CorruptError, match=r"position="):
            reader.read_log(900, 1100)
        with pytest.raises(CorruptError):
            reader.read_log(1500, 1600)
        assert LOG[4100:4200] == reader.read_log(4100, 4200)


@pytest.mark.parametrize(("is_compressed", "is_sealed"), VARIANTS)
def test_a_store_that_fails_in_a_chunk_is_no_damage(
    ring: KeyRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compressed: bool,
    is_sealed: bool,
) -> None:  # fmt: skip
    reader = written(open_tree(f"file://{tmp_path}"), ring, is_compressed, is_sealed)

    fill = ObstoreObjects.fill
    monkeypatch.setattr(
        ObstoreObjects, "fill",
        lambda self, key, start, room: len(room) < 100 and fill(self, key, start, room),
    )  # fmt: skip
    monkeypatch.setattr(
        ObstoreObjects, "read_range", Mock(side_effect=UnavailableError("the disk has failed"))
    )
    with pytest.raises(UnavailableError):
        reader.read_log(0, 100)
    monkeypatch.undo()
    assert LOG == reader.read_log(0, len(LOG))
