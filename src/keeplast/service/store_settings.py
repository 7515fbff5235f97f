"""What ``tier run`` is asked for, as values; who wires the loop makes them from options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.model.partition import TopicPartition
from keeplast.model.shape import Shape
from keeplast.model.topic_config import CleanerConfig
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, GRACE_MS_DEFAULT
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What stays the same from start to end.

    ``name`` is the store's for people, without a password. ``cleaner`` reads settings anew.
    ``slots`` is how many rounds are done at once. ``data_dir`` is what partitions gain from, None
    for nothing, ``retention`` its broker's ``delete.retention.ms`` by topic, read anew.
    ``takes_over`` fences other owners at the first look; ``retries`` forgets then what is set
    aside. ``receipt`` is a file that takes a line of every round. ``untold`` says what brokers that
    are asked do not tell.
    """

    name: str
    owner: str
    is_about: Callable[[TopicPartition], bool]
    cleaner: Callable[[], CleanerConfig]
    slots: int = 1
    data_dir: Path | None = None
    retention: Callable[[], Callable[[str], int]] | None = None
    takes_over: bool = False
    retries: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    shape: Shape | None = None
    grace_ms: int = GRACE_MS_DEFAULT
    garbage_age_ms: int = GARBAGE_AGE_MS_DEFAULT
    receipt: Path | None = None
    untold: Callable[[], Sequence[str]] = tuple
