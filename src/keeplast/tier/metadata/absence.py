"""What it means that an object is not there, for whoever read a state and then went to read it.

What is live never goes, and what was replaced goes after its grace. So whoever finds nothing has
worked on an old state: a newer leader owns the partition, or the segment was replaced and its grace
is over. Only when the metadata store still names the segment has the object store lost something
(I-14). Readers load the state again and go on; rounds end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keeplast.errors import ConflictError, CorruptError, FencedError
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import segment_of_key


@contextmanager
def explained(
    store: MetadataStore, partition: TopicPartition, *, epoch: int | None = None
) -> Iterator[None]:
    """Turn FileNotFoundError for an object into what it means.

    FencedError when ``epoch``, that of an owner, is not the newest any more; ConflictError when the
    segment is not live any more; CorruptError when it is. Other files are none of its business.
    """
    try:
        yield
    except FileNotFoundError as error:
        segment_id = segment_of_key(str(error.filename))
        if segment_id is None:
            raise
        state = store.load(partition)
        if epoch is not None and state.leader_epoch != epoch:
            raise FencedError(
                "a newer leader owns the partition and has removed what was read here; stop. "
                f"partition={partition} epoch={epoch} current={state.leader_epoch}"
            ) from error
        if segment_id in state.segments:
            raise CorruptError(
                "an object of a live segment is gone from the object store",
                path=str(error.filename),
            ) from error
        raise ConflictError(
            "a segment was replaced and removed while it was read; do it again, and choose a "
            f"longer grace if it happens often. partition={partition} segment={segment_id}"
        ) from error
