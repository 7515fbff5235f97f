"""What ``place check`` says of a storage: whose objects are there, what is refused, what stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import obstore
import pytest
from msgspec.structs import replace
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from keeplast.cluster.check import AttachFinding, Severity
from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.cluster.storage_check import check_storage, newest_served
from keeplast.errors import UnavailableError
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.tier.objects.stores import ObstoreObjects, is_forbidden, open_tree
from tests.support.attached_tier import PARTITION, AttachedTier
from tests.support.heard_calls import hear
from tests.support.refusing_s3 import RefusingS3, refusing_s3
from tests.unit.attach.test_attached_rounds import write_history

S3 = "aiven:s3://bucket/prefix/"


@pytest.fixture
def tier(tmp_path: Path) -> AttachedTier:
    made = AttachedTier(tmp_path / "tier")
    made.copy(write_history(tmp_path / "logs", count=60))
    return made


def newest(tier: AttachedTier) -> list[RemoteLogSegment]:
    cache = ClusterCache()
    cache.partitions[PARTITION] = tier.cache
    return newest_served(cache, [PARTITION.topic])


class Refusing:
    """A layout one method of which fails as its store does."""

    def __init__(self, tier: AttachedTier, method: str, reason: Exception, *, hides: bool = False):
        self._layout, self._method, self._reason, self._hides = tier.layout, method, reason, hides

    def __getattr__(self, name: str) -> Any:
        def fails(*_: object) -> None:
            raise UnavailableError("the object store failed") from self._reason

        return fails if name == self._method else getattr(self._layout, name)

    def hides_deleted(self, _: RemoteLogSegment) -> bool:
        return self._hides


def found(tier: AttachedTier, storage: str, layout: object = None) -> list[AttachFinding]:
    asked = cast(RemoteLayout, tier.layout if layout is None else layout)
    return list(check_storage(asked, storage, newest(tier)))


def test_what_brokers_serve_and_can_be_read_has_no_finding(tier: AttachedTier) -> None:
    (one,) = newest(tier)
    assert max(each.event_timestamp_ms for each in tier.served()) == one.event_timestamp_ms
    assert [] == found(tier, f"local:{tier.root}")
    assert [] == [each for each in (tier.root / ".keeplast").rglob("*") if each.is_file()]
    assert [] == newest_served(ClusterCache(), [PARTITION.topic])


def test_another_place_than_the_brokers_is_refused(tier: AttachedTier, tmp_path: Path) -> None:
    other = AttachedTier(tmp_path / "other")
    (one,) = check_storage(other.layout, f"local:{other.root}", newest(tier))
    assert not (other.root / ".keeplast").exists(), "a probe in a place that may be another's"
    assert ("not-stored", Severity.REFUSES, PARTITION.topic) == (one.rule, one.severity, one.topic)
    assert "as the plugin is configured" in one.remedy


def test_a_segment_that_is_not_as_announced_is_refused(tier: AttachedTier) -> None:
    (segment,) = newest(tier)
    spoilt = replace(segment, size_bytes=segment.size_bytes + 1)
    (one,) = check_storage(tier.layout, f"local:{tier.root}", [spoilt])
    assert "stored-otherwise" == one.rule
    assert "not the size that was announced" in one.words


@pytest.mark.parametrize("reason", [PermissionDeniedError, UnauthenticatedError, PermissionError])
@pytest.mark.parametrize(
    ("method", "storage", "right"),
    [
        ("open", S3, "s3:GetObject"), ("list", S3, "s3:ListBucket"),
        ("put_new", S3, "s3:PutObject"), ("read_own", S3, "s3:GetObject"),
        ("list_own", S3, "s3:ListBucket"), ("delete_own", S3, "s3:DeleteObject"),
        ("delete_own", "aiven:gs://bucket", "storage.objects.delete"),
        ("delete_own", "aiven:az://container", "Storage Blob Data Contributor"),
        ("open", "aiven:gs://bucket", "storage.objects.get"),
        ("list", "aiven:az://container", "Storage Blob Data Reader"),
        ("open", "local:/mnt/tier", "in its group"),
    ],
)  # fmt: skip
def test_the_right_that_is_missing_is_named_and_no_other(
    tier: AttachedTier, reason: Callable[[str], Exception], method: str, storage: str, right: str
) -> None:
    refused = [
        each
        for each in found(tier, storage, Refusing(tier, method, reason("403")))
        if each.severity is Severity.REFUSES
    ]
    assert ["storage-permission"] == [each.rule for each in refused]
    assert right in refused[0].remedy
    others = ALL | {"storage.objects.get"}
    assert all(other not in refused[0].remedy for other in others if other != right)


@pytest.mark.parametrize("method", ["open", "list", "put_new", "delete_own"])
def test_a_store_that_fails_otherwise_is_no_missing_right(tier: AttachedTier, method: str) -> None:
    with pytest.raises(UnavailableError):
        found(tier, S3, Refusing(tier, method, GenericError("no route")))


def test_what_is_only_hidden_when_it_is_deleted_is_warned_of(tier: AttachedTier) -> None:
    nothing = Exception()
    for storage, hides, rules in (
        (S3, True, ["bucket-versions"]),
        (S3, False, []),
        ("aiven:az://container", True, ["bucket-versions"]),
        ("aiven:az://container", False, ["soft-delete"]),
        ("aiven:gs://bucket", False, ["soft-delete"]),
    ):
        findings = found(tier, storage, Refusing(tier, "nothing", nothing, hides=hides))
        assert rules == [each.rule for each in findings]
        assert {Severity.WARNS} >= {each.severity for each in findings}


ALL = {"s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject"}


@pytest.fixture
def s3() -> Iterator[RefusingS3]:
    with refusing_s3() as made:
        yield made


def at(s3: RefusingS3) -> RemoteLayout:
    return AivenLayout(s3.url, "tier/", tuple(s3.options.items()))


@pytest.mark.parametrize("denied", [set(), *({each} for each in ALL), ALL])
def test_what_a_store_does_not_allow_is_named_once_each_and_what_it_allows_is_not(
    s3: RefusingS3, denied: set[str]
) -> None:
    s3.denied = denied
    findings = [*check_storage(at(s3), "aiven:s3://bucket/tier/", ())]
    # Whether what was not written may be read cannot be said.
    named = denied - ({"s3:GetObject"} if denied == ALL else set())
    assert sorted(named) == sorted(each.words.rpartition("needs ")[2] for each in findings)
    assert {"storage-permission"} >= {each.rule for each in findings}
    if "s3:DeleteObject" not in denied:
        assert {} == s3.objects


def test_a_probe_that_may_not_be_removed_is_written_over_and_goes_when_it_may(
    s3: RefusingS3,
) -> None:
    s3.denied = {"s3:DeleteObject"}
    for _ in range(4):
        with pytest.raises(UnavailableError, match="s3:DeleteObject") as caught:
            at(s3).check_conditions()
        assert is_forbidden(caught.value)
        (one,) = check_storage(at(s3), "aiven:s3://bucket/tier/", ())
        assert "s3:DeleteObject" in one.remedy
    assert ["tier/.keeplast/probes/probe"] == [*s3.objects]
    s3.denied = set()
    at(s3).check_conditions()
    assert {} == s3.objects


@pytest.mark.parametrize("action", sorted(ALL))
def test_a_claim_that_is_refused_says_which_action_is_missing(s3: RefusingS3, action: str) -> None:
    s3.denied = {action}
    layout = at(s3)
    asks: dict[str, Callable[[], object]] = {
        "s3:PutObject": layout.check_conditions, "s3:GetObject": layout.check_conditions,
        "s3:DeleteObject": layout.check_conditions,
        "s3:ListBucket": lambda: list(layout.list_own("work")),
    }  # fmt: skip
    with pytest.raises(UnavailableError, match=f"refuses to [a-z]+: the principal needs {action},"):
        asks[action]()
    assert {} == s3.objects or action == "s3:DeleteObject"


def test_a_store_that_heeds_no_conditions_is_refused(s3: RefusingS3) -> None:
    s3.heeds_conditions = False
    (one,) = check_storage(at(s3), "aiven:s3://bucket/tier/", ())
    assert ("storage-conditions", Severity.REFUSES) == (one.rule, one.severity)
    assert {} == s3.objects


def test_a_probe_that_another_process_removes_in_between_is_tried_by_another_name(
    s3: RefusingS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [True]

    def put_after_removal(*_: object, mode: str, **__: object) -> None:
        if mode == "create" and gone:
            gone.clear()
            s3.objects.clear()

    hear(monkeypatch, obstore, "put", put_after_removal)
    at(s3).check_conditions()
    assert ([], {}) == (gone, s3.objects)


@pytest.fixture
def objects(tmp_path: Path) -> ObstoreObjects:
    made = open_tree(f"file://{tmp_path}")
    made.put_new("a", b"1")
    return made


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, False), ("", False), ("null", False), ("3HL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY", True)],
)
def test_an_object_that_has_a_version_is_hidden_and_not_deleted(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch, version: str | None, expected: bool
) -> None:
    assert not objects.has_version("a")
    monkeypatch.setattr(obstore, "head", lambda *_: {"version": version})
    assert expected == objects.has_version("a")


def test_only_what_a_store_refuses_is_forbidden(objects: ObstoreObjects) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        objects.has_version("b")
    assert not is_forbidden(caught.value)
