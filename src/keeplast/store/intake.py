"""Takes in what a directory has, whole or beside the broker that works on it.

Each is done anew while files move under it, a bounded number of times; what could have lost a
delete that was not copied is the business of :mod:`keeplast.tier.state.continuity`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from keeplast.clock import Clock
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.store.directory import find_replicated_ms
from keeplast.survey.log_bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from keeplast.tier.copy.importing import Replaced, adopt_checkpoint, import_segments
from keeplast.tier.copy.moving_directory import still_listing, while_it_moves
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.state.continuity import ReplacedRange
from keeplast.tier.state.partition_state import PartitionState


def unheard(done: ReplacedRange) -> None:
    """Hear of a replacement and say nothing."""


@dataclass(frozen=True, slots=True)
class Intake:
    """A directory of a partition that is held, and who hears of what is done with it.

    ``topic`` is what counts for the directory; what is replaced in the store waits out
    ``grace_ms``.
    """

    store: MetadataStore
    objects: ObjectStore
    files: FileSystem
    clock: Clock
    partition: TopicPartition
    directory: Path
    topic: TopicConfig
    grace_ms: int
    progressed: Callable[[int], None]
    replaced: Replaced

    def whole(self, high_watermark: int | None, replicated_ms: int | None) -> PartitionState:
        """Take all of it below ``high_watermark``, and what its cleaner has cleaned for clean.

        ``replicated_ms`` as of :func:`.directory.find_replicated_ms`.
        """

        def act() -> PartitionState:
            state = self._import(high_watermark=high_watermark, replicated_ms=replicated_ms)
            return adopt_checkpoint(self.store, self.files, self.directory, state, self.topic)

        return while_it_moves(self.directory, self.files, act)

    def closed(self, retention_ms: int | None) -> PartitionState:
        """Copy closed segments that are replicated and decided, beside a broker.

        ``retention_ms`` is the broker's ``delete.retention.ms``, None where it is not known; the
        least of it and the topic's counts.
        """
        topic = self.topic
        if retention_ms is not None and retention_ms < topic.delete_retention_ms:
            topic = replace(topic, delete_retention_ms=retention_ms)

        def act() -> PartitionState:
            replicated_ms = find_replicated_ms(self.files, self.directory, self.clock)
            # In the middle of a swap a survey would miss what lies between two renames.
            still_listing(self.directory, self.files, self.clock)
            survey = survey_partition(
                PartitionRequest(self.partition, self.directory, topic), CleanRequest(()),
                load_checkpoints(self.files, self.directory.parent), self.files,
                self.clock.now_ms(),
            )  # fmt: skip
            return replace(self, topic=topic)._import(
                until=survey.last_stable, replicated_ms=replicated_ms
            )

        return while_it_moves(self.directory, self.files, act)

    def _import(
        self, *, replicated_ms: int | None, until: int | None = None,
        high_watermark: int | None = None,
    ) -> PartitionState:  # fmt: skip
        return import_segments(
            self.store, self.objects, self.files, self.directory, self.store.load(self.partition),
            topic=self.topic, clock=self.clock, progressed=self.progressed, until=until,
            high_watermark=high_watermark, replicated_ms=replicated_ms, grace_ms=self.grace_ms,
            replaced=self.replaced,
        )  # fmt: skip
