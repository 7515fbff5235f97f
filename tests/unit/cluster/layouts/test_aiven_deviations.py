"""What the plugin reads is read, what it does not read is refused by name; nothing hostile is
believed. Which is which was seen with the plugin itself."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from Crypto.PublicKey import RSA
from msgspec.structs import replace

from keeplast.cluster.layouts.aiven import (
    AivenLayout,
    CustomMetadata,
    decode_custom_metadata,
    encode_custom_metadata,
)
from keeplast.cluster.layouts.aiven_encryption import KeyPair, KeyRing
from keeplast.cluster.layouts.aiven_manifest import (
    MANIFEST_BYTES_MAX,
    check_log_size,
    decode_manifest,
    decode_sizes,
    parse_object,
)
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
)
from tests.support.existing import existing
from tests.support.plugin_vectors import PluginCase, read_case

Change = Callable[[dict[str, Any]], object]
BOMB = 1 << 40


class World:
    """One segment in a root of its own, of which a test changes something."""

    def __init__(self, root: Path, vectors: Path, options: dict[str, str]) -> None:
        self.root = root
        self.vectors = vectors
        self.options = options
        self.case = read_case(vectors, "A-plain-10000")

    def take(self, name: str) -> PluginCase:
        self.case = read_case(self.vectors, name)
        return self.case

    def change(self, change: Change) -> None:
        manifest = json.loads(self.case.objects["rsm-manifest"])
        change(manifest)
        self.case.objects["rsm-manifest"] = json.dumps(manifest).encode()

    def layout(self, **options: str) -> AivenLayout:
        given = {"key.prefix": self.case.prefix, **self.options, **options}
        opened = open_layout(f"aiven:file://{self.root}", given)
        assert isinstance(opened, AivenLayout)
        return opened

    def read(self) -> bytes:
        self.case.place(self.root)
        reader = self.layout().open(self.case.segment)
        for kind in AuxiliaryFile:
            assert self.case.auxiliary.get(kind) == reader.read_auxiliary(kind)
        return bytes(reader.read_log(0, reader.log_bytes))


@pytest.fixture
def world(tmp_path: Path, vectors: Path, key_options: dict[str, str]) -> World:
    return World(tmp_path, vectors, key_options)


def variable(sizes: list[int]) -> str:
    """Return ``transformedChunks`` of these sizes, each in four bytes."""
    head = struct.pack(">iiB", len(sizes), 0, 4)
    body = head + b"".join(struct.pack(">i", each) for each in sizes)
    return base64.b64encode(zstandard.ZstdCompressor().compress(body)).decode()


ACCEPTED: dict[str, Change] = {
    "version as a number": lambda m: m.update(version=1),
    "no encryption, said": lambda m: m.update(encryption=None),
    "nothing for people": lambda m: m.pop("remoteLogSegmentMetadata"),
    "more for people": lambda m: m["remoteLogSegmentMetadata"].update(new=[1.5, {}]),
    "another order": lambda m: m.update(chunkIndex=m.pop("chunkIndex")),
    "plain chunks by a variable index": lambda m: m.update(
        chunkIndex={
            "type": "variable", "originalChunkSize": 10000, "originalFileSize": 29014,
            "transformedChunks": variable([10000, 10000, 9014]),
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_manifest_that_the_plugin_reads_is_read(world: World, name: str) -> None:
    world.change(ACCEPTED[name])
    assert world.case.log == world.read()


UNKNOWN: dict[str, tuple[Change, str]] = {
    "version": (lambda m: m.update(version="2"), "version='2'"),
    "member": (lambda m: m.update(iceberg={}), "member='iceberg'"),
    "member of the chunk index": (lambda m: m["chunkIndex"].update(table=1), "member='table'"),
    "member of the indexes": (lambda m: m["segmentIndexes"].update(bloom=None), "member='bloom'"),
    "chunk index": (lambda m: m["chunkIndex"].update(type="tree"), "type='tree'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_member_is_refused_by_name(world: World, name: str) -> None:
    change, words = UNKNOWN[name]
    world.change(change)
    with pytest.raises(RefusedError, match=re.escape(words)) as error:
        world.read()
    assert str(world.root) in str(error.value)


def fixed(**members: object) -> Change:
    return lambda m: m["chunkIndex"].update(members)


def packed(content: bytes) -> Change:
    """Return a change to a variable index with this base64."""

    def change(manifest: dict[str, Any]) -> None:
        index = manifest["chunkIndex"]
        manifest["chunkIndex"] = {
            "type": "variable", "originalChunkSize": index["originalChunkSize"],
            "originalFileSize": index["originalFileSize"],
            "transformedChunks": base64.b64encode(content).decode(),
        }  # fmt: skip

    return change


DAMAGED: dict[str, Change] = {
    "no transaction index, unsaid": lambda m: m["segmentIndexes"].pop("transaction"),
    "no offset index": lambda m: m["segmentIndexes"].update(offset=None),
    "no compression": lambda m: m.pop("compression"),
    "compression as text": lambda m: m.update(compression="false"),
    "no version": lambda m: m.pop("version"),
    "no chunk index": lambda m: m.pop("chunkIndex"),
    "chunk index no object": lambda m: m.update(chunkIndex=[]),
    "chunks of no bytes": fixed(originalChunkSize=0),
    "chunks of less": fixed(originalChunkSize=-1),
    "a size that is true": fixed(originalFileSize=True),
    "a size as text": fixed(originalFileSize="29014"),
    "a size of less": fixed(originalFileSize=-29014),
    "a size beyond 32 bits": fixed(originalFileSize=BOMB),
    "another size than announced": fixed(originalFileSize=29013, finalTransformedChunkSize=9013),
    "a billion chunks": fixed(originalChunkSize=1, originalFileSize=(1 << 31) - 1),
    "chunks of other sizes": fixed(transformedChunkSize=10001),
    "a last chunk of another size": fixed(finalTransformedChunkSize=9013),
    "compressed, and is not": lambda m: m.update(compression=True),
    "an index before the object": lambda m: m["segmentIndexes"]["offset"].update(position=-1),
    "an index behind the object": lambda m: m["segmentIndexes"]["offset"].update(position=1 << 30),
    "an index larger than any": lambda m: m["segmentIndexes"]["offset"].update(size=1 << 30),
    "no base64": lambda m: packed(b"")(m) or m["chunkIndex"].update(transformedChunks="%%"),
    "no zstd": packed(b"0123456789abcdef"),
    "sizes that explode": packed(
        zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
    ),
    "sizes of an unknown number": packed(
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(9))
    ),
    "encrypted by nothing": lambda m: m.update(encryption={"dataKey": "k1", "aad": "AA=="}),
    "encrypted, and is not": lambda m: m.update(encryption={"dataKey": "k1:AAAA", "aad": "AA=="}),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_manifest_that_does_not_add_up_is_damage(world: World, name: str) -> None:
    world.change(DAMAGED[name])
    with pytest.raises(CorruptError) as error:
        world.read()
    assert error.value.path is not None
    assert str(world.root) in error.value.path


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"null", b"{", b"\xff{}", b'{"a":1,"a":2}', b'{"a":NaN}',
        b"[" * 200_000, b'{"a":' + b"9" * 10_000 + b"}", b" " * (MANIFEST_BYTES_MAX + 1),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_bad_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_object(data)
    with pytest.raises(CorruptError):
        decode_manifest(data)


def test_every_manifest_that_is_cut_is_damage(world: World) -> None:
    data = world.take("B-both-700").objects["rsm-manifest"]
    decode_manifest(data)
    for end in range(len(data)):
        with pytest.raises(CorruptError):
            decode_manifest(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0\0\0", struct.pack(">i", -1), struct.pack(">i", 1), struct.pack(">iii", 1, 2, 3),
        struct.pack(">ii", 2, 5), struct.pack(">iiBi", 2, 5, 0, 7),
        struct.pack(">iiBBi", 2, 5, 5, 0, 7), struct.pack(">iiBBi", (1 << 31) - 1, 5, 4, 0, 7),
        struct.pack(">iiBBib", 2, 5, 1, 0, 7, 0),
    ],
)  # fmt: skip
def test_sizes_of_another_length_than_they_say_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_sizes(data)


def recompressed(world: World, **how: Any) -> None:
    """Compress the log's chunks in another way than the plugin does."""
    case = world.take("A-zstd-10000")
    writer = zstandard.ZstdCompressor(**how)
    parts = [writer.compress(case.log[at : at + 10000]) for at in range(0, len(case.log), 10000)]
    case.objects["log"] = b"".join(parts)
    world.change(
        lambda m: m["chunkIndex"].update(transformedChunks=variable(list(map(len, parts))))
    )


