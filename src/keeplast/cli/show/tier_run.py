"""What ``keeplast tier run`` shows: the lines of ``keeplast run``, and what only a store has."""

from __future__ import annotations

from keeplast.cli.show.run import NAME_WIDTH, REASON_WIDTH, RunLines, run_sentences
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_counted
from keeplast.service.run_report import RunReport


class TierLines(RunLines):
    """Receiver of everything that happens while a store is looked after, for people."""

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what a partition has gained."""
        self._tell(partition, "copied", f"{format_counted(segments, 'segment')}", size_bytes)

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        """Say that all of a partition was copied anew, and why."""
        self._line(f"{partition}  {reason}")

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Say what was removed from the object store."""
        self._tell(partition, "collected", f"{format_counted(objects, 'object')}", size_bytes)

    def left_disk(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what local retention has removed from this host's disk."""
        self._tell(partition, "left disk", f"{format_counted(segments, 'segment')}", size_bytes)

    def stands(self, partition: TopicPartition, words: str) -> None:
        """Say whether this host leads a partition, or whom it follows."""
        self._line(f"{partition}  {words}")

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        """Say that another host owns a partition."""
        self._line(f"{partition}  left alone: {reason}")

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition will not be cleaned any more, and what helps."""
        self._line(f"{partition}  skipped until --retry or a clean by hand: {reason}")

    def _tell(self, partition: TopicPartition, what: str, words: str, size_bytes: int) -> None:
        name = str(partition).ljust(NAME_WIDTH)
        self._line(f"{name}  {what.ljust(REASON_WIDTH)}  {words}, {format_bytes(size_bytes)}")


def tier_sentences(report: RunReport) -> list[str]:
    """Return what was done to the partitions and to the store."""
    sentences = run_sentences(report)
    totals = report.snapshot.tier
    if totals is not None:
        parts = [
            (totals.copied_segments, "segment", totals.copied_bytes, "copied"),
            (totals.expired_segments, "segment", totals.expired_bytes, "expired"),
            (totals.collected_objects, "object", totals.collected_bytes, "collected"),
        ]
        words = [
            f"{format_counted(count, noun)} ({format_bytes(size)}) {what}"
            for count, noun, size, what in parts
            if count
        ]
        if totals.replaced_ranges:
            words.append(f"{format_counted(totals.replaced_ranges, 'partition')} copied anew")
        if totals.refused_copies:
            words.append(
                "1 copy refused"
                if totals.refused_copies == 1
                else f"{totals.refused_copies} copies refused"
            )
        if words:
            sentences.append(", ".join(words))
    return sentences
