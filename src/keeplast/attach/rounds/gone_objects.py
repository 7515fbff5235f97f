"""Why an object of a remote tier that is read is not there, said by who may know: the cluster.

The rule: **damage is what brokers still serve and the remote tier has not**. A process that slept
in its round may wake when another one has replaced and collected what it reads, and a broker may
expire or delete it at any time; nothing is wrong then, and a new round finds what took its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.publication import Publisher
from keeplast.errors import ConflictError, CorruptError
from keeplast.format.identifier import encode_id


@contextmanager
def telling_why_gone(publisher: Publisher, view: MetadataView) -> Iterator[None]:
    """Read segments of ``view``, by who holds the partition; an object that is gone is explained.

    FencedError when another process has taken the partition over, ConflictError when brokers serve
    a segment of ``view`` no more: a round that is done again finds what they do. CorruptError for
    an object that is missing and should be there. Any other error of the look is raised as it is.
    """
    before = view.cache.served_segments()
    try:
        yield
    except (FileNotFoundError, CorruptError) as error:
        publisher.log.check(publisher.held)
        now = publisher.look().cache.served_segments()
        # What this very round has replaced tells nothing of anybody else.
        mine = {
            source.id
            for decision in publisher.log.decisions(publisher.held)
            if decision.epoch == publisher.epoch
            for source in decision.sources
        }
        gone = [each for name, each in before.items() if name not in now and name not in mine]
        if gone:
            raise ConflictError(
                "a segment was replaced, or expired, while a round read it; the next round reads "
                "what is served now. "
                f"partition={publisher.name} segment={encode_id(gone[0].id.segment_id)} "
                f"count={len(gone)}"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise CorruptError(
                "an object of the remote tier is missing, and brokers serve all that was found: "
                "was it removed by hand, or by a rule of the bucket, or does --storage name "
                "another place than the brokers' plugin? Put it back from a copy, or correct "
                "--storage",
                path=str(error.filename or error),
            ) from error  # fmt: skip
        raise
