"""Every object that Aiven's plugin wrote is read, and written again as the plugin writes it."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cluster.layouts.aiven import (
    AivenLayout,
    decode_custom_metadata,
    encode_custom_metadata,
)
from keeplast.cluster.layouts.aiven_encryption import KeyRing, SegmentCipher
from keeplast.cluster.layouts.aiven_log import AivenLogWriter, pack_indexes
from keeplast.cluster.layouts.aiven_manifest import (
    ChunkIndex,
    SegmentManifest,
    decode_manifest,
    decode_sizes,
    decode_written,
    encode_manifest,
    encode_sizes,
)
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.open import open_layout
from keeplast.format.compression import decompress_sized
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.stores import open_tree
from tests.support.plugin_vectors import CASES, PluginCase, read_case


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, vectors: Path) -> PluginCase:
    return read_case(vectors, request.param)


@pytest.fixture
def layout(case: PluginCase, tmp_path: Path, key_options: dict[str, str]) -> AivenLayout:
    case.place(tmp_path)
    opened = open_layout(f"aiven:file://{tmp_path}", {"key.prefix": case.prefix, **key_options})
    assert isinstance(opened, AivenLayout)
    return opened


def chunks(index: ChunkIndex, data: bytes) -> list[bytes]:
    starts = [int(each) for each in index.starts]
    return [data[start:end] for start, end in pairwise(starts)]


class RecordedIvs:
    """Gives the IVs that the plugin drew, in the order of its writing."""

    def __init__(self, manifest: SegmentManifest, case: PluginCase) -> None:
        found = [each[:12] for each in chunks(manifest.chunks, case.objects["log"])]
        indexes = case.objects["indexes"]
        found += [
            indexes[each.position : each.position + 12]
            for each in manifest.files.values()
            if each.size
        ]
        self._left: Iterator[bytes] = iter(found)

    def __call__(self, count: int) -> bytes:
        assert 12 == count
        return next(self._left)

    def is_used_up(self) -> bool:
        return next(self._left, None) is None


def cipher_of(
    case: PluginCase, manifest: SegmentManifest, keys: KeyRing
) -> tuple[SegmentCipher | None, RecordedIvs | None]:
    assert case.is_encrypted == (manifest.sealing is not None)
    if manifest.sealing is None:
        return None, None
    ivs = RecordedIvs(manifest, case)
    return keys.open(manifest.sealing, ivs), ivs


def test_a_segment_is_read_as_it_was(case: PluginCase, layout: AivenLayout) -> None:
    reader = pickle.loads(pickle.dumps(layout)).open(case.segment)
    assert len(case.log) == reader.log_bytes
    assert case.log == reader.read_log(0, len(case.log))
    for start in range(0, len(case.log), 977):
        assert case.log[start : start + 1500] == reader.read_log(start, start + 1500)
    found = {kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile}
    assert {kind: case.auxiliary.get(kind) for kind in AuxiliaryFile} == found


def test_a_segment_is_listed_and_deleted_whole(case: PluginCase, layout: AivenLayout) -> None:
    (found,) = layout.list(case.segment.id.partition)
    assert (case.segment.id.segment_id, case.segment.start_offset) == (
        found.segment_id, found.start_offset,
    )  # fmt: skip
    assert sum(map(len, case.objects.values())) == found.size_bytes
    layout.delete(case.segment)
    layout.delete_found(case.segment.id.partition, found)
    assert [] == list(layout.list(case.segment.id.partition))


def test_objects_are_written_as_the_plugin_writes_them(
    case: PluginCase, layout: AivenLayout, tmp_path: Path
) -> None:
    theirs = decode_manifest(case.objects["rsm-manifest"])
    cipher, ivs = cipher_of(case, theirs, layout.keys)
    objects = open_tree(f"file://{tmp_path / 'written'}")
    writer = AivenLogWriter(
        NewObject(objects, "log"), case.chunk_size, theirs.sealing, cipher,
        is_compressed=case.is_compressed,
    )  # fmt: skip
    for at in range(0, len(case.log), 1234):
        writer.write(memoryview(case.log)[at : at + 1234])
    written = decode_written(writer.close().description)
    files, indexes = pack_indexes(case.auxiliary, cipher)
    assert ivs is None or ivs.is_used_up()
    assert case.objects["indexes"] == indexes
    data = (tmp_path / "written" / "log").read_bytes()
    ours = SegmentManifest(written.chunks, files, written.is_compressed, written.sealing)
    manifest = encode_manifest(ours, case.segment)
    if not case.is_compressed:
        assert case.objects["log"] == data
        assert case.objects["rsm-manifest"] == manifest
        return
    # Another release of zstd may give other bytes; what they hold is the same.
    for number, (mine, yours) in enumerate(
        zip(chunks(written.chunks, data), chunks(theirs.chunks, case.objects["log"]), strict=True)
    ):
        start, end = theirs.chunks.original_range(number)
        held = []
        for each in (mine, yours):
            plain = each if cipher is None else cipher.unseal(each)
            held.append(decompress_sized(plain, end - start))
        assert case.log[start:end] == held[0] == held[1]
    found, expected = json.loads(manifest), json.loads(case.objects["rsm-manifest"])
    for each in (found, expected):
        assert ["type", "originalChunkSize", "originalFileSize", "transformedChunks"] == list(
            each["chunkIndex"]
        )
        del each["chunkIndex"]["transformedChunks"]
    assert json.dumps(expected) == json.dumps(found)


def test_a_manifest_and_its_sizes_come_back_byte_for_byte(case: PluginCase) -> None:
    data = case.objects["rsm-manifest"]
    manifest = decode_manifest(data)
    assert data == encode_manifest(manifest, case.segment)
    sizes = manifest.chunks.sizes
    assert list(sizes) == list(decode_sizes(encode_sizes(sizes)))


def test_a_new_segment_is_like_an_old_one(case: PluginCase, layout: AivenLayout) -> None:
    name = dataclasses.replace(case.segment.id, segment_id=bytes(range(16)))
    assert case.segment == layout.pattern([case.segment])
    writer = layout.create_log(name, case.segment.start_offset, case.segment)
    writer.write(case.log)
    written = writer.close()
    plain = replace(case.segment, id=name, custom_metadata=None)
    custom = layout.complete(plain, written, case.auxiliary, case.segment)
    again = layout.complete(plain, written, case.auxiliary, case.segment)
    assert custom == again
    announced = replace(plain, custom_metadata=custom)
    reader = layout.open(announced)
    assert case.log == reader.read_log(0, len(case.log))
    assert {kind: case.auxiliary.get(kind) for kind in AuxiliaryFile} == {
        kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile
    }
    fields = decode_custom_metadata(custom)
    found = {found.segment_id: found.size_bytes for found in layout.list(name.partition)}
    assert (found[name.segment_id] if "REMOTE_SIZE" in case.fields else None) == fields.remote_size
    assert (case.prefix if "OBJECT_PREFIX" in case.fields else None) == fields.object_prefix
    assert ("OBJECT_KEY" in case.fields) == (fields.object_key is not None)


def test_custom_metadata_comes_back_byte_for_byte(case: PluginCase) -> None:
    """AT-35."""
    data = case.segment.custom_metadata
    fields = decode_custom_metadata(data)
    assert data == encode_custom_metadata(fields)
    assert ("REMOTE_SIZE" in case.fields) == (fields.remote_size is not None)
    if fields.remote_size is not None:
        assert sum(map(len, case.objects.values())) == fields.remote_size
