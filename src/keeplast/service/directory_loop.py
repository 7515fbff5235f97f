"""What a data directory gives to a loop and to a console."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.selection import select_partitions
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.stages import LogHeaders, scan_headers
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.service.console.searches import MEMORY_BYTES, HeaderScanner, KeyFinder
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.directory_answer import answer_from_directory
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_loop import PlaceView, ViewTerms
from keeplast.service.snapshot import look_at_directory


def directory_view(
    data_dir: Path,
    files: FileSystem,
    scope: PartitionChoice,
    sources: SettingSources,
    terms: ViewTerms,
) -> PlaceView:
    """Return what looks at a data directory; takes no lock. InvalidError when there is none."""
    root = open_data_directory(data_dir, files).root

    def look() -> Looked:
        selection = select_partitions(data_dir, files, scope, sources)
        return Looked(look_at_directory(selection, files, terms.clock.now_ms()))

    shelf = terms.shelf(files, root / RECEIPTS_NAME)
    return PlaceView(
        watcher=Watcher(
            str(root), look, terms.clock, files, shelf, endures=terms.endures, second=terms.endures
        ),
        find=directory_finder(data_dir, files, scope, sources, terms.brokers),
        scan=directory_scanner(data_dir, files, scope),
    )


def directory_finder(
    data_dir: Path,
    files: FileSystem,
    scope: PartitionChoice,
    sources: SettingSources,
    brokers: GroupReader | None = None,
) -> KeyFinder:
    """Return what finds keys in a data directory, within what the console shows of it.

    ``brokers`` read what consumer groups have committed, None where files do.
    """

    def find(
        topic: str,
        partition: int | None,
        asked: AskedKey,
        now_ms: int,
        *,
        planned: Callable[[int], None],
        progressed: Callable[[int], None],
    ) -> KeyAnswer:
        numbers = scope.partitions if partition is None else (partition,)
        if scope.topics and topic not in scope.topics:
            raise InvalidError(f"this topic is not shown here. topic={topic}", code="K114")
        if scope.partitions and not set(numbers) <= set(scope.partitions):
            raise InvalidError(f"no such partition is shown here. topic={topic}", code="K115")
        chosen = PartitionChoice(topics=(topic,), partitions=numbers)
        selection = select_partitions(data_dir, files, chosen, sources)
        return answer_from_directory(
            selection, files, now_ms, asked, scope=chosen, memory_bytes=MEMORY_BYTES,
            planned=planned, progressed=progressed, brokers=brokers,
        )  # fmt: skip

    return find


def directory_scanner(data_dir: Path, files: FileSystem, scope: PartitionChoice) -> HeaderScanner:
    """Return what reads the batch headers of the chosen partitions in a data directory."""

    def scan(
        partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
    ) -> LogHeaders:
        entry = open_data_directory(data_dir, files).find(partition)
        if entry is None or not scope.includes(partition):
            raise InvalidError(
                f"the partition is gone; look again. partition={partition}", code="K115"
            )
        return scan_headers(entry.path, files, now_ms, progressed)

    return scan
