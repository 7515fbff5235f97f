"""Every case that Kafka's cleaner has judged, with the work cut into stages.

A bounded map that is reached makes a round one task, so cases with a small one stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.cleaner.shapes import Shape, ShapeChoice
from keeplast.run.local_runner import LocalRunner
from tests.support.archive import names
from tests.support.cases import load_case
from tests.support.cleanings import Reshaped, in_process
from tests.support.expected import expected_of_ours
from tests.support.replay import replay

HERE = Path(__file__).parent
NAMES = names(HERE / "fixtures.tar.xz")
SHAPES = {
    "broadcast": ShapeChoice(Shape.BROADCAST),
    "3 buckets": ShapeChoice(Shape.BUCKET, 3),
    "130 buckets": ShapeChoice(Shape.BUCKET, 130),
}


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(cores=2) as started:
        yield started


def differences(name: str, shape: str, fixtures: Path, runner: LocalRunner, at: Path) -> list[str]:
    cleaning = in_process(Reshaped(runner, SHAPES[shape]), is_bounded=False)
    return replay(load_case(fixtures / name), at, cleaning, expected=expected_of_ours(name))


@pytest.mark.parametrize(("name", "shape"), list(zip(NAMES, itertools.cycle(SHAPES), strict=False)))
def test_stages_leave_what_kafka_leaves(
    name: str, shape: str, fixtures: Path, runner: LocalRunner, tmp_path: Path
) -> None:
    assert [] == differences(name, shape, fixtures, runner, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_shape_leaves_what_kafka_leaves(
    name: str, shape: str, fixtures: Path, runner: LocalRunner, tmp_path: Path
) -> None:
    assert [] == differences(name, shape, fixtures, runner, tmp_path)
