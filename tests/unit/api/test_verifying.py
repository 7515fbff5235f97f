"""``verify`` from Python: the same answer of every kind of place, and what a kind refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast
from keeplast.api.place import AskedPlace
from keeplast.api.refusals import REFUSALS
from keeplast.attach.proof.verification import AttachedVerifier
from keeplast.config.layers import ALL_PARTITIONS, PartitionChoice
from keeplast.config.place_properties import PlaceKind
from keeplast.errors import CorruptError, InvalidError, RefusedError, StoppedError
from keeplast.inspect.verification import Verifier
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.document import Verdict
from keeplast.run.receipt import action_line, append_receipt
from keeplast.service.verifying import Judgement, VerifyTerms
from tests.support.attached_world import PARTITION
from tests.support.placed_logs import take_in, write_directory


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    """A file of receipts without a round."""
    path = tmp_path / "receipt"
    append_receipt(LocalFiles(), path, action_line(None, name="retry", by="somebody", now_ms=1))
    return path


@pytest.fixture(params=list(PlaceKind))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> AskedPlace:
    if request.param is PlaceKind.CLUSTER:
        world = request.getfixturevalue("world")
        url = f"sqlite:///{world.world.root / 'decisions.db'}"
        return keeplast.AttachedLogs("127.0.0.1:1", storage="local:/x", store=url)
    data = write_directory(tmp_path / "data")
    if request.param is PlaceKind.STORE:
        return keeplast.StoredLogs(take_in(data, tmp_path))
    return keeplast.DirectoryLogs(data)


def terms_of(place: AskedPlace, **more: object) -> VerifyTerms:
    """Return terms by which nothing is broken; a directory is compared with itself."""
    if isinstance(place, keeplast.DirectoryLogs) and "receipt" not in more:
        more["after"] = place.data_dir
    return VerifyTerms(**more)  # type: ignore[arg-type]


def names_of(place: AskedPlace) -> list[str]:
    return (
        [f"{PARTITION.topic}-{PARTITION.partition}"]
        if place.kind is PlaceKind.CLUSTER
        else ["t-0", "t-1"]
    )


def test_every_partition_has_a_report_that_was_heard_as_it_was_judged(place: AskedPlace) -> None:
    heard: list[tuple[str, Judgement]] = []

    def hear(name: str, found: Judgement) -> None:
        heard.append((name, found))

    answer = place.verify(ALL_PARTITIONS, terms_of(place, heard=hear))
    assert names_of(place) == [name for name, _ in answer.partitions]
    assert list(answer.partitions) == heard
    assert not any(each.verdict is Verdict.BROKEN for each in answer.reports), answer
    assert ((), None, None) == (answer.faults, answer.chain, answer.noted)
    assert not answer.fails(is_strict=False)
    document = answer.document()
    assert {"partitions", "warnings"} == document.keys()


def test_only_what_was_chosen_is_judged(place: AskedPlace) -> None:
    answer = place.verify(PartitionChoice(partitions=(0,)), terms_of(place))
    assert names_of(place)[:1] == [name for name, _ in answer.partitions]


@pytest.fixture
def failing(place: AskedPlace, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Let the judgement of every first partition raise."""

    def fails(error: Exception) -> None:
        home, name = {
            PlaceKind.DIRECTORY: (Verifier, "verify_pair"),
            PlaceKind.STORE: ("keeplast.service.store_check", "judge_partition"),
            PlaceKind.CLUSTER: (AttachedVerifier, "verify"),
        }[place.kind]
        owner = home if isinstance(home, type) else __import__(str(home), fromlist=[name])
        whole, calls = getattr(owner, name), [0]

        def judged(*given: object) -> object:
            calls[0] += 1
            if calls[0] == 1:
                raise error
            return whole(*given)

        monkeypatch.setattr(owner, name, judged)

    return fails


def test_a_partition_that_cannot_be_judged_keeps_no_other_from_it(
    place: AskedPlace, failing: Callable[[Exception], None]
) -> None:
    error = CorruptError("not to be read", path="x")
    failing(error)
    answer = place.verify(ALL_PARTITIONS, terms_of(place))
    first, *others = answer.partitions
    assert (names_of(place)[0], error) == first
    assert [name for name, _ in others] == names_of(place)[1:]
    assert all(isinstance(each, VerificationReport) for _, each in others)
    document = answer.document()["partitions"][0]
    assert (names_of(place)[0], True) == (document["partition"], "not to be" in document["error"])


def test_a_stop_ends_all(place: AskedPlace, failing: Callable[[Exception], None]) -> None:
    failing(StoppedError("enough"))
    with pytest.raises(StoppedError, match="enough"):
        place.verify(ALL_PARTITIONS, terms_of(place))


def test_a_receipt_has_its_chain_in_the_answer(place: AskedPlace, receipt: Path) -> None:
    document = place.verify(ALL_PARTITIONS, terms_of(place, receipt=receipt)).document()
    assert document["receipt"].keys() == {
        "sentence", "is_tail_proven", "host", "chains_elsewhere", "problems",
    }  # fmt: skip


@pytest.mark.parametrize("more", [{"notes": True}, {"notes": True, "receipt": Path("nowhere")},
                                  {"receipt": Path("nowhere")}])  # fmt: skip
def test_a_note_and_a_receipt_need_a_file(place: AskedPlace, more: dict[str, object]) -> None:
    with pytest.raises(InvalidError, match="--receipt"):
        place.verify(ALL_PARTITIONS, terms_of(place, **more))
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("verify AFTER", {"after": "x"}),
        ("verify --replicas", {"replicas": True}),
        ("verify --receipt-head", {"receipt_head": "x"}),
        ("verify --now-ms", {"now_ms": 0}),
    ],
)
def test_what_only_directories_have_is_refused_with_what_to_do_instead(
    place: AskedPlace, verb: str, more: dict[str, object]
) -> None:
    if place.kind is PlaceKind.DIRECTORY:
        assert (verb, place.kind) not in REFUSALS
        return
    with pytest.raises(RefusedError, match=re.escape(REFUSALS[verb, place.kind].instead)):
        place.verify(ALL_PARTITIONS, VerifyTerms(**more))  # type: ignore[arg-type]
