"""What stands in the way of a round of a store, and whether what it holds is right.

The rule: **each right that is missing is named, and no probe is left**. Only in a place that is
this store's a probe is written, read, written again under the condition that there is none, listed
and removed. The database is only looked at.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from keeplast.cleaner.settings import hazards_of, pinned
from keeplast.clock import Clock, time_text
from keeplast.inspect.receipt_proof import with_check
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.log.paths import missing_right, user_name
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_counted, shown_url
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.service.place_check import CheckState, PartCheck, PlaceCheck, tried
from keeplast.service.verifying import ChosenPartition, VerifyAnswer, VerifyTerms, judge_each
from keeplast.store.migration import SettingsOf
from keeplast.store.tiered_store import TieredStore
from keeplast.store.verification import judge_partition
from keeplast.survey.kept_heads import read_kept_chain
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.tier.metadata.collection import IGNORES_CONDITIONS, check_name
from keeplast.tier.metadata.database import exposed_mode, open_database, sqlite_path
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import OBJECTS
from keeplast.tier.objects.object_store import STORE_PROBE, ObjectPlace, StoreAction, right_of
from keeplast.tier.objects.stores import check_directory, open_objects, refused_actions

TOKEN_BYTES = 16


def check_store(
    store: str,
    options: Mapping[str, str],
    topic_of: SettingsOf,
    cleaner: Callable[[], CleanerConfig],
    clock: Clock,
) -> PlaceCheck:
    """Return how the store at a URL stands; ``options`` are the object store's.

    ``topic_of`` and ``cleaner`` read the settings that rounds go by.
    """
    database = tried("database", lambda: open_database(store, only_looks=True))
    if isinstance(database, PartCheck):
        return PlaceCheck((database,))
    with closing(MetadataStore(database, clock)) as metadata:
        partitions = tried("database", metadata.partitions)
        if isinstance(partitions, PartCheck):
            return PlaceCheck((partitions,))
        words = f"{shown_url(store)}: {format_counted(len(partitions), 'partition')}"
        checks = [
            PartCheck("database", CheckState.OK, words),
            *_rights(store),
            *_objects(metadata, options),
            check_clock(metadata.clock.now_ms, is_shared=sqlite_path(store) is None),
            *_settings(metadata, partitions, topic_of, cleaner),
        ]
    return PlaceCheck(tuple(checks), tuple(sorted({each.topic for each in partitions})))


def verify_store(
    opened: TieredStore,
    chosen: Sequence[TopicPartition],
    judged: Sequence[RoundReceipt],
    terms: VerifyTerms,
) -> VerifyAnswer:
    """Judge rows, and what is live of ``chosen``, by the ``judged`` lines of a receipt."""
    files, parts, chain = LocalFiles(), opened.parts(), None
    if terms.receipt is not None:
        chain = read_kept_chain(terms.receipt, files, parts.metadata.facts)

    def judge(at: TopicPartition) -> VerificationReport:
        found = judge_partition(parts.metadata, parts.objects, at, terms.progressed, terms.planned)
        report = found.report([each for each in judged if each.partition == at])
        return report if chain is None else with_check(report, chain)

    partitions = (ChosenPartition(str(at), at, partial(judge, at)) for at in chosen)
    return judge_each(partitions, terms, files, chain)


def check_clock(now_ms: Callable[[], int], *, is_shared: bool) -> PartCheck:
    """Return whether a database's clock, which decides removals, and this host's agree.

    ``is_shared`` says that the database has one; ``now_ms`` asks for it and fails where they do not
    agree.
    """
    found = tried("clock", now_ms)
    if isinstance(found, PartCheck):
        return found
    words = "by the database; this host agrees" if is_shared else "by this host"
    return PartCheck("clock", CheckState.OK, f"{time_text(found)[:19]}, {words}")


def _rights(store: str) -> Iterator[PartCheck]:
    """Yield whether this user may write a SQLite file; of PostgreSQL only a round says so."""
    path = sqlite_path(store)
    if path is None:
        return
    missing = missing_right(path)
    if missing:
        words = f"{user_name()} may not {missing}; run as the user of the store's hosts"
        yield PartCheck("rights", CheckState.PROBLEM, words)
    else:
        yield PartCheck("rights", CheckState.OK, f"{user_name()} may read and write the database")
    mode = exposed_mode(store)
    if mode is not None:
        yield PartCheck(
            "rights", CheckState.WARNING,
            "others than its owner can open the database, which has the key of its filters; the "
            f"next command that writes takes their rights away. mode={mode:04o}",
        )  # fmt: skip


def _objects(metadata: MetadataStore, options: Mapping[str, str]) -> Iterator[PartCheck]:
    url = tried("objects", lambda: metadata.find_fact(OBJECTS))
    if isinstance(url, PartCheck):
        yield url
        return
    if url is None:
        words = "the store is new: it does not know where its objects are"
        yield PartCheck("objects", CheckState.PROBLEM, words, remedy="name them when it is made")
        return

    def opened() -> ObjectPlace:
        check_directory(url)
        objects = open_objects(url, dict(options))
        # A place that is another's gets no probe.
        check_name(metadata, objects, url)
        return objects

    objects = tried("objects", opened)
    if isinstance(objects, PartCheck):
        yield objects
        return
    found = tried("objects", lambda: tuple(probe_objects(objects, url)))
    if isinstance(found, PartCheck):
        yield found
        return
    yield from found
    if not found:
        words = f"{shown_url(url)}: written, read, listed and removed one; conditions are heeded"
        yield PartCheck("objects", CheckState.OK, words)


def probe_objects(objects: ObjectPlace, url: str) -> Iterator[PartCheck]:
    """Yield what the objects' store refuses to do with a probe, and that it heeds no condition.

    UnavailableError when it fails otherwise.
    """
    heeded = True

    def write() -> None:
        nonlocal heeded
        heeded = _heeds_conditions(objects, STORE_PROBE)

    steps: dict[StoreAction, Callable[[], object]] = {
        StoreAction.WRITE: write,
        StoreAction.READ: lambda: _read(objects),
        StoreAction.LIST: lambda: next(iter(objects.list("")), None),
        StoreAction.DELETE: lambda: objects.delete([STORE_PROBE]),
    }
    scheme = url.partition("://")[0]
    for action in refused_actions(steps):
        right = right_of(scheme, action)
        yield PartCheck(
            "objects", CheckState.PROBLEM,
            f"the object store refuses to {action} objects: the principal needs {right}",
            remedy=f"allow {right}, on {shown_url(url)} and all below it",
        )  # fmt: skip
    if not heeded:
        yield PartCheck("objects", CheckState.PROBLEM, f"{IGNORES_CONDITIONS}. objects={url}")


def _heeds_conditions(objects: ObjectPlace, key: str) -> bool:
    """Write a probe twice; False when the second write replaced it."""
    objects.put_new(key, b"probe")
    if not objects.put_new(key, b"probe"):
        return True
    if key != STORE_PROBE:
        return False
    # Another check may have removed the probe between the two writes: no other has a key of chance.
    own = f"{STORE_PROBE}-{secrets.token_hex(TOKEN_BYTES)}"
    try:
        return _heeds_conditions(objects, own)
    finally:
        objects.delete([own])


def _read(objects: ObjectPlace) -> None:
    try:
        objects.read_range(STORE_PROBE, 0, 1)
    except FileNotFoundError:
        # Somebody who checks at the same time has removed it.
        return


def _settings(
    metadata: MetadataStore,
    partitions: tuple[TopicPartition, ...],
    topic_of: SettingsOf,
    cleaner: Callable[[], CleanerConfig],
) -> Iterator[PartCheck]:
    found = tried("settings", cleaner)
    if isinstance(found, PartCheck):
        yield found
    topics = []
    for each in partitions:
        config = tried("settings", partial(_topic_config, metadata, each, topic_of))
        if isinstance(config, PartCheck):
            words = f"{each}: {config.words}"
            yield PartCheck("settings", CheckState.PROBLEM, words, topic=each.topic)
        else:
            topics.append((each.topic, config))
    for hazard in hazards_of(topics):
        yield PartCheck("settings", CheckState.WARNING, hazard)
    compacted = sum(config.is_compacted for _, config in topics)
    words = f"{compacted} of {format_counted(len(topics), 'partition')} compacted"
    yield PartCheck("settings", CheckState.OK, words)


def _topic_config(
    metadata: MetadataStore, partition: TopicPartition, topic_of: SettingsOf
) -> TopicConfig:
    return pinned(partition.topic, topic_of(metadata.load(partition).settings))
