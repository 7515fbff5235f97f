"""Changes of a tiered topic's policy, and what the first round after one would drop.

A topic that becomes compacted is dirty from its log start on, or from where it was compacted last.
Records without a key belong to no key: rounds drop them. Somebody who turns compaction on by
accident must not lose them, so they are counted first and dropped only when that was confirmed.
KIP-1272, "Compatibility, Deprecation, and Migration Plan".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.settings import check_internal, hazards_of, pinned
from keeplast.clock import Clock
from keeplast.errors import Despite, InvalidError, RefusedError
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.directory_place import DirectoryPlace
from keeplast.run.events import ProgressOnly
from keeplast.run.round import Rounds, RunnerFor
from keeplast.run.round_state import PartitionRun
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.tombstone_horizons import HorizonBook
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundRecipe
from keeplast.tier.state.partition_state import PartitionState

SettingsOf = Callable[[Mapping[str, str]], TopicConfig]
TIERED = "remote.storage.enable"
POLICY = "cleanup.policy"


class Migration(Struct, frozen=True):
    """What follows from new settings.

    ``hazards`` are what is to be known of them, a sentence each.
    ``becomes_compacted`` says that rounds begin; then ``records`` and ``bytes`` are what is in
    object storage, and of them ``keyless_records`` (``keyless_bytes``) have no key and would go.
    """

    settings: Mapping[str, str]
    before: TopicConfig
    after: TopicConfig
    records: int = 0
    bytes: int = 0
    keyless_records: int = 0
    keyless_bytes: int = 0
    hazards: tuple[str, ...] = ()

    @property
    def becomes_compacted(self) -> bool:
        """Say whether rounds begin that did not happen before."""
        return self.after.is_compacted and not self.before.is_compacted

    def check(self, *, drops_keyless: bool) -> None:
        """RefusedError when records without a key would go and that was not confirmed."""
        if self.keyless_records and not drops_keyless:
            raise RefusedError(
                "records without a key belong to no key, and a compacted topic drops them; "
                f"{Despite.KEYLESS_RECORDS.remedy}. keyless_records={self.keyless_records} "
                f"keyless_bytes={self.keyless_bytes} records={self.records}",
                code="K238",
            )


def check_same_settings(
    partition: TopicPartition,
    kept: Mapping[str, str],
    given: Mapping[str, str],
    topic_of: SettingsOf,
) -> None:
    """RefusedError when ``given`` says something else than the settings that are kept.

    What is not given stays, and so does what means the same.
    """
    if topic_of({**kept, **given}) == topic_of(kept):
        return
    others = ", ".join(
        f"{name}={given[name]} (kept: {kept.get(name, 'none')})"
        for name in sorted(given)
        if kept.get(name) != given[name]
    )
    raise RefusedError(
        "the partition is kept with other settings, which an import does not change. Give the "
        "kept ones (--config KEY=VALUE), leave --new out, or change them with keeplast "
        f"configure. partition={partition} {others}",
        code="K130",
    )


def new_settings(
    settings: Mapping[str, str], changes: Mapping[str, str | None]
) -> Mapping[str, str]:
    """Return ``settings`` with ``changes``; None takes a key out.

    RefusedError for a change that would take the log out of object storage: export it instead.
    InvalidError for one that takes out the policy.
    """
    if str(changes.get(TIERED, "true")).lower() == "false":
        raise RefusedError(
            "what is in this store is tiered; export the partition to have it on a disk. "
            f"{TIERED}=false",
            code="K345",
        )
    if POLICY in changes and changes[POLICY] is None:
        raise InvalidError(
            "without a policy a log would expire by default; say compact, delete or both. "
            f"{POLICY}",
            code="K130",
        )
    for key, value in changes.items():
        if value is None and key not in settings:
            raise InvalidError(
                "this setting is not kept with the partition, and cannot be taken out. "
                f"key={key} kept={', '.join(sorted(settings)) or 'none'}",
                code="K130",
            )
    merged: dict[str, str | None] = {**settings, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def plan_migration(
    state: PartitionState, changes: Mapping[str, str | None], topic_of: SettingsOf
) -> Migration:
    """Return what other settings of a partition mean, by the settings alone; None takes one out.

    Errors as of :func:`new_settings`, and InvalidError for settings that contradict.
    """
    settings = new_settings(state.settings, changes)
    topic = state.partition.topic
    after = topic_of(settings)
    check_internal(topic, after)
    return Migration(
        settings, pinned(topic, topic_of(state.settings)), after,
        hazards=hazards_of([(topic, after)]),
    )  # fmt: skip


def count_records(
    objects: ObjectStore,
    state: PartitionState,
    migration: Migration,
    runner_for: RunnerFor,
    clock: Clock,
    *,
    memory_bytes: int,
    progressed: Callable[[int], None],
) -> Migration:
    """Return ``migration`` with what the first round would read and drop; writes nothing."""
    if not state.routes:
        return migration
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    recipe = RoundRecipe(objects, state.partition, state.topic_id, segments)
    files = recipe.open()
    topic = replace(migration.after, min_compaction_lag_ms=0)
    partition = PartitionRequest(state.partition, files.path, topic)
    request = CleanRequest(
        (partition,), first_dirty_offset=state.log_start, log_start_offset=state.log_start,
        high_watermark=files.end, memory_bytes=memory_bytes, force=True,
    )  # fmt: skip
    events, run = ProgressOnly(progressed), PartitionRun(partition)
    place = DirectoryPlace(
        request, files, recipe, clock, events, HorizonBook(files), writer="", writes=False
    )
    Rounds(request, place, runner_for, clock, events, lambda: None).clean([run])
    (report,) = run.rounds
    if report.failure is not None:
        raise report.failure
    if report.stats is None or report.reasons is None:
        return migration
    return replace(
        migration, records=report.stats.messages_read, bytes=report.stats.bytes_read,
        keyless_records=report.reasons.keyless_records,
        keyless_bytes=report.reasons.keyless_bytes,
    )  # fmt: skip
