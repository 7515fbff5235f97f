"""Proves an erasure certificate: that it is as it was signed, whom it is about, what is there now.

The public key alone proves that nothing in it was changed. Only the hash key shows whether a person
is meant. What lies in a directory now is compared by what only grows: the end of a log, the
cleaner's checkpoint, the chain of receipts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keeplast.errors import InvalidError, error_text
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.inspect.erasure_search import PartitionSearch, search_partition, sum_file
from keeplast.inspect.explain import rankings_of
from keeplast.inspect.remains import Remains, WantedKeys, marked_of, search_out_of_service
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.log.paths import child_path
from keeplast.model.erasure_request import ALGORITHM, KeyHasher, read_statement, statement_bytes
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Workspace
from keeplast.service.erasure.certificate import (
    CONTEXT,
    DIRECTORY,
    KIND,
    VERSION,
    partition_of,
    read_identity,
    read_receipt_lines,
    receipt_paths,
)
from keeplast.service.search_tasks import attempt
from keeplast.survey.receipt_chain import ChainHead, check_chain
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

if TYPE_CHECKING:
    from keeplast.signing import SignatureCheck


class CertificateStanding(StrEnum):
    """How what is there now stands to what a certificate says; the worst comes first."""

    OTHER = auto()
    MISSING = auto()
    OLDER = auto()
    UNREADABLE = auto()
    LATER_WRITE = auto()
    CHANGED = auto()
    LATER = auto()
    SAME = auto()


IS_FINE = (CertificateStanding.LATER_WRITE, CertificateStanding.LATER, CertificateStanding.SAME)


class PartitionStanding(Struct, frozen=True):
    """One partition of a certificate, as it is now, and why it is said to be so."""

    partition: TopicPartition
    standing: CertificateStanding
    why: str

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "topic": self.partition.topic, "partition": self.partition.partition,
            "standing": self.standing, "why": self.why,
        }  # fmt: skip


def read_certificate(data: bytes, check: SignatureCheck) -> dict[str, Any]:
    """Return the statement of a certificate; InvalidError unless it is as its signer wrote it."""
    outer = read_statement(data)
    statement, signature = outer.get("statement"), outer.get("signature")
    if not isinstance(statement, dict) or not isinstance(signature, str) or len(outer) != 3:
        raise InvalidError(
            "not a certificate: statement, signature and signer are not all there.", code="K617"
        )
    if outer.get("signed_by") != check.key_id:
        raise InvalidError(
            "signed with another key than the public key that was given; give the signer's. "
            f"signed_by={str(outer.get('signed_by'))[:64]} given={check.key_id}",
            code="K617",
        )
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not check.holds(CONTEXT, statement_bytes(statement), raw):
        raise InvalidError(
            "the signature does not hold: what it says is not what was signed.", code="K617"
        )
    if statement.get("kind") != KIND or statement.get("version") != VERSION:
        raise InvalidError(
            "a statement that this keeplast does not know; use a newer one. "
            f"kind={statement.get('kind')!r} version={statement.get('version')!r}",
            code="K618",
        )
    return statement


def require_hash_key(statement: Mapping[str, Any], hasher: KeyHasher) -> None:
    """Raise InvalidError unless the hashes of a statement were made with this hash key."""
    keys = statement["keys"]
    if keys["hash"] != ALGORITHM or keys["hash_key"] != hasher.check:
        raise InvalidError(
            "the hash key is not the one that the certificate's hashes were made with; give that "
            f"one. hash_key={hasher.check} wanted={keys['hash_key']}",
            code="K613",
        )


def lines_within(
    statement: Mapping[str, Any], hasher: KeyHasher, plain: Mapping[int, bytes]
) -> dict[int, bool]:
    """Return for each line of a key file whether the certificate is about its key."""
    require_hash_key(statement, hasher)
    hashes = set(statement["keys"]["hashes"])
    return {line: hasher.hash_of(key) in hashes for line, key in sorted(plain.items())}


def compare_directory(
    statement: Mapping[str, Any],
    path: Path,
    files: FileSystem,
    hasher: KeyHasher | None,
    *,
    receipt: Path | None = None,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    progressed: Callable[[int], None] = lambda _: None,
) -> tuple[PartitionStanding, ...]:
    """Compare what lies in a directory now with a certificate; reads only.

    Without ``hasher`` no key is looked for, and what has changed is reported as such.
    """
    directory = open_data_directory(path, files)
    entries: Sequence[Mapping[str, Any]] = statement["partitions"]
    strange = _strangeness(statement, directory, files)
    if strange is not None:
        return tuple(
            PartitionStanding(partition_of(dict(each)), CertificateStanding.OTHER, strange)
            for each in entries
        )
    checkpoints = read_checkpoint(files, directory.root, CLEANER_CHECKPOINT)
    behind = _directory_behind(statement, directory, files, receipt)
    wanted = wanted_keys(statement, hasher)
    workspace = Workspace(memory_bytes)

    def compare(entry: Mapping[str, Any], partition: TopicPartition) -> PartitionStanding:
        return _compare(
            entry, partition, directory, files, wanted, workspace, progressed,
            checkpoints.get(partition), behind,
        )  # fmt: skip

    return compare_each(entries, None, compare)


def wanted_keys(statement: Mapping[str, Any], hasher: KeyHasher | None) -> WantedKeys:
    """Return what is searched for: the keys of a statement, or nothing without ``hasher``."""
    if hasher is None:
        return WantedKeys(lambda key: False, frozenset())
    require_hash_key(statement, hasher)
    hashes = frozenset(statement["keys"]["hashes"])
    return WantedKeys(lambda key: hasher.hash_of(key) in hashes)


def compare_each(
    entries: Sequence[Mapping[str, Any]],
    strange: str | None,
    compare: Callable[[Mapping[str, Any], TopicPartition], PartitionStanding],
) -> tuple[PartitionStanding, ...]:
    """Return what ``compare`` says of each partition; one that cannot be read stops no other.

    ``strange`` is why none of the place is what the certificate is about, None when it may be.
    """
    found = []
    for each in entries:
        partition = partition_of(dict(each))
        if strange is not None:
            found.append(PartitionStanding(partition, CertificateStanding.OTHER, strange))
            continue
        standing = attempt(partial(compare, each, partition))
        if isinstance(standing, Exception):
            why = error_text(standing)
            standing = PartitionStanding(partition, CertificateStanding.UNREADABLE, why)
        found.append(standing)
    return tuple(found)


def missing(partition: TopicPartition) -> PartitionStanding:
    """Return the standing of a partition that is gone."""
    return PartitionStanding(partition, CertificateStanding.MISSING, "there is no such partition")


def made_again(partition: TopicPartition, topic_id: str | None) -> PartitionStanding:
    """Return the standing of a partition whose topic has another id now."""
    why = f"the topic was made again: its id is {topic_id}"
    return PartitionStanding(partition, CertificateStanding.OTHER, why)


def _strangeness(
    statement: Mapping[str, Any], directory: DataDirectory, files: FileSystem
) -> str | None:
    """Return why a directory is not the one that a certificate is about, None when it may be."""
    identity = read_identity(files, directory.root)
    place = statement["place"]
    if place["kind"] != DIRECTORY:
        return f"the certificate is about a {place['kind']}"
    own = {
        "cluster_id": None if identity is None else identity.cluster_id,
        "directory_id": None if identity is None else identity.directory_id,
    }
    for name, found in own.items():
        if place[name] is not None and found != place[name]:
            return f"another directory: {name} is {found}, the certificate's is {place[name]}"
    return None


def _directory_behind(
    statement: Mapping[str, Any],
    directory: DataDirectory,
    files: FileSystem,
    receipt: Path | None,
) -> str | None:
    """Return why the receipts are older than those of a certificate, None when they are not."""
    receipts = statement["receipts"]
    if receipt is not None:
        return given_receipts_behind(statement, files, receipt)
    if receipts is None or not receipts["in_directory"]:
        return None  # they were kept elsewhere, and where is not known
    return _receipts_behind(statement, files, receipt_paths(directory.root, None))


def given_receipts_behind(
    statement: Mapping[str, Any], files: FileSystem, receipt: Path | None
) -> str | None:
    """Return why the receipts of ``--receipt`` are older than a certificate's, else None.

    None too where none were given, or the certificate says nothing of receipts. InvalidError where
    there is no such file: a name that was mistyped says nothing of what is there.
    """
    if receipt is None:
        return None
    if not files.exists(receipt):
        raise InvalidError(
            f"there is no such file of receipts; correct it. --receipt={receipt}", code="K110"
        )
    return _receipts_behind(statement, files, (receipt,))


def _receipts_behind(
    statement: Mapping[str, Any], files: FileSystem, paths: Sequence[Path]
) -> str | None:
    """Return why receipt files are not, or not as far as, those of a certificate, else None."""
    receipts = statement["receipts"]
    if receipts is None or receipts["head"] is None:
        return None
    kept = ChainHead.parse(str(receipts["head"]))
    lines = read_receipt_lines(files, paths)
    broken = check_chain(lines).problems
    if broken:
        return f"the receipts were changed since: {broken[0]}"
    chain = check_chain(lines, kept)
    if chain.is_tail_proven:
        return None
    if chain.missing_before >= kept.number:
        return None  # put aside since, and not here: the lines that are here are later ones
    if chain.head is not None and chain.head.chain_id != kept.chain_id:
        return (
            "the receipts that are here are of another chain than the certificate's: of another "
            f"place, or begun again. chain={chain.head.chain_id} wanted={kept.chain_id}"
        )
    at = "there is none" if chain.head is None else f"the newest line is {chain.head.number}"
    return f"the receipts do not reach line {kept.number} of the certificate's chain: {at}"


def _compare(
    entry: Mapping[str, Any],
    partition: TopicPartition,
    directory: DataDirectory,
    files: FileSystem,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Callable[[int], None],
    clean_to: int | None,
    behind: str | None,
) -> PartitionStanding:
    there = directory.find(partition)
    if there is None:
        return missing(partition)
    search = search_partition(
        partition, there.path, wanted, rankings_of(TopicConfig(), None), files, workspace,
        progressed,
    )  # fmt: skip
    if entry["topic_id"] is not None and search.topic_id != entry["topic_id"]:
        return made_again(partition, search.topic_id)
    older = age(search, entry) or _is_less_clean(entry, clean_to) or behind
    marked = marked_of(directory.partitions, partition)
    return judge(
        entry, search, [*search.remains, *search_out_of_service(marked, wanted, files)], older,
        partial(is_as_it_was, entry, search, files), looked_for_keys=wanted.keys is None,
    )  # fmt: skip


def is_as_it_was(entry: Mapping[str, Any], search: PartitionSearch, files: FileSystem) -> bool:
    """Say whether every segment of a partition's ``entry`` is there, byte for byte."""
    return all(
        sum_file(files, child_path(search.path, str(each["name"])), int(each["bytes"]))
        == each["sha256"]
        for each in entry["segments_after"]
    )


