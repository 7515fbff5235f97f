"""Which log is meant: a topic and a partition number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keeplast.errors import InvalidError
from keeplast.model.offsets import INT32_MAX

TOPIC_CHARS_MAX = 249
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}\Z")


def is_topic_name(text: str) -> bool:
    """Say whether a broker takes ``text`` as a topic's name.

    Kafka: ``org.apache.kafka.common.internals.Topic.validate``.
    """
    return _TOPIC.match(text) is not None and text not in (".", "..")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic; prints as Kafka names its directory, ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the directory name of the partition."""
        return f"{self.topic}-{self.partition}"

    def checked(self) -> TopicPartition:
        """Return itself; InvalidError when no broker has such a partition.

        For names that were read somewhere, before they become part of a path or a key.
        """
        if not is_topic_name(self.topic):
            found = self.topic[:TOPIC_CHARS_MAX]
            raise InvalidError(
                f"not the name of a topic: 1 to {TOPIC_CHARS_MAX} of the characters "
                f"a-z A-Z 0-9 . _ -, and neither one dot nor two. topic={found!r}"
            )
        if not 0 <= self.partition <= INT32_MAX:
            raise InvalidError(
                f"a partition's number is 0 to {INT32_MAX}. partition={self.partition}"
            )
        return self
