"""What ``kafka-log`` says to somebody who has made a mistake."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast
from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import InvalidError
from keeplast.pipeline.data_source import SCHEMA


def source(**options: str) -> KafkaLogSource:
    return KafkaLogSource(options)


@pytest.mark.parametrize(
    "ask",
    [
        lambda path: source().schema(),
        lambda path: source(path=path, starting="x").reader(SCHEMA),
        lambda path: source(path=f"{path}/nowhere").reader(SCHEMA).partitions(),
        lambda path: source(path=path, subscribe="orders").reader(SCHEMA).partitions(),
    ],
)
def test_a_mistake_is_a_sentence_after_one_frame_of_ours(
    tmp_path: Path, ask: Callable[[str], object]
) -> None:
    with pytest.raises(InvalidError) as caught:
        ask(str(tmp_path))
    frames = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]
    home = Path(keeplast.__file__).parent
    assert 1 == sum(home in Path(name).parents for name in frames)
