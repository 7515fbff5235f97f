"""What a console is shown of a live cluster: its tiered topics, looked at again and again.

Read are the metadata topic, as brokers do, and the decision log where one is named; no object, no
group, no claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.cli.attach.options import ClusterOptions, DecisionOptions
from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError
from keeplast.log.files import LocalFiles
from keeplast.model.redaction import shown_url
from keeplast.service.console.view import AttachedLook, Looked, Watcher
from keeplast.service.receipt_shelf import ReceiptShelf

if TYPE_CHECKING:
    from keeplast.tier.metadata.decisions import DecisionLog


def attached_watcher(
    cluster: ClusterOptions,
    store: str | None,
    clock: Clock,
    *,
    partitions: tuple[int, ...] = (),
    receipt: Path | None = None,
    endures: bool = False,
) -> Watcher:
    """Return what looks at the chosen topics of a cluster; each look opens the decision log.

    ``partitions`` are the numbers that are shown, all without any. ``store`` None: nothing is known
    of who compacts. ``receipt`` is the file that a loop appends its receipts to, and what looks
    beside it ``endures``. InvalidError for a decision log that is not there.
    """
    from keeplast.cluster.facts import METADATA_TOPIC
    from keeplast.cluster.metadata_log import fold_metadata, partitions_of
    from keeplast.cluster.status import name_of
    from keeplast.service.attached_status import attached_status

    _require_there(store)
    client, files = cluster.connect(), LocalFiles()

    def look() -> Looked:
        facts = client.read_facts(cluster.topics)
        if facts.metadata_topic is None:
            raise RefusedError(
                f"nothing was ever copied to a remote tier here: there is no {METADATA_TOPIC}. "
                f"bootstrap_server={cluster.bootstrap_server}"
            )
        # Ends last: what was announced by then lies below the log's end.
        chosen = partitions_of(facts.topics, facts.metadata_topic)
        folded = fold_metadata(client, facts.metadata_topic, chosen)
        folded.require_sound()
        caches = folded.cache.partitions
        with _opened(store) as log:
            known = () if log is None else log.partitions(facts.cluster_id)
            attached = {each.name.partition: each for each in known}
            found = []
            for topic in facts.topics:
                for number, held in enumerate(client.read_ranges(topic)):
                    if partitions and number not in partitions:
                        continue
                    name = name_of(topic, number)
                    own = attached.get(name)
                    decisions = () if log is None or own is None else log.decisions(own)
                    found.append(
                        attached_status(topic, number, held, caches.get(name), own, decisions)
                    )
        ends = {each: held.end for each, held in sorted(folded.ranges.items())}
        return Looked(
            attached=AttachedLook(facts.cluster_id, ends, tuple(found)), now_ms=clock.now_ms()
        )

    place = f"{cluster.bootstrap_server}"
    if store is not None:
        place += f", decided in {shown_url(store)}"
    return Watcher(place, look, clock, files, ReceiptShelf(files, receipt), endures=endures)


def _require_there(store: str | None) -> None:
    if store is None:
        return
    from keeplast.cli.frame.packages import check_packages

    check_packages()
    from keeplast.tier.metadata.database import is_missing

    if is_missing(store):
        raise InvalidError(
            "there is no such decision log; correct --store, or leave it out to see what brokers "
            f"serve alone. store={shown_url(store)}"
        )


@contextlib.contextmanager
def _opened(store: str | None) -> Iterator[DecisionLog | None]:
    if store is None:
        yield None
        return
    with DecisionOptions(store=store).open_log() as log:
        yield log
