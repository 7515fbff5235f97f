"""Every case that Kafka's cleaner has judged, with the work cut into stages.

A bounded map that is reached makes a round one task, so cases with a small one stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.model.topic_config import Shape
from keeplast.rewrite import shared_group
from keeplast.run.local_runner import LocalRunner
from tests.support.archive import names
from tests.support.cases import load_case
from tests.support.cleanings import Reshaped, in_process
from tests.support.expected import expected_of_ours
from tests.support.joint_runner import JointRunner
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
    """Return threads that cut segments as small as those of the cases."""
    with LocalRunner(cores=2) as started, pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_group, "PART_BYTES", 150)
        yield started


# Not a multiple of three, so that every share has cases of every shape.
@pytest.mark.rotates(10)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_shape_leaves_what_kafka_leaves(
    name: str, shape: str, fixtures: Path, runner: LocalRunner, tmp_path: Path
) -> None:
    cleaning = in_process(Reshaped(runner, SHAPES[shape]), is_bounded=False)
    case = load_case(fixtures / name)
    assert [] == replay(case, tmp_path, cleaning, expected=expected_of_ours(name))


@pytest.mark.rotates(10)
@pytest.mark.parametrize("name", NAMES)
def test_tasks_that_meet_leave_what_kafka_leaves(
    name: str, fixtures: Path, runner: LocalRunner, tmp_path: Path
) -> None:
    meeting = Reshaped(JointRunner(runner), SHAPES["3 buckets"])
    case = load_case(fixtures / name)
    cleaning = in_process(meeting, is_bounded=False)
    assert [] == replay(case, tmp_path, cleaning, expected=expected_of_ours(name))
