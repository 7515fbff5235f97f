"""Every case planned without being cleaned: bounds as an exact plan has them, and estimates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keeplast.log.files import LocalFiles
from keeplast.model.document import encode
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.archive import names
from tests.support.cases import lay_out, load_case, rounds, topic_config
from tests.support.manual_clock import ManualClock

NAMES = names(Path(__file__).parent / "fixtures.tar.xz")
EXACT = (
    "first_dirty", "uncleanable", "bound", "log_start", "log_end", "clean_bytes",
    "cleanable_bytes", "ratio", "skipped", "reason",
)  # fmt: skip


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", NAMES)
def test_plan_has_exact_bounds_and_estimates_what_is_sound(
    name: str, fixtures: Path, tmp_path: Path
) -> None:
    case = load_case(fixtures / name)
    path = lay_out(case, tmp_path)
    settings, _ = next(rounds(case, case.expected))
    cleaner = CleanerConfig(
        settings.key_map_bytes, settings.load_factor, settings.producer_id_expiration_ms
    )
    request = CleanRequest(
        (PartitionRequest(case.partition, path, topic_config(settings.config), cleaner),),
        now_ms=settings.now_ms,
        is_unsafe=True,
        high_watermark=settings.high_watermark,
        first_dirty_offset=settings.first_dirty,
        uncleanable_offset=settings.uncleanable,
        force=settings.force,
    )
    with LocalRunner(cores=1) as runner:
        # A clock that runs would end a sample early on a busy machine, before it comes to damage.
        coordinator = Coordinator(runner, ManualClock(settings.now_ms), LocalFiles(), NoEvents())
        planned = coordinator.plan(request).partitions[0].rounds[-1]
        counted = coordinator.plan(request, exact=True).partitions[0].rounds[-1]
    document = encode(planned)
    json.dumps(document)
    exact = encode(counted)
    assert [exact[key] for key in EXACT] == [document[key] for key in EXACT]
    assert None is planned.stats
    # Damage in what was sampled fails both plans; otherwise there is an estimate of what the exact
    # plan counts.
    assert (planned.estimate is None) == (counted.stats is None)
    if planned.estimate is None:
        assert planned.skipped or planned.error is not None
