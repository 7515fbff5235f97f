"""``keeplast.DirectoryLogs``: the logs of a data directory, for who asks about all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keeplast.api.place import AskedPlace, Failed, SearchTerms, Shelves
from keeplast.clock import SystemClock
from keeplast.config.choice import PartitionChoice, SettingSources
from keeplast.config.selection import select_partitions
from keeplast.inspect.explain import AskedKey
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FilesRecipe, LocalFiles
from keeplast.log.holds import read_holds
from keeplast.log.object_paths import is_object_path, place_path
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.holds import add_holds, choose_entries, release_holds
from keeplast.run.local_runner import LocalRunner
from keeplast.service.directory_answer import answer_from_directory
from keeplast.service.erasure.certificate_check import PartitionStanding, compare_directory
from keeplast.service.erasure.certificate_issue import SearchedPlace, search_directory
from keeplast.service.erasure.directory_erasing import (
    clean_traces,
    directory_shelves,
    require_outside,
    select_topics,
)
from keeplast.service.erasure.erasing import find_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.explained import KeyAnswer
from keeplast.service.read_place import ReadPlace, directory_read
from keeplast.survey.report import CleanReport
from keeplast.tier.objects.places import recipe_of


@dataclass(frozen=True, slots=True)
class DirectoryLogs(AskedPlace):
    """A data directory, a broker's ``log.dirs`` or a copy of it; a path alone means the same.

    ``config`` are settings by Kafka's names, as ``--config`` gives them, and ``config_file``, the
    broker's ``server.properties`` in ``broker_config``, the environment and the directory's own
    metadata log count as for every command. ``object_options`` are those of the object store of an
    ``s3://`` directory; what changes logs is refused there.
    """

    data_dir: str | Path
    config: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    config_file: Path | None = field(default=None, kw_only=True)
    broker_config: Path | None = field(default=None, kw_only=True)
    object_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)

    @property
    def path(self) -> Path:
        """Return where it is."""
        return place_path(str(self.data_dir))

    @property
    def sources(self) -> SettingSources:
        """Return who says what its topics are."""
        return SettingSources(
            flags=tuple(f"{key}={value}" for key, value in self.config.items()),
            config_file=self.config_file,
            broker_config=self.broker_config,
        )

    def recipe(self) -> FilesRecipe:
        """Return how its files are opened, here and by tasks."""
        options = self.object_options if is_object_path(self.path) else {}
        return recipe_of((self.path,), options)

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> tuple[Hold, ...]:
        """Hold partitions at a point; a loop may be at work meanwhile."""
        files = LocalFiles()
        directory = open_data_directory(self.path, files)
        entries = choose_entries(directory, topics, numbers)
        return add_holds(directory, entries, name, point, age_ms, files, SystemClock())

    def holds(self) -> tuple[Hold, ...]:
        """Return every hold of the directory."""
        files = LocalFiles()
        return tuple(sorted(read_holds(files, open_data_directory(self.path, files).root)))

    def release_hold(self, name: str) -> tuple[Hold, ...]:
        """End a hold."""
        files = LocalFiles()
        return release_holds(open_data_directory(self.path, files), name, files)

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in each chosen log, without the directory's lock."""
        recipe = self.recipe()
        files = recipe.open()
        selection = select_partitions(self.path, files, scope, self.sources)
        return answer_from_directory(
            selection, files, terms.at_ms, asked, scope=scope, receipt=terms.receipt,
            planned=terms.planned, progressed=terms.progressed, brokers=terms.brokers,
            runner=terms.runner, recipe=recipe,
        )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the directory's list of requests, or a file outside of it."""
        yield Shelves(*directory_shelves(self.path, requests))

    def require_elsewhere(self, path: Path) -> None:
        """Raise InvalidError for a file in the directory, which brokers read."""
        require_outside(self.path, path, "out")

    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search logs and what lies beside them; takes no lock."""
        files = LocalFiles()
        selection = select_topics(
            self.path, files, asked.topics, self.sources, leaves_missing=bool(asked.reapplied)
        )
        return find_traces(
            selection, files, terms.at_ms, asked.keys, planned=terms.planned,
            progressed=terms.progressed, runner=terms.runner, brokers=terms.brokers,
        )  # fmt: skip

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: SearchTerms
    ) -> Failed:
        """Do rounds by threads of this process; RefusedError while a broker has the directory."""
        files = LocalFiles()
        selection = select_topics(
            self.path, files, asked.topics, self.sources, leaves_missing=bool(asked.reapplied)
        )

        @contextlib.contextmanager
        def opened() -> Iterator[Coordinator]:
            with LocalRunner() as runner:
                yield Coordinator(runner, SystemClock(), files, NoEvents(), brokers=terms.brokers)

        reports = clean_traces(selection, answer, opened, receipt=terms.receipt)
        return tuple({at: why for each in reports for at, why in _failed(each)}.items())

    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on, receipts included."""
        files = LocalFiles()
        selection = select_topics(self.path, files, request.topics, self.sources)
        return search_directory(
            selection, files, terms.at_ms, keys, receipt=terms.receipt, planned=terms.planned,
            progressed=terms.progressed, runner=terms.runner,
        )  # fmt: skip

    def compare(
        self, statement: Mapping[str, Any], hasher: KeyHasher | None, terms: SearchTerms
    ) -> Sequence[PartitionStanding]:
        """Say how what lies in the directory now stands to a certificate."""
        return compare_directory(
            statement, self.path, LocalFiles(), hasher, receipt=terms.receipt,
            progressed=terms.progressed,
        )  # fmt: skip

    def read_place(self, scope: PartitionChoice, checkpoint: str | None) -> ReadPlace:
        """Return the directory to read states from; a broker may be running."""
        return directory_read((self.path,), self.sources, self.object_options)


def placed(place: AskedPlace | str | Path) -> AskedPlace:
    """Return a place; a path is a data directory with its usual settings."""
    return DirectoryLogs(place) if isinstance(place, (str, Path)) else place


def _failed(report: CleanReport) -> Iterator[tuple[TopicPartition, Exception]]:
    """Yield what failed, of each partition the last: a round, or what was to expire behind it."""
    for each in report.partitions:
        failures = [one.failure for one in each.rounds]
        failures.append(None if each.expiry is None else each.expiry.failure)
        for failure in failures:
            if failure is not None:
                yield TopicPartition(each.topic, each.partition), failure
