"""Segments as Aiven's tiered storage plugin lays them out: three objects each, one a manifest.

::

    <key.prefix><topic>-<topic id>/<partition>/<start offset>-<segment id>.<suffix>
    <key.prefix>.keeplast/<name>                          keeplast's own small objects

``suffix`` is ``log``, ``indexes`` or ``rsm-manifest``. ``key.prefix`` is put in front as it stands;
ids have 22 characters, offsets 20 digits. The plugin reads a segment by its manifest, whatever its
settings are now, and so does this.

The rule: **the manifest is written last, and all under an id that was never used**. Everything in
it is held against the objects before it is believed: a log that is too short is no error to the
plugin, only fewer bytes. Answers to ``RemoteStorageManager``, ``ObjectKeyFactory``.

The plugin also keeps custom metadata of a segment in the metadata topic itself. These are tagged
fields, as Kafka's messages have them: a count, then by ascending tag the tag, the length and the
content. The plugin's ``custom.metadata.fields.include`` says which there are; without any the
metadata is null::

    tag  field          content
    0    REMOTE_SIZE    zig-zag varint: bytes of all three objects as stored
    1    OBJECT_PREFIX  compact string: key.prefix
    2    OBJECT_KEY     compact string: the objects' key without prefix and suffix

Brokers fetch log and indexes below the prefix and key of these fields, and delete by the computed
ones. A writer of others than the true ones leaves objects there. Pure. Answers to
``SegmentCustomMetadataSerde``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from keeplast.cluster.layouts.aiven_encryption import KeyRing
from keeplast.cluster.layouts.aiven_log import (
    AivenLogWriter,
    AivenSegmentReader,
    check_chunks,
    pack_indexes,
)
from keeplast.cluster.layouts.aiven_manifest import (
    MANIFEST_BYTES_MAX,
    SegmentManifest,
    StoredFile,
    decode_manifest,
    decode_written,
    encode_manifest,
)
from keeplast.cluster.layouts.layout import (
    ALWAYS_THERE,
    OWN,
    OWN_BYTES_MAX,
    PROBE,
    AuxiliaryFile,
    FoundOwn,
    FoundSegment,
    LogWriter,
    OwnDirectory,
    SegmentReader,
    WrittenLog,
    check_own_content,
    check_own_name,
    is_own_name,
)
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    InvariantError,
    RefusedError,
    invariant,
)
from keeplast.format.fields import FieldReader, decode_varlong, encode_unsigned, encode_varlong
from keeplast.format.identifier import decode_id, encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import ForeignPath, walk
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.tier.objects.handles import ObjectReadHandle
from keeplast.tier.objects.new_object import NewObject, put_once
from keeplast.tier.objects.object_store import read_option
from keeplast.tier.objects.stores import FILE, ObstoreObjects, open_once

_NAME = "custom metadata"
_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


class CustomMetadata(Struct, frozen=True):
    """The fields of a segment; None for one that is not kept."""

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None


def decode_custom_metadata(data: bytes | None) -> CustomMetadata:
    """Return the fields. CorruptError for damage, RefusedError for a field that is not known."""
    if data is None:
        return CustomMetadata()
    reader = FieldReader(data, _NAME)
    reader.is_flexible = True
    fields = reader.raw_tags()
    reader.end()
    unknown = sorted(set(fields) - {_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY})
    if unknown:
        raise RefusedError(
            "custom metadata has a field that is not known; this version of the plugin was not "
            f"tested. tag={unknown[0]}",
            code="K438",
        )
    found = CustomMetadata(
        _size(fields.get(_REMOTE_SIZE)),
        _text(fields.get(_OBJECT_PREFIX)),
        _text(fields.get(_OBJECT_KEY)),
    )
    if encode_custom_metadata(found) != data and fields:
        raise CorruptError(
            f"{_NAME}: written as the plugin does not", position=0,
            expected=(encode_custom_metadata(found) or b"").hex(), found=data.hex(), code="K437",
        )  # fmt: skip
    return found


def encode_custom_metadata(fields: CustomMetadata) -> bytes | None:
    """Return the bytes that the metadata topic carries, None for no field."""
    contents: list[tuple[int, bytes]] = []
    if fields.remote_size is not None:
        contents.append((_REMOTE_SIZE, encode_varlong(fields.remote_size)))
    for tag, text in ((_OBJECT_PREFIX, fields.object_prefix), (_OBJECT_KEY, fields.object_key)):
        if text is not None:
            raw = text.encode()
            contents.append((tag, encode_unsigned(len(raw) + 1) + raw))
    if not contents:
        return None
    parts = [encode_unsigned(len(contents))]
    for tag, content in contents:
        parts += (encode_unsigned(tag), encode_unsigned(len(content)), content)
    return b"".join(parts)


def _size(content: bytes | None) -> int | None:
    return None if content is None else decode_varlong(content)[0]


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    reader = FieldReader(content, _NAME)
    reader.is_flexible = True
    text = reader.text()
    reader.end()
    return text


LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"
_SUFFIXES = (LOG, INDEXES, MANIFEST)
_OBJECT_NAME = re.compile(rf"([0-9]{{20}})-([A-Za-z0-9_-]{{22}})\.(?:{'|'.join(_SUFFIXES)})\Z")
_OBJECT = re.compile(r"[^/]+-[A-Za-z0-9_-]{22}/[0-9]+/([^/]+)\Z")
_NO_KEYS = KeyRing()


class AivenLayout(Struct, frozen=True):
    """The layout below one bucket or root.

    ``url`` has no prefix; ``options`` are its store's, as they were given: secrets by name only.
    ``encrypts`` says that brokers do, whatever older segments are.
    """

    url: str
    key_prefix: str = ""
    options: tuple[tuple[str, str], ...] = ()
    keys: KeyRing = _NO_KEYS
    encrypts: bool = False

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment by its manifest, which must fit the announcement and the log's object.

        RefusedError when its custom metadata has it elsewhere than it is looked for: brokers with
        another ``key.prefix`` wrote it.
        """
        key = self._key(segment.id, segment.start_offset)
        self._check_custom(segment, key)
        manifest = self._read_manifest(key)
        where = f"{self.url}/{key}.{MANIFEST}"
        for name, expected, found in (
            ("than was announced", segment.size_bytes, manifest.chunks.original_size),
            ("than its object", self._size(key, LOG), manifest.chunks.stored_size),
        ):
            if expected != found:
                raise CorruptError(
                    f"a remote log has another size in its manifest {name}", path=where,
                    position=0, expected=expected, found=found, code="K437",
                )  # fmt: skip
        cipher = None if manifest.sealing is None else self.keys.open(manifest.sealing)
        return AivenSegmentReader(
            self._objects, self.url, f"{key}.{LOG}", f"{key}.{INDEXES}", manifest, cipher
        )

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return the newest with the largest chunks, of those that are encrypted if any is."""

        def strength(at: int) -> tuple[bool, int, int]:
            manifest = self._read_manifest(self._key(sources[at].id, sources[at].start_offset))
            return manifest.sealing is not None, manifest.chunks.original_chunk_size, at

        return sources[max(strength(at) for at in range(len(sources)))[2]]

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start a log in the chunks of ``like``, compressed and encrypted if it is.

        With ``encrypts`` it is encrypted in any case. RefusedError once it is larger than the
        plugin can read.
        """
        manifest = self._read_manifest(self._key(like.id, like.start_offset))
        sealing = cipher = None
        if manifest.sealing is not None or self.encrypts:
            used = None if manifest.sealing is None else manifest.sealing.key_id
            sealing, cipher = self.keys.new_segment(used)
        key = f"{self._key(segment_id, start_offset)}.{LOG}"
        check_chunks(manifest.chunks.original_chunk_size, manifest.is_compressed or bool(sealing))
        return AivenLogWriter(
            NewObject(self._objects, key), manifest.chunks.original_chunk_size,
            sealing, cipher, is_compressed=manifest.is_compressed,
        )  # fmt: skip

    def complete(
        self,
        segment: RemoteLogSegment,
        written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes],
        like: RemoteLogSegment,
    ) -> bytes | None:
        """Write indexes, then the manifest; return custom metadata with the fields of ``like``."""
        missing = sorted(ALWAYS_THERE - set(auxiliary))
        invariant(not missing, f"files of a segment are missing. kinds={','.join(missing)}")
        log = decode_written(written.description)
        sizes = (segment.size_bytes, written.size_bytes, log.chunks.original_size)
        invariant(
            len(set(sizes)) == 1, f"another size is announced than was written. sizes={sizes}"
        )
        key = self._key(segment.id, segment.start_offset)
        files, stored = self._put_indexes(f"{key}.{INDEXES}", log, auxiliary)
        manifest = SegmentManifest(log.chunks, files, log.is_compressed, log.sealing)
        data = encode_manifest(manifest, segment)
        put_once(self._objects, f"{key}.{MANIFEST}", data)
        fields = decode_custom_metadata(like.custom_metadata)
        total = log.chunks.stored_size + stored + len(data)
        return encode_custom_metadata(
            CustomMetadata(
                None if fields.remote_size is None else total,
                None if fields.object_prefix is None else self.key_prefix,
                None if fields.object_key is None else key.removeprefix(self.key_prefix),
            )
        )

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove a segment's three objects, by one request where the store has one for it."""
        self._delete(segment.id, segment.start_offset)

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove objects that a listing found."""
        self._delete(RemoteLogSegmentId(partition, found.segment_id), found.start_offset)

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield segments by id, whole or not; what is named otherwise is not the plugin's."""
        found: dict[tuple[bytes, int], FoundSegment] = {}
        folder = f"{self.key_prefix}{_folder(partition)}"
        for each in self._objects.list(folder):
            match = _OBJECT_NAME.match(each.key.removeprefix(f"{folder}/"))
            if match is None or encode_id(decode_id(match[2])) != match[2]:
                continue
            name = decode_id(match[2]), int(match[1])
            before = found.get(name, FoundSegment(*name, 0, 0))
            found[name] = FoundSegment(
                *name, before.size_bytes + each.size_bytes,
                max(before.modified_ms, each.modified_ms),
            )  # fmt: skip
        yield from (found[name] for name in sorted(found))

    def foreign(self) -> Iterator[ForeignPath]:
        """Yield the objects below the plugin's prefix that are no segment's and none of ours."""
        folder, _, begins = self.key_prefix.rpartition("/")
        if self._objects.directory is not None:
            # What is being written there has a name that no list of objects shows.
            root = self._objects.directory / folder
            yield from walk(root, LocalFiles(), lambda parts: _is_known("/".join(parts), begins))
            return
        for each in self._objects.list(folder):
            if not _is_known(each.key.removeprefix(f"{folder}/"), begins):
                handle = partial(ObjectReadHandle, self._objects, each.key, each.size_bytes)
                stamp = each.size_bytes, each.modified_ms
                yield ForeignPath(each.key, each.size_bytes, stamp, handle)

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Say whether the bucket keeps versions, as the object of a log shows."""
        key = self._key(segment.id, segment.start_offset)
        return self._objects.has_version(f"{key}.{LOG}")

    def check_conditions(self) -> None:
        """RefusedError when the store writes although there is an object, or another version."""
        directory = self._own_directory
        if directory is not None:
            directory.check_conditions()
            return
        # One name, so that probes that may not be deleted do not heap. Two that find out at a time
        # may disturb each other there, and ask once more by a name of their own.
        names = (PROBE, f"{PROBE}-{secrets.token_hex(8)}")
        if not any(self._objects.is_conditional(self._own_key(each)) for each in names):
            raise RefusedError(
                "this object store ignores If-None-Match or If-Match, so that two compactors "
                f"could not exclude each other; use one that heeds them. url={self.url}",
                code="K312",
            )

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object of keeplast's own; False when there is one."""
        directory = self._own_directory
        if directory is not None:
            return directory.put_new(name, data)
        check_own_content(data)
        return self._objects.put_new(self._own_key(name), data)

    def read_own(self, name: str) -> bytes | None:
        """Return an own object, None when there is none."""
        directory = self._own_directory
        if directory is not None:
            return directory.read(name)
        try:
            return bytes(self._objects.read_range(self._own_key(name), 0, OWN_BYTES_MAX))
        except FileNotFoundError:
            return None

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace an own object that still is ``expected``; False else."""
        directory = self._own_directory
        if directory is not None:
            return directory.replace(name, data, expected)
        check_own_content(data)
        return self._objects.replace(self._own_key(name), data, expected)

    def delete_own(self, name: str) -> None:
        """Remove an own object."""
        directory = self._own_directory
        if directory is not None:
            directory.delete(name)
        else:
            self._objects.delete([self._own_key(name)])

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the own objects right below ``folder``."""
        directory = self._own_directory
        if directory is not None:
            yield from directory.list(folder)
            return
        prefix = self._own_key(folder)
        for each in self._objects.list(prefix):
            name = each.key.removeprefix(f"{prefix}/")
            if "/" not in name and is_own_name(f"{folder}/{name}"):
                yield FoundOwn(f"{folder}/{name}", each.modified_ms)

    @property
    def _objects(self) -> ObstoreObjects:
        values = tuple((key, read_option(f"option={key}", text)) for key, text in self.options)
        return open_once(self.url, values)

    @property
    def _own_directory(self) -> OwnDirectory | None:
        """Return where own objects are if objects are files, which know no conditions."""
        if not self.url.startswith(FILE):
            return None
        return OwnDirectory(Path(f"{self.url.removeprefix(FILE)}/{self.key_prefix}{OWN}"))

    def _own_key(self, name: str) -> str:
        return f"{self.key_prefix}{OWN}/{check_own_name(name)}"

    def _key(self, segment_id: RemoteLogSegmentId, start_offset: int) -> str:
        folder = _folder(segment_id.partition)
        return f"{self.key_prefix}{folder}/{start_offset:020d}-{encode_id(segment_id.segment_id)}"

    def _size(self, key: str, suffix: str) -> int:
        return self._objects.stat(f"{key}.{suffix}").size_bytes

    def _read_manifest(self, key: str) -> SegmentManifest:
        name = f"{key}.{MANIFEST}"
        data = bytes(self._objects.read_range(name, 0, MANIFEST_BYTES_MAX + 1))
        try:
            return decode_manifest(data)
        except CorruptError as error:
            raise error.located(f"{self.url}/{name}") from None
        except RefusedError as error:
            raise RefusedError(f"{error} path={self.url}/{name}", code=error.code) from None

    def _check_custom(self, segment: RemoteLogSegment, key: str) -> None:
        try:
            fields = decode_custom_metadata(segment.custom_metadata)
        except CorruptError as error:
            raise error.located(f"{self.url}/{key}") from None
        for name, expected, found in (
            ("OBJECT_PREFIX", self.key_prefix, fields.object_prefix),
            ("OBJECT_KEY", key.removeprefix(self.key_prefix), fields.object_key),
        ):
            if found not in (None, expected):
                raise RefusedError(
                    "a segment's objects lie elsewhere than they are looked for; brokers with "
                    f"another key.prefix wrote them. field={name} expected={expected!r} "
                    f"found={found!r}",
                    code="K438",
                )

    def _put_indexes(
        self, key: str, log: SegmentManifest, auxiliary: Mapping[AuxiliaryFile, bytes]
    ) -> tuple[dict[AuxiliaryFile, StoredFile], int]:
        """Write ``.indexes``; return where each file lies in it, and its size."""
        cipher = None if log.sealing is None else self.keys.open(log.sealing)
        files, data = pack_indexes(auxiliary, cipher)
        try:
            put_once(self._objects, key, data)
        except ConflictError:
            # Another IV gives other bytes for the same files: it is ours if it says the same.
            manifest = SegmentManifest(log.chunks, files, log.is_compressed, log.sealing)
            reader = AivenSegmentReader(self._objects, self.url, "", key, manifest, cipher)
            if cipher is None or not _is_same(reader, auxiliary):
                raise
        return files, len(data)

    def _delete(self, segment_id: RemoteLogSegmentId, start_offset: int) -> None:
        key = self._key(segment_id, start_offset)
        self._objects.delete([f"{key}.{suffix}" for suffix in reversed(_SUFFIXES)])


def _is_same(reader: SegmentReader, auxiliary: Mapping[AuxiliaryFile, bytes]) -> bool:
    try:
        return all(reader.read_auxiliary(kind) == data for kind, data in auxiliary.items())
    except InvariantError:
        raise
    except CompactionError:
        return False


def _folder(partition: TopicIdPartition) -> str:
    TopicPartition(partition.topic, partition.partition).checked()
    return f"{partition.topic}-{encode_id(partition.topic_id)}/{partition.partition}"


def _is_known(key: str, begins: str) -> bool:
    """Say whether a key is a segment's or ours, or begins otherwise than the plugin's do."""
    if not key.startswith(begins):
        return True
    named = _OBJECT.match(key.removeprefix(begins))
    own = key.removeprefix(f"{begins}{OWN}/")
    return (own != key and is_own_name(own)) or (
        named is not None and _OBJECT_NAME.match(named[1]) is not None
    )