def test_frames_of_another_level_with_checksums_are_read(world: World) -> None:
    recompressed(world, level=19, write_checksum=True)
    assert world.case.log == world.read()


def test_a_frame_that_does_not_say_its_size_is_damage(world: World) -> None:
    recompressed(world, level=3, write_content_size=False)
    with pytest.raises(CorruptError, match="does not say how much it holds"):
        world.read()


def test_a_chunk_that_explodes_is_damage(world: World) -> None:
    case = world.take("A-zstd-4194304")
    bomb = zstandard.ZstdCompressor().compress(bytes(32 << 20))
    case.objects["log"] = bomb
    world.change(lambda m: m["chunkIndex"].update(transformedChunks=one(len(bomb))))
    with pytest.raises(CorruptError, match="another number of bytes"):
        world.read()


def one(size: int) -> str:
    frame = zstandard.ZstdCompressor().compress(struct.pack(">ii", 1, size))
    return base64.b64encode(frame).decode()


@pytest.mark.parametrize("name", ["A-plain-10000", "A-zstd-10000", "A-enc-10000", "A-both-10000"])
def test_a_log_that_was_cut_is_damage(world: World, name: str) -> None:
    """The plugin gives fewer bytes of a plain one, and no error."""
    case = world.take(name)
    case.objects["log"] = case.objects["log"][:-500]
    with pytest.raises(CorruptError, match="than its object"):
        world.read()


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_an_object_that_is_missing_is_missed_by_name(world: World, suffix: str) -> None:
    world.case.place(world.root)
    path = world.root / world.case.keys[suffix]
    path.unlink()

    def read() -> None:
        reader = world.layout().open(world.case.segment)
        reader.read_auxiliary(AuxiliaryFile.OFFSET_INDEX)

    with pytest.raises(FileNotFoundError, match=re.escape(path.name)):
        read()
    world.layout().delete(world.case.segment)


