"""What is known of one key in a store: the answer of ``keeplast explain``.

Live segments and replaced ones are read once, but for those in which the key is not by their
filters; nothing is held and nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from keeplast.inspect.explain import AskedKey
from keeplast.model.hold import GroupReader, ReportedGroups
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.explained import AskedLog, ExplainedPartition, KeyAnswer, found_parts
from keeplast.service.search_tasks import SearchRunner, ask_each
from keeplast.service.status_words import erased_sentence
from keeplast.service.store_choice import StoreDates, tier_pace
from keeplast.store.explain import explain_stored
from keeplast.store.look import RemoteLook, StoredReaders
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.objects.filters import KEY_FACT, FilterKey


def _reported(look: RemoteLook, brokers: GroupReader | None, now_ms: int) -> GroupReader | None:
    """Return what brokers say of the groups that a partition waits for; None without brokers."""
    if brokers is None:
        return None
    state = look.state
    wait = StoredReaders(state.topic_id, brokers).wait(state.partition, look.topic, now_ms)
    return ReportedGroups(() if wait is None else wait.groups)


def answer_from_store(
    opened: TieredStore,
    partitions: Iterable[TopicPartition],
    cleaner: CleanerConfig,
    now_ms: int,
    asked: AskedKey,
    *,
    receipts: Sequence[RoundReceipt] = (),
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> KeyAnswer:
    """Explain a key in each of ``partitions`` that is compacted and has segments.

    ``planned`` and ``progressed`` hear of the bytes that are read; what they raise ends the search.
    A partition that cannot be read is among the faults; where an offset was asked about, its error
    is raised. With ``runner`` its tasks read the segments, each those of one partition.
    """
    looks = [opened.look(each) for each in partitions]
    looks = [each for each in looks if each.topic.is_compacted and each.state.routes]
    asked.require_one(len(looks))
    pace = tier_pace(cleaner, [each.state.effective_bytes() for each in looks])
    stores = opened.parts()
    fact = stores.metadata.find_fact(KEY_FACT)
    filter_key = None if fact is None else FilterKey.of_fact(fact)
    if runner is not None:
        planned(sum(each.state.effective_bytes() for each in looks))
    logs = [
        AskedLog(
            each.state.partition,
            partial(
                explain_stored, each, stores.objects, asked, now_ms, filter_key=filter_key,
                brokers=_reported(each, opened.brokers, now_ms),
            ),
        )
        for each in looks
    ]  # fmt: skip
    parts = []
    faults: list[tuple[TopicPartition, Exception]] = []
    dates = StoreDates(opened, pace, has_expired_rounds=cleaner.has_expired_rounds)
    answers = ask_each(logs, AskedLog.ask, memory_bytes, planned, progressed, runner)
    for answer in found_parts(answers, asked, faults):
        found, partition = answer.found, answer.found.partition
        parts.append(
            ExplainedPartition(
                found, dates.last_trace(found, answer.remains),
                erased_sentence(dates.erased_by(partition), now_ms, in_store=True),
                [each for each in receipts if each.partition == partition], answer.remains,
                answer.unseen, answer.left_out,
            )
        )  # fmt: skip
    return KeyAnswer(asked.key, tuple(parts), faults=tuple(faults))