def judge(
    entry: Mapping[str, Any],
    search: PartitionSearch,
    remains: Sequence[Remains],
    older: str | None,
    is_same: Callable[[], bool],
    *,
    looked_for_keys: bool,
) -> PartitionStanding:
    """Say how what was found of a partition stands to its ``entry``; ``older`` is why it is.

    ``is_same`` reads whether every segment is as it was.
    """
    partition, searched_to = search.partition, int(entry["searched_to"])
    offsets = sorted(each.offset for its in search.records.values() for each in its)
    back = [offset for offset in offsets if offset < searched_to]
    files_back = [each.title for each in remains if each.keys]
    if back or files_back:
        where = f"offset {back[0]}" if back else f"file {files_back[0]}"
        why = f"a key is there again, below what was searched: {where}"
        why = f"{why}; {older}" if older else why
        return PartitionStanding(partition, CertificateStanding.OLDER, why)
    if older is not None:
        return PartitionStanding(partition, CertificateStanding.OLDER, older)
    problems = [each.fault for each in remains if each.problem]
    if problems and looked_for_keys:
        return PartitionStanding(partition, CertificateStanding.UNREADABLE, problems[0])
    if offsets:
        why = f"a key was written later, at offset {offsets[0]}, behind what was searched"
        return PartitionStanding(partition, CertificateStanding.LATER_WRITE, why)
    if is_same():
        return PartitionStanding(partition, CertificateStanding.SAME, "every segment is as it was")
    if not looked_for_keys:
        why = "segments have changed since; give --hash-key to look for the keys"
        return PartitionStanding(partition, CertificateStanding.CHANGED, why)
    why = "segments have changed since, and no key is in them"
    return PartitionStanding(partition, CertificateStanding.LATER, why)


def age(search: PartitionSearch, entry: Mapping[str, Any]) -> str | None:
    """Return by where a log begins and ends that it is older, None when nothing shows that."""
    searched_to, first = int(entry["searched_to"]), search.listing.segments[0].base_offset
    if search.log_end < searched_to:
        return f"the log ends at {search.log_end}, and was searched to {searched_to}"
    if first < int(entry["searched_from"]):
        return f"the log begins at {first}, and began at {entry['searched_from']}"
    return None


def _is_less_clean(entry: Mapping[str, Any], clean_to: int | None) -> str | None:
    was_clean_to = entry["clean_to"]
    if was_clean_to is not None and (clean_to is None or clean_to < int(was_clean_to)):
        return f"it is clean to {clean_to or 0}, and was to {was_clean_to}"
    return None