@pytest.mark.parametrize("name", ["A-enc-10000", "A-both-10000"])
def test_any_bit_that_changes_in_what_is_encrypted_is_damage(world: World, name: str) -> None:
    case = world.take(name)
    case.place(world.root)
    layout = world.layout()

    def read() -> None:
        reader = layout.open(case.segment)
        reader.read_log(0, reader.log_bytes)
        for kind in AuxiliaryFile:
            reader.read_auxiliary(kind)

    read()
    for suffix, step in (("log", 997), ("indexes", 31)):
        path, data = world.root / case.keys[suffix], case.objects[suffix]
        for at in range(0, len(data), step):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(CorruptError, match="damaged"):
                read()
        path.write_bytes(data)


def test_a_key_that_is_not_in_the_ring_is_refused_by_name(world: World) -> None:
    case = world.take("A-enc-10000")
    case.place(world.root)
    layout = replace(world.layout(), keys=KeyRing())
    with pytest.raises(RefusedError, match="key_id='k1'"):
        layout.open(case.segment)
    with pytest.raises(RefusedError, match="key_id='k1'"):
        layout.create_log(case.segment.id, 0, case.segment)


@cache
def _drawn(bits: int) -> RSA.RsaKey:
    return RSA.generate(bits)


def write_pair(folder: Path, name: str, bits: int = 2048) -> KeyPair:
    key = _drawn(bits)
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.export_key("PEM", pkcs=8))
    public.write_bytes(key.public_key().export_key("PEM"))
    return KeyPair(name, public, private)


def test_another_key_of_the_same_name_is_damage_and_an_old_one_still_reads(world: World) -> None:
    case = world.take("A-both-10000")
    case.place(world.root)
    layout = world.layout()
    pair = write_pair(world.root, "k1")
    with pytest.raises(CorruptError, match="does not open"):
        replace(layout, keys=KeyRing((pair,))).open(case.segment)
    ring = KeyRing((*layout.keys.pairs, replace(pair, key_id="k2")), "k2")
    rotated = replace(layout, keys=ring)
    name = dataclasses.replace(case.segment.id, segment_id=bytes(16))
    writer = rotated.create_log(name, 1120, case.segment)
    writer.write(case.log)
    written = writer.close()
    assert b'"dataKey":"k2:' in written.description
    new = replace(case.segment, id=name)
    rotated.complete(new, written, case.auxiliary, case.segment)
    assert case.log == rotated.open(new).read_log(0, len(case.log))
    with pytest.raises(RefusedError, match="key_id='k2'"):
        layout.open(new)


