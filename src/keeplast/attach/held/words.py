"""The words of outputs that are not announced: own objects that say what a round has begun.

A process that takes a partition over cannot stop an overtaken process from writing, only from
announcing. The rule: **a word outlives its objects by longer than any process writes on**. A swept
output keeps its word, marked, so that its writer finds that it was overtaken. The next sweep finds
what the writer writes after that. Words go earlier only where no sweep will follow: after a detach,
and of a topic that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.outputs import SWEPT, work_folder, work_name
from keeplast.attach.held.publication import Publisher
from keeplast.cluster.layouts.layout import FoundOwn, FoundSegment, RemoteLayout
from keeplast.format.remote_log_metadata import RemoteLogSegmentId
from keeplast.tier.state.attached import Attached

KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""So long a word stays about which nothing is there: a process may be frozen over a weekend."""
CHECKED_EVERY = 100
"""So many objects are removed before the owner object is looked at again."""


class Words(Struct, frozen=True):
    """Own objects whose output has nothing there: of a process that ended before.

    ``due`` may go, ``waiting`` are so young that their writer may still write.
    """

    due: tuple[FoundOwn, ...] = ()
    waiting: tuple[FoundOwn, ...] = ()


NO_WORDS = Words()


def words_of_nothing(
    known: Attached, begun: Iterable[FoundOwn], there: Collection[bytes], latest_ms: int
) -> Words:
    """Return those of ``begun`` whose output is not there; ``there`` was listed later.

    Those that were written up to ``latest_ms``, inclusive, are due.
    """
    names = {work_name(RemoteLogSegmentId(known.name.partition, each)) for each in there}
    left = [each for each in begun if each.name not in names]
    return Words(
        tuple(each for each in left if each.modified_ms <= latest_ms),
        tuple(each for each in left if each.modified_ms > latest_ms),
    )


def remove_words(layout: RemoteLayout, words: Words, check: Callable[[], None]) -> None:
    """Remove the words that are due; ``check`` raises where another process has the partition."""
    for number, each in enumerate(words.due):
        if number % CHECKED_EVERY == 0:
            check()
        layout.delete_own(each.name)


def words_of_live(publisher: Publisher, *, removes: bool) -> Words:
    """Return the words, of a partition that is there, whose outputs are not (any more).

    With ``removes`` those that are due are removed, as by every round: :data:`KEPT_MS` after they
    were written or marked.
    """
    # In this order: what is written meanwhile is not taken for what was never written.
    begun = list(publisher.layout.list_own(work_folder(publisher.name.partition)))
    there = list(publisher.layout.list(publisher.name.partition))
    found = _words_of(publisher, begun, there, publisher.look())
    if removes:
        _remove_due(publisher, found)
    return found


def sweep_outputs(publisher: Publisher) -> MetadataView:
    """Look at the cluster; remove what an earlier round wrote and never announced.

    Such an output has a word, and the cluster knows no such id. The outputs are listed before the
    cluster is looked at: a broker announces an upload before it is there. A fenced round can no
    longer announce what it still writes, and the word that stays names it.
    """
    layout, partition = publisher.layout, publisher.name.partition
    begun = list(layout.list_own(work_folder(partition)))
    begun_names = {each.name for each in begun}
    there = list(layout.list(partition))
    own = {each.segment_id for each in publisher.log.own_segments(publisher.held)}
    view = publisher.look()
    publisher.mend(view)
    for found in there:
        name = RemoteLogSegmentId(partition, found.segment_id)
        if found.segment_id in own or view.cache.find(name) is not None:
            continue
        # An output without a word, another cluster's perhaps, costs no request.
        word = layout.read_own(work_name(name)) if work_name(name) in begun_names else None
        if word is None:
            continue
        publisher.owner.check(publisher.epoch)
        # First: its writer completes nothing from here on. Where the word has just changed, its
        # writer is at work; the next sweep finds it. A marked word is marked again: its writer has
        # written on, and may for as long again.
        if layout.replace_own(work_name(name), SWEPT, word):
            layout.delete_found(partition, found)
    _remove_due(publisher, _words_of(publisher, begun, there, view))
    return view


def clear_outputs(publisher: Publisher) -> None:
    """Remove, before a partition is detached, what was begun and never announced, word and all.

    No sweep follows. An overtaken process that still writes finds the word gone and takes back what
    it wrote.
    """
    sweep_outputs(publisher)
    found = words_of_live(publisher, removes=False)
    _remove_due(publisher, Words(due=(*found.due, *found.waiting)))


def _words_of(
    publisher: Publisher, begun: Iterable[FoundOwn], there: Iterable[FoundSegment],
    view: MetadataView,
) -> Words:  # fmt: skip
    ids = {each.segment_id for each in there} | {e.id.segment_id for e in view.cache.segments}
    return words_of_nothing(publisher.held, begun, ids, publisher.log.clock.now_ms() - KEPT_MS)


def _remove_due(publisher: Publisher, words: Words) -> None:
    def check() -> None:
        publisher.log.check(publisher.held)
        publisher.owner.check(publisher.epoch)

    remove_words(publisher.layout, words, check)
