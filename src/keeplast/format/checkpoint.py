"""Checkpoint text files: a version, a count, then one entry a line.

::

    0                      version
    2                      number of entries
    topic 0 100            offset checkpoints: topic, partition, offset
    topic 1 200

Fields are separated by any run of white space; one space is written. An empty file has no entries.
The count must match: it distinguishes a whole file from a cut one. Four files of a data directory
hold offsets in this form, and ``leader-epoch-checkpoint`` (:mod:`keeplast.format.leader_epoch`).
Answers to ``CheckpointFile`` and ``OffsetCheckpointFile``; formats.md section 2.8.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.model.partition import INT32_MAX, INT64_MAX, TopicPartition

VERSION = 0

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_SPACE = re.compile(r"[ \t\x0b\f]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}\Z")


class Field(Struct, frozen=True):
    """One white-space separated word of a checkpoint; ``position`` is that of its line."""

    text: str
    position: int

    def int32(self) -> int:
        """Return the word as a 32-bit number or raise :class:`CorruptError`."""
        return self._integer(INT32_MAX)

    def int64(self) -> int:
        """Return the word as a 64-bit number or raise :class:`CorruptError`."""
        return self._integer(INT64_MAX)

    def _integer(self, greatest: int) -> int:
        if _INTEGER.match(self.text) and -greatest - 1 <= int(self.text) <= greatest:
            return int(self.text)
        raise CorruptError(
            "not a number in a checkpoint",
            position=self.position,
            expected=f"an integer up to {greatest}",
            found=_show(self.text),
            code="K220",
        )


def decode_offsets(data: Buffer) -> dict[TopicPartition, int]:
    """Return the offset of each partition; of a repeated partition the last line counts."""
    return {
        TopicPartition(topic.text, partition.int32()): offset.int64()
        for topic, partition, offset in decode_entries(data, field_count=3)
    }


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the checkpoint of ``offsets``, in the mapping's order."""
    return encode_lines([offset_line(*item) for item in offsets.items()])


def offset_line(partition: TopicPartition, offset: int) -> str:
    """Return the line of a partition in an offset checkpoint, without its end."""
    return f"{partition.topic} {partition.partition} {offset}"


def decode_entries(data: Buffer, *, field_count: int) -> list[list[Field]]:
    """Return the entries of any checkpoint, each with exactly ``field_count`` fields."""
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CorruptError(
            "checkpoint is not text",
            position=error.start,
            expected="UTF-8",
            found=bytes(data[error.start : error.start + 4]).hex(),
            code="K220",
        ) from None
    lines = _lines(text)
    if not lines:
        return []
    version = lines[0].int32()
    if version != VERSION:
        raise CorruptError(
            "unknown checkpoint version", position=0, expected=VERSION, found=version, code="K220"
        )
    if len(lines) == 1:
        return []
    count = lines[1].int32()
    entries = []
    for line in lines[2:]:
        words = _SPACE.split(line.text)
        # As Java's split does it: trailing empty words do not count, a leading one does.
        while words and not words[-1]:
            words.pop()
        if len(words) != field_count:
            raise CorruptError(
                "malformed checkpoint line",
                position=line.position,
                expected=f"{field_count} fields",
                found=_show(line.text),
                code="K220",
            )
        entries.append([Field(word, line.position) for word in words])
    if len(entries) != count:
        raise CorruptError(
            "checkpoint entry count mismatch",
            position=lines[1].position,
            expected=count,
            found=len(entries),
            code="K220",
        )
    return entries


def encode_entries(entries: Iterable[Sequence[object]]) -> bytes:
    """Return a checkpoint whose lines are ``entries``, fields separated by one space."""
    return encode_lines([" ".join(str(field) for field in entry) for entry in entries])


def encode_lines(lines: Collection[str]) -> bytes:
    """Return a checkpoint of ``lines``; no line has an end yet."""
    return "\n".join((str(VERSION), str(len(lines)), *lines, "")).encode()


def _lines(text: str) -> list[Field]:
    # Positions are in bytes, so that they can be found in the file again.
    lines = []
    index = position = 0
    while index < len(text):
        match = _LINE.match(text, index)
        if match is None:
            break
        lines.append(Field(match[1], position))
        position += len(match[0].encode())
        index = match.end()
    return lines


def _show(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