def test_no_plain_key_leaves_the_process(world: World) -> None:
    case = world.take("A-enc-10000")
    case.place(world.root)
    layout = world.layout()
    sealing = existing(decode_manifest(case.objects["rsm-manifest"]).sealing)
    cipher = layout.keys.open(sealing)
    with pytest.raises(TypeError):
        pickle.dumps(cipher)
    pem = (world.vectors / "keys" / "private.pem").read_text().splitlines()[1].encode()
    for shown in (pickle.dumps(layout), repr(layout).encode()):
        assert pem not in shown
    assert layout == pickle.loads(pickle.dumps(layout))


@pytest.mark.parametrize("prefix", ["other/", "some/prefix"])
def test_objects_of_another_prefix_are_refused(world: World, prefix: str) -> None:
    case = world.take("A-plain-10000-op_ok")
    case.place(world.root)
    with pytest.raises(RefusedError, match="OBJECT_PREFIX"):
        world.layout(**{"key.prefix": prefix}).open(case.segment)
    key = CustomMetadata(None, None, "a/b/c")
    elsewhere = replace(case.segment, custom_metadata=encode_custom_metadata(key))
    with pytest.raises(RefusedError, match="OBJECT_KEY"):
        world.layout().open(elsewhere)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("010300", "tag=3"),
        ("0100020500", "not"),
        ("01", "data ends"),
        ("020002020002", "written as"),
        ("010103ffffff", "field"),
    ],
)
def test_unknown_or_damaged_custom_metadata_is_refused(data: str, words: str) -> None:
    with pytest.raises(CompactionError) as error:
        decode_custom_metadata(bytes.fromhex(data))
    assert isinstance(error.value, CorruptError | RefusedError), words


def test_custom_metadata_without_fields_is_none() -> None:
    assert CustomMetadata() == decode_custom_metadata(None) == decode_custom_metadata(b"\0")


def test_a_log_that_the_plugin_cannot_count_is_refused() -> None:
    check_log_size((1 << 31) - (4 << 20), 1 << 20)
    for size, chunk in (((1 << 31) - (1 << 20), 1 << 20), (1 << 30, 1 << 30), (1 << 31, 1)):
        with pytest.raises(RefusedError, match="segment"):
            check_log_size(size, chunk)


def test_an_empty_log_is_not_written(world: World) -> None:
    world.case.place(world.root)
    name = dataclasses.replace(world.case.segment.id, segment_id=bytes(16))
    writer = world.layout().create_log(name, 0, world.case.segment)
    with pytest.raises(InvariantError):
        writer.close()


def test_an_id_is_written_once(world: World) -> None:
    world.case.place(world.root)
    layout, segment = world.layout(), world.case.segment
    with pytest.raises(ConflictError):
        layout.create_log(segment.id, segment.start_offset, segment)
    name = dataclasses.replace(segment.id, segment_id=bytes(16))
    first, second = (layout.create_log(name, 0, segment) for _ in range(2))
    first.write(world.case.log)
    second.write(world.case.log[::-1])
    written = first.close()
    with pytest.raises(ConflictError):
        second.close()
    new = replace(segment, id=name, start_offset=0)
    layout.complete(new, written, world.case.auxiliary, segment)
    other = {**world.case.auxiliary, AuxiliaryFile.SNAPSHOT: b"another"}
    with pytest.raises(ConflictError):
        layout.complete(new, written, other, segment)


def test_a_half_that_was_written_before_a_crash_is_gone_on_with(world: World) -> None:
    """Another process draws other IVs for the same indexes."""
    case = world.take("A-both-10000")
    case.place(world.root)
    layout = world.layout()
    name = dataclasses.replace(case.segment.id, segment_id=bytes(16))
    new = replace(case.segment, id=name)
    writer = layout.create_log(name, 1120, case.segment)
    writer.write(case.log)
    written = writer.close()
    layout.complete(new, written, case.auxiliary, case.segment)
    (manifest,) = world.root.rglob(f"*{'A' * 22}.rsm-manifest")
    before = manifest.read_bytes()
    manifest.unlink()
    layout.complete(new, written, case.auxiliary, case.segment)
    assert before == manifest.read_bytes()
    assert case.log == layout.open(new).read_log(0, len(case.log))


