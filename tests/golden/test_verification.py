"""``verify`` on what Kafka's own cleaner left: it must find nothing wrong with it.

Where a check cannot be judged it must say why; it must not say that Kafka's cleaner broke the law.
The rounds of cases with several are run by the engine, which leaves the same bytes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.document import Verdict
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.local_runner import LocalRunner
from tests.support.archive import read_all
from tests.support.cases import Json, RoundSettings, lay_out, load_case, rounds, topic_config
from tests.support.cleanings import in_process
from tests.support.expected import expected_of_ours

ARCHIVE = Path(__file__).parent / "fixtures.tar.xz"
ROUNDS: dict[str, list[Json]] = {
    name: json.loads(text)["expect"]["rounds"]
    for name, text in sorted(read_all(ARCHIVE, "case.json").items())
}
SINGLE = [name for name, taken in ROUNDS.items() if len(taken) == 1 and "error" not in taken[0]]
SEVERAL = [name for name, taken in ROUNDS.items() if len(expected_of_ours(name) or taken) > 1]


def verified(
    before: Path, after: Path, settings: RoundSettings, bound: int | None, temporary: Path
) -> VerificationReport:
    verifier = Verifier(
        LocalFiles(),
        VerifySettings(
            topic=topic_config(settings.config),
            cleaner=CleanerConfig(producer_id_expiration_ms=settings.producer_id_expiration_ms),
            now_ms=settings.now_ms,
            bound=bound,
            temporary=temporary,
        ),
    )
    return verifier.verify_pair(before, after)


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", SINGLE)
def test_what_kafka_left_is_not_broken(name: str, fixtures: Path, tmp_path: Path) -> None:
    case = load_case(fixtures / name)
    ((settings, result),) = rounds(case, case.expected)
    before = lay_out(case, tmp_path)
    report = verified(before, case.after, settings, result.get("bound"), tmp_path)
    broken = [check for check in report.checks if check.verdict is Verdict.BROKEN]
    # Kafka 3.9 drops the last batch of a round, which 4.3 keeps (F2 of cleaning-findings).
    expected = [] if case.is_after_expected else ["producers"]
    assert expected == [check.name for check in broken], broken
    unjudged = [check for check in report.checks if check.verdict is Verdict.UNJUDGED]
    assert all(check.reasons for check in unjudged)


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", SEVERAL)
def test_every_round_of_several_is_not_broken(name: str, fixtures: Path, tmp_path: Path) -> None:
    case = load_case(fixtures / name)
    taken = list(rounds(case, expected_of_ours(name) or case.expected))
    partition = lay_out(case, tmp_path / "data")
    with LocalRunner(cores=1) as runner:
        clean = in_process(runner)
        for number, (settings, _) in enumerate(taken):
            before = tmp_path / str(number) / partition.name
            shutil.copytree(partition, before)
            result = clean(partition.parent, case.partition, settings)
            if result.get("error"):
                return
            report = verified(before, partition, settings, result.get("bound"), tmp_path)
            broken = [check for check in report.checks if check.verdict is Verdict.BROKEN]
            assert [] == broken, number
