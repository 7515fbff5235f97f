"""``verify`` where versions rank: it sorts by rank, and takes the strategy from the receipts."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.survey.receipt_book import read_receipts
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.damaged_log import DamagedLog
from tests.support.log_builder import text
from tests.support.scenario_log import PARTITION, ScenarioLog
from tests.support.versioned_log import BY_HEADER, BY_TIMESTAMP, deletion, versioned, write

A, B = b"a", b"b"
ROOMY = {"segment_bytes": 1 << 20, "segment_index_bytes": 1 << 16}
TOPIC = replace(BY_HEADER, **ROOMY)
BY_OFFSET = replace(TOPIC, strategy=Strategy.OFFSET, strategy_header=None)


def verified(
    before: Path, after: Path, topic: TopicConfig = TOPIC, receipt: Path | None = None
) -> VerificationReport:
    settings = VerifySettings(topic=topic, now_ms=1 << 50)
    receipts = () if receipt is None else read_receipts(receipt, LocalFiles())
    return Verifier(LocalFiles(), settings).verify_pair(before, after, receipts)


def broken(report: VerificationReport) -> dict[str, int | None]:
    """Return the broken checks and the offset of each one's first finding."""
    return {check.name: check.findings[0].offset for check in report.checks if check.count}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return a log before and after a round in which clean records won against dirty ones."""
    log = ScenarioLog(tmp_path / "data", TOPIC)
    write(log, versioned(A, 9), versioned(B, 1), versioned(b"c", 1), deletion(b"d", 5))
    log.clean()
    write(log, versioned(A, 5), versioned(B, 2), deletion(b"c", 0), versioned(b"d", 4))
    write(log, versioned(b"z", 1))
    log.close()
    before = tmp_path / "before" / str(PARTITION)
    shutil.copytree(log.directory, before)
    request = CleanRequest(
        (PartitionRequest(PARTITION, log.directory, TOPIC),), now_ms=log.now_ms,
        is_unsafe=True, force=True, receipt=tmp_path / "receipt",
    )  # fmt: skip
    assert log.run(request).failure is None
    assert [0, 2, 3, 5, 8] == [record.offset for record in log.records()]
    return before, log.directory


def test_a_round_holds_by_the_strategy_that_it_followed(pair: tuple[Path, Path]) -> None:
    assert {} == broken(verified(*pair))


def test_by_another_strategy_its_winners_are_not_there(pair: tuple[Path, Path]) -> None:
    assert "winners" in broken(verified(*pair, topic=BY_OFFSET))


def test_a_receipt_names_the_strategy(pair: tuple[Path, Path], tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    assert {} == broken(verified(*pair, topic=BY_OFFSET, receipt=receipt))


@pytest.mark.parametrize(
    ("offset", "problem"),
    [(0, "the final record is missing"), (5, "the final record is missing")],
)
def test_a_lost_winner_is_found_wherever_it_lay(
    pair: tuple[Path, Path], offset: int, problem: str
) -> None:
    damaged = DamagedLog(pair[1])
    damaged.drop(offset)
    damaged.save()
    report = verified(*pair)
    assert offset == broken(report)["winners"]
    assert problem in report.check("winners").findings[0].problem


def test_a_key_that_came_back_after_its_tombstone_is_found(pair: tuple[Path, Path]) -> None:
    """The record with the lower version has the greater offset."""
    before, after = pair
    shutil.rmtree(after)
    shutil.copytree(before, after)
    damaged = DamagedLog(after)
    damaged.drop(3)
    damaged.save()
    report = verified(before, after)
    assert 7 == broken(report)["winners"]
    assert "a deleted key is back" in report.check("winners").findings[0].problem


def test_replicas_are_held_against_each_other_by_rank(pair: tuple[Path, Path]) -> None:
    settings = VerifySettings(topic=TOPIC)
    report = Verifier(LocalFiles(), settings).verify_replicas(*pair)
    assert {} == broken(report)
    settings = VerifySettings(topic=BY_OFFSET)
    assert "winners" in broken(Verifier(LocalFiles(), settings).verify_replicas(*pair))


@pytest.mark.parametrize("topic", [TOPIC, replace(BY_TIMESTAMP, **ROOMY)])
@pytest.mark.parametrize("seed", range(6))
def test_rounds_of_random_logs_hold(tmp_path: Path, topic: TopicConfig, seed: int) -> None:
    dice = random.Random(seed)
    log = ScenarioLog(tmp_path / "data", topic)
    for _ in range(3):
        for _ in range(12):
            log.append(
                *(
                    versioned(
                        text(dice.randrange(9)),
                        dice.choice([None, dice.randrange(-3, 4)]),
                        dice.choice([b"v", b"v", None]),
                        timestamp_ms=dice.randrange(-1, 9),
                    )
                    for _ in range(dice.randrange(1, 4))
                ),
                codec=dice.choice([Codec.NONE, Codec.LZ4]),
            )
        log.roll()
        before = tmp_path / f"before-{log.log_end}" / str(PARTITION)
        shutil.copytree(log.directory, before)
        log.clean(capacity=dice.choice([None, 4, 8]))
        assert {} == broken(verified(before, log.directory, topic))
        log.now_ms += dice.choice([0, topic.delete_retention_ms + 1])
    log.close()


def test_a_judgement_names_the_ranking_and_its_source(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    default = "Kafka's default: no source says another"
    unset = replace(BY_OFFSET, strategy_said=(Strategy.OFFSET, default))
    broken_one = verified(*pair, topic=unset)
    (said,) = [note for note in broken_one.notes if "rank by" in note]
    assert said.startswith(
        "the records of a key rank by offset, Kafka's default: no source says another; where they "
        "were cleaned by another strategy, say it with --config compaction.strategy="
    )
    by_receipt = verified(*pair, topic=unset, receipt=tmp_path / "receipt")
    ranked = f"the records of a key rank by header {TOPIC.strategy_header}"
    assert f"{ranked}, as the receipt says" in by_receipt.notes
    assert f"{ranked}, as given" in verified(*pair).notes
    replicas = Verifier(LocalFiles(), VerifySettings(topic=TOPIC)).verify_replicas(*pair)
    assert f"{ranked}, as given" in replicas.notes


def test_a_pair_the_other_way_round_is_said_to_look_like_it(pair: tuple[Path, Path]) -> None:
    before, after = pair
    swapped = verified(after, before)
    assert "records" in broken(swapped)
    assert "given the other way round; BEFORE comes first" in swapped.notes[0]
    assert not any("other way round" in note for note in verified(*pair).notes)


def test_a_log_that_lost_records_and_has_others_is_not_said_to_be_the_other_way_round(
    pair: tuple[Path, Path],
) -> None:
    before, after = pair
    damaged = DamagedLog(before)
    damaged.drop(0)
    damaged.save()
    report = verified(before, after)
    assert "records" in broken(report)
    assert not any("other way round" in note for note in report.notes)


def test_what_was_appended_since_is_not_taken_for_another_order(pair: tuple[Path, Path]) -> None:
    before, _ = pair
    longer = before.parent / "longer"
    shutil.copytree(before, longer)
    max(longer.glob("*.log")).write_bytes(encode_batch([Record(9, 1, B, b"late")]))
    report = verified(before, longer)
    assert "records" in broken(report)
    assert not any("other way round" in note for note in report.notes)