def test_an_encrypted_source_is_never_followed_by_a_plain_output(world: World) -> None:
    segments = []
    for number, name in enumerate(("A-enc-10000", "A-plain-4194304", "A-zstd-10000")):
        case = world.take(name)
        segment = replace(
            case.segment, id=dataclasses.replace(case.segment.id, segment_id=bytes([number]) * 16)
        )
        layout = world.layout()
        path = world.root / f"{layout._key(segment.id, 1120)}.rsm-manifest"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case.objects["rsm-manifest"])
        segments.append(segment)
    encrypted, large, newest = segments
    layout = world.layout()
    assert encrypted == layout.pattern([encrypted, large, newest])
    assert encrypted == layout.pattern([large, newest, encrypted])
    assert large == layout.pattern([large, newest])
    always = world.layout(**{"encryption.enabled": "true", "encryption.key.pair.id": "k1"})
    writer = always.create_log(dataclasses.replace(newest.id, segment_id=bytes(16)), 7, newest)
    writer.write(b"x" * 100)
    assert b'"dataKey":"k1:' in writer.close().description


def test_small_objects_of_our_own_lie_next_to_the_plugins(world: World) -> None:
    layout = world.layout()
    layout.check_conditions()
    assert layout.put_new("owner/a", b"1")
    assert not layout.put_new("owner/a", b"2")
    assert layout.replace_own("owner/a", b"3", b"1")
    assert not layout.replace_own("owner/a", b"4", b"1")
    assert b"3" == layout.read_own("owner/a")
    assert (world.root / "some" / "prefix-.keeplast" / "owner" / "a").is_file()
    (world.root / "some" / "prefix-.keeplast" / "owner" / "two words").write_bytes(b"x")
    assert ["owner/a"] == [each.name for each in layout.list_own("owner")]
    assert [] == list(layout.list_own("work/x"))
    layout.delete_own("owner/a")
    assert layout.read_own("owner/a") is None


PAIR = "encryption.key.pairs.k1"
REFUSED_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"secret_access_key": "x"}, "env:NAME"),
    ({"chunk.size": "1"}, "chunk.size"),
    ({"encryption.enabled": "yes"}, "true or false"),
    ({"encryption.enabled": "true"}, "encryption.key.pair.id"),
    ({"encryption.key.pair.id": "k9"}, "k9"),
    ({"encryption.key.pairs": "k1,k2"}, "k2.private.key.file"),
    ({"encryption.key.pairs.k3.private.key.file": "/x"}, "k3"),
    ({f"{PAIR}.private.key.file": "/nowhere/key.pem"}, "/nowhere/key.pem"),
    ({f"{PAIR}.private.key.file": "/dev/zero"}, "/dev/zero"),
    ({"key.prefix": "/a"}, "begins with no slash"),
    ({"key.prefix": "a//b"}, "begins with no slash"),
    ({"key.prefix": "../a"}, "begins with no slash"),
    ({"key.prefix": "a b"}, "begins with no slash"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED_OPTIONS)
def test_an_unusable_option_is_refused(world: World, options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(words)):
        world.layout(**options)


def test_a_public_key_does_not_read_and_a_short_one_does_not_wrap(world: World) -> None:
    for path, words in (
        (world.vectors / "keys" / "public.pem", "no private key"),
        (write_pair(world.root, "short", 1024).private_file, "bits"),
        (world.vectors / "input" / "A" / "segment.log", "PEM"),
    ):
        with pytest.raises(InvalidError, match=re.escape(words)):
            world.layout(**{f"{PAIR}.private.key.file": str(path)})


def test_tables_are_refused_by_name(world: World) -> None:
    with pytest.raises(RefusedError, match="iceberg"):
        world.layout(**{"segment.format": "iceberg"})
    world.layout(**{"segment.format": "kafka"})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://logs", ("s3://logs", "")),
        ("s3a://logs/", ("s3://logs", "")),
        ("s3://logs/ts", ("s3://logs", "ts")),
        ("gs://logs/a/b/", ("gs://logs", "a/b/")),
    ],
)
def test_text_after_the_bucket_is_the_prefix_as_it_stands(
    url: str, expected: tuple[str, str]
) -> None:
    layout = open_layout(f"aiven:{url}", {"region": "x", "secret_access_key": "env:NOT_SET"})
    assert isinstance(layout, AivenLayout)
    assert expected == (layout.url, layout.key_prefix)
    with pytest.raises(InvalidError, match="NOT_SET"):
        layout.read_own("a")


@pytest.mark.parametrize(
    "url", ["http://x/y", "s3:/x", "s3://", "s3://me:pw@x/y", "s3://x/y?z=1", "memory://"]
)
def test_a_bad_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidError) as error:
        open_layout(f"aiven:{url}")
    assert "pw" not in str(error.value)
