"""Where traces of keys are, whether each delete is decided, and when they go: as values.

The answer of ``keeplast erase keys``, and what a certificate rests on. A key stands here by its
line in the operator's file and its keyed hash.

The rule that a reader must not break: no document, word or error that is made here has a key in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from keeplast.clock import time_text
from keeplast.errors import code_of, error_text
from keeplast.format.filename import parse_partition_directory
from keeplast.inspect.erasure_search import ForeignSearch, PartitionSearch
from keeplast.inspect.remains import Remains, WantedKeys, searched_files
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.model.text import printable

LINES_SHOWN_MAX = 10
"""Of the lines without a record, those that a sentence names."""
FOREIGN_SHOWN_MAX = 100
"""Of the paths of unknown name, those that stand in sentences."""
FOREIGN_WORDS = (
    "it is no file of a log, and nothing here removes it: look whose it is, and remove it"
)
LOOKALIKE_WORDS = (
    "it has the name of a log and was not searched ({why}): ask where a link leads to, and move "
    "away or remove what is a copy"
)


@dataclass(frozen=True, slots=True)
class ErasureKeys:
    """The keys that are to be gone, by keyed hash, each with the topics that are meant (None: all).

    ``plain`` has those that were given, ``lines`` their line in the file, from 1 on. Without
    ``plain`` every key of a log is hashed and looked up.
    """

    hasher: KeyHasher
    topics: Mapping[str, frozenset[str] | None]
    plain: Mapping[bytes, str] | None = field(default=None, repr=False)
    lines: Mapping[str, int] = field(default_factory=dict)

    def wanted(self) -> WantedKeys:
        """Return what is searched for."""
        if self.plain is not None:
            keys = frozenset(self.plain)
            return WantedKeys(keys.__contains__, keys)
        hashes = frozenset(self.topics)
        return WantedKeys(lambda key: self.hasher.hash_of(key) in hashes)

    def name_of(self, key: bytes) -> str:
        """Return how a key that was found is called: its line, and the beginning of its hash."""
        found = self.hasher.hash_of(key) if self.plain is None else self.plain[key]
        return named_by(self.lines.get(found), found)

    @property
    def chosen_topics(self) -> frozenset[str] | None:
        """Return the topics that are meant for any key, None for all."""
        chosen: set[str] = set()
        for each in self.topics.values():
            if each is None:
                return None
            chosen |= each
        return frozenset(chosen)

    def hash_in(self, key: bytes, topic: str) -> str | None:
        """Return the hash of a key that was found, None where it was not asked about."""
        found = self.hasher.hash_of(key) if self.plain is None else self.plain[key]
        topics = self.topics[found]
        return found if topics is None or topic in topics else None


def named_by(line: int | None, key_hash: str) -> str:
    """Return how a key is called: its line, if it is known here, and the beginning of its hash."""
    return f"{'' if line is None else f'line {line}, '}{key_hash[:16]}"


class KeyPlace(Struct, frozen=True):
    """Where in a partition a key is: records of its log, and ``remains`` by their titles.

    ``is_decided`` says that no value of it wins and none may: a tombstone does, or nothing.
    ``by_ms`` is when the last of it is gone, None where that is not known; ``why`` says what that
    rests on, or what is missing. From ``may_go_ms`` on rounds may take all of it, as far as a clock
    decides that, if rounds are done. ``offsets`` are (segment, offset), in log order.
    """

    partition: TopicPartition
    is_decided: bool
    by_ms: int | None
    why: str
    offsets: tuple[tuple[int, int], ...]
    tombstones: int
    remains: tuple[str, ...] = ()
    may_go_ms: int | None = None

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "decided": self.is_decided,
            "may_go_from_ms": self.may_go_ms,
            "gone_by_ms": self.by_ms,
            "why": self.why,
            "records": len(self.offsets),
            "tombstones": self.tombstones,
            "offsets": [offset for _, offset in self.offsets],
            "segments": sorted({segment for segment, _ in self.offsets}),
            "files_beside": list(self.remains),
        }


class ErasedKey(Struct, frozen=True):
    """What is there of one key; ``line`` None where the key itself is not known here."""

    key_hash: str
    line: int | None
    places: tuple[KeyPlace, ...]

    @property
    def is_decided(self) -> bool:
        """Say whether its delete is decided wherever it is."""
        return all(each.is_decided for each in self.places)

    @property
    def gone_by_ms(self) -> int | None:
        """Return when the last trace is gone, None where that is not known."""
        times = [each.by_ms for each in self.places]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def name(self) -> str:
        """Return how it is called: its line, and the beginning of its hash."""
        return named_by(self.line, self.key_hash)

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "line": self.line,
            "hash": self.key_hash,
            "decided": self.is_decided,
            "is_there": bool(self.places),
            "gone_by_ms": self.gone_by_ms,
            "places": self.places,
        }


class ForeignFile(Struct, frozen=True):
    """A path of unknown name below a place: the ``keys`` in it, by name, or ``why`` not searched.

    ``is_in_the_way`` of a certificate is what has a key, and what is most likely a log.
    """

    name: str
    size_bytes: int
    keys: tuple[str, ...] = ()
    why: str | None = None
    is_in_the_way: bool = False

    @property
    def words(self) -> str:
        """Return the path, its size, and what is wrong with it."""
        said = f"it has {', '.join(self.keys)}: {FOREIGN_WORDS}" if self.keys else self.why
        return f"{self.name} ({self.size_bytes} bytes): {said}"

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "path": printable(self.name), "size_bytes": self.size_bytes, "keys": list(self.keys),
            "why": self.why,
        }  # fmt: skip


class ErasureAnswer(Struct, frozen=True):
    """What was found at ``now_ms``: of every key, and of every directory that was searched.

    ``clean_to`` are the cleaner's checkpoints, None where there is none. ``problems`` are files
    that could not be searched to their end; ``files_searched`` is how many were looked into that
    lie elsewhere than their log. ``faults`` could not be searched; ``left_out`` were not, each with
    why. ``foreign`` are the paths of unknown name below the place with a key, or that were not
    searched; ``foreign_searched`` is how many others had none. ``unseen`` says what of searched
    partitions cannot be searched from here. ``had_traces`` are the hashes of the keys that were
    found before this call cleaned.
    """

    now_ms: int
    keys: tuple[ErasedKey, ...]
    searches: tuple[PartitionSearch, ...]
    clean_to: Mapping[TopicPartition, int | None]
    problems: tuple[tuple[TopicPartition, Remains], ...]
    files_searched: int
    faults: tuple[tuple[TopicPartition, Exception], ...]
    left_out: tuple[tuple[TopicPartition, str], ...]
    foreign: tuple[ForeignFile, ...] = ()
    foreign_searched: int = 0
    warnings: tuple[str, ...] = ()
    unseen: tuple[tuple[TopicPartition, str], ...] = ()
    had_traces: frozenset[str] = frozenset()

    @property
    def undecided(self) -> tuple[ErasedKey, ...]:
        """Return the keys that still need a tombstone."""
        return tuple(each for each in self.keys if not each.is_decided)

    @property
    def there(self) -> tuple[ErasedKey, ...]:
        """Return the keys that have a trace."""
        return tuple(each for each in self.keys if each.places)

    @property
    def in_the_way(self) -> tuple[ForeignFile, ...]:
        """Return the paths of unknown name that keep a certificate from being made."""
        return tuple(each for each in self.foreign if each.is_in_the_way)

    @property
    def unknown(self) -> tuple[ForeignFile, ...]:
        """Return the paths of unknown name that were not searched, and stand in a certificate."""
        return tuple(each for each in self.foreign if each.why is not None)

    def partitions_with_traces(self) -> tuple[TopicPartition, ...]:
        """Return the partitions in which one of the keys is."""
        return tuple(sorted({place.partition for each in self.keys for place in each.places}))

    def document(self) -> dict[str, Any]:
        """Return what the document shows."""
        return {
            "now_ms": self.now_ms,
            "keys": self.keys,
            "searched": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "to_offset": each.log_end,
                    "batches": each.batches,
                    "files_beside": searched_files(each.remains),
                    "unknown_files": list(each.unknown),
                }
                for each in self.searches
            ],
            "not_searched": [
                *(
                    {
                        "topic": partition.topic, "partition": partition.partition,
                        "file": each.title, "why": each.problem,
                    }
                    for partition, each in self.problems
                ),
                *(
                    {
                        "topic": partition.topic, "partition": partition.partition, "file": None,
                        "why": why,
                    }
                    for partition, why in (*self.left_out, *self.unseen)
                ),
                *(
                    {
                        "topic": None, "partition": None, "file": printable(each.name),
                        "why": each.why,
                    }
                    for each in self.unknown
                ),
            ],
            "foreign_files": {"searched": self.foreign_searched, "told": self.foreign},
            "errors": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "class": type(error).__name__,
                    "message": error_text(error),
                    "code": code_of(error),
                }
                for partition, error in self.faults
            ],
        }  # fmt: skip


def foreign_files(
    search: ForeignSearch, keys: ErasureKeys, is_like_log: Callable[[str], bool]
) -> tuple[ForeignFile, ...]:
    """Return what a search of unknown names has found, without any key.

    ``is_like_log`` says of a name whether what was not searched below it has a log's name.
    """
    return tuple(
        ForeignFile(
            each.name, each.size_bytes, tuple(sorted(map(keys.name_of, each.keys))),
            LOOKALIKE_WORDS.format(why=each.why) if is_like else each.why,
            bool(each.keys) or each.may_have_records or is_like,
        )
        for each in search.findings
        for is_like in [each.why is not None and is_like_log(each.name)]
    )  # fmt: skip


def is_like_log(name: str, topics: Sequence[str]) -> bool:
    """Say whether a name begins as a partition directory of ``topics`` does, whatever follows.

    A broker follows a link that has a partition's name, and a copy made by hand, such as
    ``orders-0.bak``, has what the log had. Without topics all are meant.
    """
    parsed = parse_partition_directory(name)
    if parsed is not None:
        return not topics or parsed.partition.topic in topics
    begins = [re.escape(each) for each in topics] or [".+"]
    return any(re.match(rf"{each}-[0-9]+(?![0-9])", name) is not None for each in begins)


def unsearched_words(answer: ErasureAnswer) -> list[str]:
    """Return what of the place was not searched, a sentence each, without any key.

    Paths of unknown name come first, and those with a key before all.
    """
    shown = sorted(answer.foreign, key=lambda each: (not each.keys, not each.is_in_the_way))
    lines = [
        f"{'a trace' if each.keys else 'not searched'}: {each.words}"
        for each in shown[:FOREIGN_SHOWN_MAX]
    ]
    if len(shown) > FOREIGN_SHOWN_MAX:
        more = shown[FOREIGN_SHOWN_MAX:]
        lines.append(
            f"not searched: {len(more)} further path(s) of unknown name, "
            f"{sum(each.size_bytes for each in more)} bytes; --json and the certificate have them"
        )
    lines += [f"not searched: {partition}: {each.fault}" for partition, each in answer.problems]
    lines += [
        f"not searched: {partition}: {why}" for partition, why in (*answer.left_out, *answer.unseen)
    ]
    return lines


def answer_words(answer: ErasureAnswer) -> list[str]:
    """Return what is to be said of an answer in sentences, without any key."""
    there = answer.there
    lines = [
        f"{len(answer.keys)} key(s), {len(there)} with a trace, {len(answer.undecided)} whose "
        f"delete is not decided; searched: {len(answer.searches)} partition(s)"
    ]
    absent = [each for each in answer.keys if each.line is not None and not each.places]
    for was_there, words in (
        (True, "this call removed every record of line {}"),
        (False, "no record was found of line {}: gone, or never here, or not spelled as the log "
                "has it"),
    ):  # fmt: skip
        its = [each.line for each in absent if (each.key_hash in answer.had_traces) is was_there]
        if its:
            more = f" and {len(its) - LINES_SHOWN_MAX} more" if len(its) > LINES_SHOWN_MAX else ""
            lines.append(words.format(", ".join(map(str, its[:LINES_SHOWN_MAX])) + more))
    return [*lines, *unsearched_words(answer)]


def date_words(at_ms: int | None) -> str:
    """Return a date, or that there is none."""
    return "no date" if at_ms is None else time_text(at_ms)[:19]
