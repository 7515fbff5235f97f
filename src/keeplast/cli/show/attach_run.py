"""What ``keeplast attach run`` shows: the lines of ``keeplast tier run``, in a cluster's words."""

from __future__ import annotations

from keeplast.cli.show.run import run_sentences
from keeplast.cli.show.tier_run import TierLines
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count, format_counted
from keeplast.service.run_report import RunReport
from keeplast.service.snapshot import AttachedTotals


class AttachedLines(TierLines):
    """Receiver of everything that happens while a cluster's topics are looked after."""

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Say which replaced segments are gone."""
        self._tell(partition, "collected", format_counted(objects, "segment"), size_bytes)

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition will not be compacted any more, and what helps."""
        self._line(
            f"{partition}  skipped until keeplast clean has done it, its log begins elsewhere, or "
            f"the loop begins anew: {reason}"
        )


def attached_sentences(report: RunReport) -> list[str]:
    """Return what was done to the partitions, and what of the caps was used."""
    sentences = run_sentences(report)
    totals = report.snapshot.tier
    if not isinstance(totals, AttachedTotals):
        return sentences
    if totals.collected_objects:
        sentences.append(
            f"{format_counted(totals.collected_objects, 'replaced segment')} "
            f"({format_bytes(totals.collected_bytes)}) collected"
        )
    sentences.append(
        f"in the last 24 hours {format_count(totals.swaps)} of "
        f"{format_counted(totals.swaps_max, 'swap')} and {format_count(totals.metadata_records)} "
        f"of {format_counted(totals.metadata_records_max, 'record')} of the metadata topic"
    )
    return sentences
