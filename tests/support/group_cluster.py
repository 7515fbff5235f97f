"""A cluster that knows consumer groups, as a client sees it: what it says, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keeplast.cluster.live_cluster import TopicEnds
from keeplast.model.partition import TopicPartition


@dataclass(slots=True)
class GroupCluster:
    """Topics by name and commits by group; an error in the place of either is raised.

    ``asked`` are the names of what was asked for, in order.
    """

    topics: dict[str, TopicEnds | Exception | None] = field(default_factory=dict)
    groups: dict[str, Mapping[TopicPartition, int] | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def find_ends(self, topic: str) -> TopicEnds | None:
        """Return what is known of a topic."""
        self.asked.append(topic)
        found = self.topics.get(topic)
        if isinstance(found, Exception):
            raise found
        return found

    def read_group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return what a group has committed."""
        self.asked.append(group)
        found = self.groups.get(group, {})
        if isinstance(found, Exception):
            raise found
        return found
