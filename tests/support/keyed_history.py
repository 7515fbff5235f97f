"""A tiered log whose clean segments have keys of their own, so that filters differ."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from keeplast.inspect.remains import SearchedKey
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import Runner
from keeplast.survey.report import RoundReport
from keeplast.tier.objects.object_store import ObjectStore
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.tiered_log import Tiered

CLEAN_SEGMENTS = 4
KEYS_OF_A_SEGMENT = 7
TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=800)


class KeyedHistory:
    """Segments of about a group's size, each with keys of its own, cleaned once."""

    def __init__(self, root: Path, topic: TopicConfig = TOPIC, url: str = "memory://") -> None:
        self.topic = topic
        self.log = LogBuilder(root / str(PARTITION), topic)
        self.log.now_ms = NOW_MS
        for number in range(CLEAN_SEGMENTS):
            self.write(number)
        self.tiered = Tiered(root, self.log.directory, url)
        self.tiered.clean(topic)

    def write(self, number: int, *, deletes: bool = False) -> None:
        """Write one segment with the keys of ``number``."""
        for key in range(KEYS_OF_A_SEGMENT):
            self.log.record(100 * number + key, None if deletes else 10**40)
        self.log.roll()

    def round(
        self, shape: Shape | None = None, runner: Runner | None = None
    ) -> tuple[RoundReport, FilterStats]:
        """Take in what was written and clean."""
        self.take_in()
        return self.clean(shape, runner)

    def take_in(self) -> None:
        """Take in what was written."""
        self.tiered.take_in(self.log.directory)

    def clean(
        self, shape: Shape | None = None, runner: Runner | None = None
    ) -> tuple[RoundReport, FilterStats]:
        """Clean what was taken in."""
        report = self.tiered.clean(self.topic, shape=shape, runner=runner)
        assert report.filters is not None
        return report, report.filters

    def round_without_filters(self) -> RoundReport:
        """Do such a round, on a thread."""
        self.take_in()
        return self.tiered.clean(replace(self.topic, tier_filter_fpp=0.0))


def overwrite(objects: ObjectStore, key: str, data: bytes) -> None:
    """Replace an object, as a defect or a person would."""
    writer = objects.open_write(key)
    writer.write(data)
    writer.close()


def parts_of(answer: SearchedKey) -> object:
    """Return all that matters of an answer: records, fates, copies, what is not searched."""
    found = answer.found
    records = [(e.record.record, e.record.segment, e.record.outcome, e.fate) for e in found.records]
    copies = [(e.name, one.record, one.outcome) for e in answer.remains for one in e.records]
    return records, copies, found.winners, found.first_dirty, found.bound, answer.unseen
