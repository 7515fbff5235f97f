"""What Aiven's plugin keeps of a segment in the metadata topic itself: custom metadata.

Tagged fields, as Kafka's messages have them: a count, then by ascending tag the tag, the length and
the content. Which there are, the plugin's ``custom.metadata.fields.include`` says; without any the
metadata is null.

===  =============  =====================================================================
tag  field          content
===  =============  =====================================================================
0    REMOTE_SIZE    zig-zag varint: bytes of all three objects as stored
1    OBJECT_PREFIX  compact string: ``key.prefix``
2    OBJECT_KEY     compact string: the objects' key without prefix and suffix
===  =============  =====================================================================

Brokers fetch log and indexes below the prefix and key of these fields, and delete by the computed
ones: whoever writes others than the true ones leaves objects behind. Pure.
Answers to ``SegmentCustomMetadataSerde``.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.message_fields import FieldReader
from keeplast.format.varint import decode_varlong, encode_unsigned, encode_varlong

_NAME = "custom metadata"
_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True)
class CustomMetadata:
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
            f"tested. tag={unknown[0]}"
        )
    found = CustomMetadata(
        _size(fields.get(_REMOTE_SIZE)),
        _text(fields.get(_OBJECT_PREFIX)),
        _text(fields.get(_OBJECT_KEY)),
    )
    if encode_custom_metadata(found) != data and fields:
        raise CorruptError(
            f"{_NAME}: written as the plugin does not", position=0,
            expected=(encode_custom_metadata(found) or b"").hex(), found=data.hex(),
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
