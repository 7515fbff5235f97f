"""The cleaner-offset vector: how far the remote log is clean, whoever says so and in which order.

A leader publishes, for every leader epoch, how far the log was clean when that epoch ended, and for
its own epoch how far it is clean now. What an older leader publishes late counts only up to what
its successors found. All of it is a function of the *set* of publications, never of the order in
which they arrive, and of an epoch that has a successor one more of them can lower the end only.

KIP-1272, "Persisting cleaner-offset-checkpoint to remote storage and fencing off zombie broker",
with the gaps closed that tiering.md section 9.2 names: a successor publishes a claim when it takes
over; of two that cover a range the later publisher's counts; entries are cut to the lineage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keeplast.errors import InvalidError
from keeplast.format.leader_epoch import LeaderEpoch

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Publication:
    """What the leader of ``epoch`` said: the first dirty offset of every epoch up to its own.

    ``number`` orders the publications of one leader; its claim, published before anything is
    cleaned, is number 0.
    """

    epoch: int
    number: int
    offsets: Mapping[int, int]

    def __post_init__(self) -> None:
        """InvalidError when its own epoch is missing or a later one is named."""
        if self.epoch not in self.offsets or max(self.offsets) > self.epoch:
            raise InvalidError(
                "a publication names its own leader epoch and older ones. "
                f"epoch={self.epoch} offsets={dict(self.offsets)}"
            )

    @property
    def cleaned_to(self) -> int:
        """Return the first dirty offset that the leader claims for its own epoch, exclusive."""
        return self.offsets[self.epoch]


def cap(publications: Iterable[Publication], epoch: int) -> int | None:
    """Return up to which offset the leader of ``epoch`` can be believed, None without a limit.

    The least that any later leader found. One that knew nothing of ``epoch`` took over from an
    older one, so nothing of it is believed: -1.
    """
    found = [other.offsets.get(epoch, -1) for other in publications if other.epoch > epoch]
    return min(found, default=None)


def find_vector(
    publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int
) -> dict[int, int]:
    """Return the first dirty offset of every epoch that anybody published, cut to the lineage.

    ``lineage`` ascends by epoch; ``log_end`` is exclusive. Empty when nobody published.
    """
    epochs = sorted({epoch for publication in publications for epoch in publication.offsets})
    vector: dict[int, int] = {}
    for epoch in epochs:
        offset = cap(publications, epoch)
        if offset is None:
            offset = max(p.cleaned_to for p in publications if p.epoch == epoch)
        if offset >= 0:
            vector[epoch] = min(offset, end_of_epoch(epoch, lineage, log_end))
    return vector


def checkpoint(
    publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int
) -> int | None:
    """Return the first dirty offset of the remote log, None when nobody has published."""
    vector = find_vector(publications, lineage, log_end)
    return vector[max(vector)] if vector else None


def take_over(
    publications: Sequence[Publication],
    lineage: Sequence[LeaderEpoch],
    log_end: int,
    *,
    epoch: int,
    log_start: int,
) -> Publication:
    """Return the claim of a new leader: what is valid now, frozen, and its own start.

    InvalidError when a leader of this epoch or a later one has published already.
    """
    newest = max((p.epoch for p in publications), default=UNKNOWN_EPOCH)
    if epoch <= newest:
        raise InvalidError(
            f"a leader of this epoch or a later one has taken over. epoch={epoch} newest={newest}"
        )
    vector = find_vector(publications, lineage, log_end)
    inherited = vector[max(vector)] if vector else log_start
    return Publication(epoch, 0, {**vector, epoch: max(inherited, log_start)})


def advance(publications: Sequence[Publication], *, epoch: int, cleaned_to: int) -> Publication:
    """Return the next publication of the leader of ``epoch``; the older entries stay frozen.

    InvalidError when it has not claimed the log, or would move back (I-18).
    """
    last = newest_of(publications, epoch)
    if last is None:
        raise InvalidError(f"the leader has not taken the log over. epoch={epoch}")
    if cleaned_to < last.cleaned_to:
        raise InvalidError(
            "the first dirty offset of a leader only grows. "
            f"epoch={epoch} from={last.cleaned_to} to={cleaned_to}"
        )
    return Publication(epoch, last.number + 1, {**last.offsets, epoch: cleaned_to})


def renewed(publications: Sequence[Publication], *, epoch: int, cleaned_to: int) -> Publication:
    """Return the one publication that counts when the leader of ``epoch`` has replaced the log.

    Its number was never given before: who cleaned the log that was there is told by it.
    """
    number = max((p.number for p in publications if p.epoch == epoch), default=0) + 1
    return Publication(epoch, number, {epoch: cleaned_to})


def newest_of(publications: Sequence[Publication], epoch: int) -> Publication | None:
    """Return the newest publication of the leader of ``epoch``, None before its claim."""
    own = [p for p in publications if p.epoch == epoch]
    return max(own, key=lambda p: p.number, default=None)


def end_of_epoch(epoch: int, lineage: Sequence[LeaderEpoch], log_end: int) -> int:
    """Return the offset, exclusive, up to which a leader's records are in the log.

    An epoch that is not in the lineage, because all of its records were truncated, ends where the
    next one that is there begins.
    """
    return min((entry.start_offset for entry in lineage if entry.epoch > epoch), default=log_end)
