"""``verify`` of a store names a row that keeplast has not written, and looks at the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from keeplast.errors import CorruptError
from keeplast.model.document import Verdict
from keeplast.store.verification import CLAIMS, TierFinding, TierJudgement, judge_partition
from keeplast.tier.state.continuity import Visit, Visits
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION
from tests.support.tiered_log import Tiered

DIRECTORY = "d" * 64


class Store(Tiered):
    """Three closed segments; their rows can be changed by hand."""

    def __init__(self, root: Path) -> None:
        log = LogBuilder(root / "t-0", COMPACT)
        for number in range(6):
            log.record(number, number)
            if number % 2:
                log.roll()
        log.close()
        super().__init__(root, log.directory)
        visits = Visits((Visit(NOW_MS, 0, 5), Visit(NOW_MS + 1, 2, 5)), NOW_MS + 2)
        epoch = self.state.leader_epoch
        self.store.remember(PARTITION, epoch=epoch, directory=DIRECTORY, visits=visits)
        self._engine: Engine = create_engine(f"sqlite:///{root / 'meta.db'}")

    def change(self, statement: str, **values: object) -> None:
        with self._engine.begin() as connection:
            assert connection.execute(text(statement), values).rowcount, statement

    def findings(self) -> tuple[TierFinding, ...]:
        return self.judged().findings

    def judged(self) -> TierJudgement:
        def ignore(count: int) -> None:
            """Take no notice of progress."""

        return judge_partition(self.store, self.objects, PARTITION, ignore, ignore)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def first_id(store: Store) -> str:
    return store.state.routes[0].segment_id


def named(text_: str) -> Callable[[Store], str]:
    return lambda store: text_


FIRST = "WHERE base_offset = 0"
CASES = [
    ("segments", f"epochs = '[[1' {FIRST}", first_id, "epochs is not JSON"),
    ("segments", f"epochs = '{{}}' {FIRST}", first_id, None),
    ("segments", f"epochs = '[[1, \"x\"]]' {FIRST}", first_id, "epochs is not a whole number: 'x'"),
    ("segments", f"files = '[]' {FIRST}", first_id, "files is not a JSON object"),
    ("segments", f"files = '{{\".log\": 5}}' {FIRST}", first_id, "files[.log] is not a pair"),
    ("segments", f"size_bytes = 'many' {FIRST}", first_id, "size_bytes is not a whole number"),
    ("segments", f"kind = 'old' {FIRST}", first_id, "'old' is not a valid SegmentKind"),
    ("segments", f"last_offset = -1 {FIRST}", first_id, "covers at least one offset"),
    ("segments", f"cleaner_offsets = 'null' {FIRST}", first_id, "cleaner_offsets is not a JSON"),
    ("segments", f"state = 'replaced' {FIRST}", first_id, "it is read and its state is replaced"),
    ("segments", f"state = 'gone' {FIRST}", first_id, "no segment is in this state: 'gone'"),
    ("partitions", "settings = '{'", named("settings"), "settings is not JSON"),
    ("partitions", "settings = '{\"a\": 1}'", named("settings"), "settings[a] is not a text: 1"),
    ("partitions", "holder_process = '{}'", named("holder_process"), "no 'host'"),
    ("partitions", "log_start = 'x'", named("log_start"), "log_start is not a whole number: 'x'"),
    ("publications", "offsets = 'x'", named("epoch 7 number 0"), "offsets is not JSON"),
    ("publications", "offsets = '{\"3\": 0}'", named("epoch 7 number 0"), "names its own leader"),
    ("publications", "offsets = '{\"7\": -4}'", named("epoch 7 number 0"), "at least 0"),
    ("publications", "epoch = 9, offsets = '{\"9\": 0}'", named("epoch 9 number 0"), "is newer"),
    ("lineage", "start_offset = 'x'", named("epoch 0"), "start_offset is not a whole number"),
    ("lineage", "start_offset = -2", named("epoch 0"), "at least 0"),
    ("visits", "seen = '{\"visits\": 1}'", named(DIRECTORY), "not iterable"),
    ("visits", "seen = '{\"visits\": []}'", named(DIRECTORY), "no 'cleaned_to'"),
    ("visits", "seen = replace(seen, '[[', '[[9')", named(DIRECTORY), "do not ascend by time"),
    ("visits", "latest_ms = 3", named(DIRECTORY), "later than the newest time, 3"),
]  # fmt: skip


@pytest.mark.rotates(4)
@pytest.mark.parametrize(("table", "change", "key", "problem"), CASES)
def test_a_row_that_is_wrong_is_named_and_the_rest_is_verified(
    store: Store, table: str, change: str, key: Callable[[Store], str], problem: str | None
) -> None:
    assert () == store.findings()
    name = key(store)
    lost = store.state.routes[2]
    its = [each.key for each in store.objects.list(str(PARTITION)) if lost.segment_id in each.key]
    store.objects.delete([each for each in its if each.endswith(".log")])
    where = f" WHERE directory = '{DIRECTORY}'" if table == "visits" else ""
    store.change(f"UPDATE {table} SET {change}{where}")
    found = store.findings()
    if problem is None:  # A map without an entry is a list without one, and no epoch is too few.
        assert [name] == [each.segment_id for each in found if each.invariant == "I-23"]
        return
    (row,) = [each for each in found if (each.table, each.row_key) == (table, name)]
    assert problem in row.problem
    assert f"table={table} partition={PARTITION} key={name}" in row.problem
    if (table, name) != ("partitions", "log_start"):
        (gone,) = [each for each in found if "the object is gone" in each.problem]
        assert (lost.base_offset, lost.segment_id) == (gone.offset, gone.segment_id)
        assert gone.object_key is not None
        assert gone.object_key.endswith(".log")


def verdicts(store: Store) -> dict[Verdict, set[str]]:
    report = store.judged().report()
    return {each: set(report.names(each)) for each in Verdict}


def test_a_check_holds_only_where_it_could_look_at_everything(store: Store) -> None:
    assert set(CLAIMS) == verdicts(store)[Verdict.HOLDS]
    (log, *_) = [each.key for each in store.objects.list(str(PARTITION)) if ".log" in each.key]
    store.objects.delete([log])
    found = verdicts(store)
    assert ({"I-14"}, {"metadata", "I-18"}) == (found[Verdict.BROKEN], found[Verdict.HOLDS])
    store.change(f"UPDATE segments SET files = '{{' {FIRST}")
    found = verdicts(store)
    assert ("metadata" in found[Verdict.BROKEN], {"I-18"}) == (True, found[Verdict.HOLDS])
    store.change("UPDATE partitions SET log_start = 'x'")
    found = verdicts(store)
    assert ({"metadata"}, set()) == (found[Verdict.BROKEN], found[Verdict.HOLDS])


def test_a_finding_says_where_in_the_document_too(store: Store) -> None:
    name = first_id(store)
    store.change(f"UPDATE segments SET files = '{{' {FIRST}")
    (finding, *_) = store.judged().report().check("metadata").findings
    assert {"table": "segments", "row": name} == finding.where


def test_a_live_segment_that_nothing_leads_to_is_found(store: Store) -> None:
    last = store.state.routes[-1]
    store.change("DELETE FROM routing WHERE base_offset = :at", at=last.base_offset)
    found = [each for each in store.findings() if each.table == "segments"]
    assert [last.segment_id] == [each.row_key for each in found]


def test_epochs_that_go_back_are_found(store: Store) -> None:
    store.change("INSERT INTO lineage VALUES (1, 4, 9), (1, 5, 8)")
    assert ["epoch 5"] == [each.row_key for each in store.findings() if each.table == "lineage"]


def test_a_row_that_cannot_be_read_ends_what_needs_it_with_its_name(store: Store) -> None:
    name = first_id(store)
    store.change(f"UPDATE segments SET files = '{{' {FIRST}")
    with pytest.raises(CorruptError, match=f"table=segments partition={PARTITION} key={name}"):
        store.store.load(PARTITION)
