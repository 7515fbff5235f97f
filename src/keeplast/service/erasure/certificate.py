"""What an erasure certificate says, when there is none, and how one is issued.

A certificate is a statement: on such a day, by the signer's clock, the search found no record with
one of these keys, up to these offsets. It is about what was searched and nothing else.

The rules that a reader must not break: **what is signed is what one search found**, of a place that
was read before it was searched. It is refused while anything is left that could be a trace, a file
that cannot be read included. What cannot be searched from here stands in it as such.
"""

from __future__ import annotations

import base64
import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from keeplast.config.selection import Selection
from keeplast.errors import CorruptError, InvalidError, RefusedError, error_text
from keeplast.format.filename import META_PROPERTIES
from keeplast.format.meta_properties import MetaProperties
from keeplast.format.meta_properties import decode as decode_meta_properties
from keeplast.inspect.erasure_search import PartitionSearch
from keeplast.inspect.remains import searched_files
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.root_files import PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME
from keeplast.model.erasure_request import (
    ALGORITHM,
    ErasureRequest,
    KeyHasher,
    SegmentDigest,
    statement_bytes,
)
from keeplast.model.partition import TopicPartition
from keeplast.model.text import printable
from keeplast.service.erasure.erasing import find_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys, date_words
from keeplast.service.erasure.erasure_book import RequestShelf, choose_one, keys_of_requests
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.status import read_round_receipts
from keeplast.survey.kept_heads import HeadFacts, check_lines
from keeplast.survey.receipt_book import BYTES_MAX, RoundReceipt, read_receipts, whole_lines
from keeplast.survey.receipt_chain import ChainReport, check_chain, named_chains

if TYPE_CHECKING:
    from keeplast.signing import Signer

KIND = "keeplast erasure certificate"
VERSION = 1
CONTEXT = f"{KIND} {VERSION}".encode()
CERTIFICATE_BYTES_MAX = 256 << 20
META_PROPERTIES_BYTES_MAX = 1 << 20
DIRECTORY, STORE, ATTACHED = "data directory", "store", "attached topics"
"""Kinds of places."""
_ERASE = {
    DIRECTORY: "keeplast erase keys", STORE: "keeplast erase keys",
    ATTACHED: "keeplast erase keys",
}  # fmt: skip
ROUNDS_MAX = 1000
SHOWN_MAX = 5
CLAIM = "No record with one of these keys was found in what was searched."
SEARCHED = (
    "every batch of every segment named below, decompressed, active segments included, from the "
    "first byte on, up to searched_to",
    "files beside the segments that are or were segments: staged, replaced, put aside, and "
    "directories that a broker disposes of",
)
NOT_SEARCHED = (
    "other partitions of these topics than those below, and replicas: on other brokers, in other "
    "directories",
    "caches of brokers, hosts, networks and readers",
    "object storage: versions, locks, retained or replaced objects, replicas of buckets",
    "backups and snapshots, of files, volumes and databases",
    "other topics and clusters",
    "values and headers of records with other keys",
    "exports, those of keeplast and the earlier versions that they keep among them, and what "
    "consumers have read and kept",
    "temporary files, swapped memory, and blocks of disks that are free now",
    "what was written at searched_to or behind it",
)

WITHOUT_RECEIPTS = "the chain of receipts is not part of this statement: none was given"
UNCHAINED = "that the receipts are as they were written: their lines are not chained"
WITHOUT_TAIL = "that no line was cut off the end of the receipts: no head of their chain was kept"
NOT_BOUND = "the certificate is not bound to a store id"
UNBOUND = f"which store it is: {NOT_BOUND}"
NOT_HERE_WORDS = (
    "it held keys when they were asked about, and has no log here now: deleted, or moved elsewhere "
    "with all that it had"
)
SEARCHED_OF_UNKNOWN = (
    "paths of unknown name anywhere below the place, but for unknown_paths: as logs where they "
    "begin with a batch, else for the bytes of the keys"
)
NOT_SEARCHED_OF_UNKNOWN = (
    "what is compressed, encrypted or encoded in files of unknown name that are no logs"
)


class CertifiedPlace(Struct, frozen=True):
    """Where was searched: what is said of the place, what was searched of it and what was not.

    ``topic_ids`` and ``versions`` (of the metadata) are those that the place itself knows;
    ``metadata_offsets`` are where a cluster's metadata topic ended, exclusive.
    """

    document: Mapping[str, Any]
    searched: tuple[str, ...]
    not_searched: tuple[str, ...]
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    versions: Mapping[TopicPartition, int] = field(default_factory=dict)
    metadata_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


class ReceiptStanding(Struct, frozen=True):
    """What receipts say: their chain, and the rounds, oldest first.

    ``in_directory`` says that they are those that a loop keeps in the data directory.
    """

    chain: ChainReport | None
    rounds: tuple[RoundReceipt, ...] = ()
    in_directory: bool = False


def receipt_paths(root: Path, given: Path | None) -> tuple[Path, ...]:
    """Return where receipts are read: ``given``, else those that a loop keeps, the older first."""
    if given is not None:
        return (given,)
    return tuple(root / name for name in (PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME))


def read_receipt_lines(files: FileSystem, paths: Sequence[Path]) -> list[bytes]:
    """Return the whole lines of receipt files that follow each other, newlines included."""
    lines: list[bytes] = []
    for path in paths:
        if files.exists(path):
            lines += whole_lines(files.read_bytes(path, BYTES_MAX))
    return lines


def read_standing(
    files: FileSystem,
    paths: Sequence[Path],
    rounds: Sequence[RoundReceipt],
    *,
    in_directory: bool = False,
    facts: HeadFacts | None = None,
) -> ReceiptStanding:
    """Return what receipts say; RefusedError where their chain is broken.

    With ``facts``, of a store or a decision log, also where it is none of those, or not as far as
    those, whose heads are kept there.
    """

    def read() -> list[bytes]:
        return read_receipt_lines(files, paths)

    if facts is None:
        lines = read()
        chain = check_chain(lines) if lines else None
    else:
        chain = check_lines(read, facts)
    if chain is not None and chain.problems:
        raise RefusedError(
            "the receipts were changed, or are not those of this place, and no certificate can "
            "rest on them; verify with --receipt, or keeplast inspect, says where. "
            f"problem={chain.problems[0]} path={paths[-1]}",
            code="K615",
        )
    return ReceiptStanding(chain, tuple(rounds), in_directory)


def receipts_standing(receipt: Path | None, facts: HeadFacts) -> ReceiptStanding:
    """Return what a file of receipts says by the heads that are kept, nothing without a file.

    Errors as read_standing.
    """
    if receipt is None:
        return ReceiptStanding(None)
    files = LocalFiles()
    return read_standing(files, (receipt,), read_receipts(receipt, files), facts=facts)


def directory_place(identity: MetaProperties | None) -> CertifiedPlace:
    """Return what is said of a data directory."""
    document = {
        "kind": DIRECTORY,
        "cluster_id": None if identity is None else identity.cluster_id,
        "directory_id": None if identity is None else identity.directory_id,
        "node_id": None if identity is None else identity.node_id,
    }
    return CertifiedPlace(
        document, (*SEARCHED, SEARCHED_OF_UNKNOWN), (*NOT_SEARCHED, NOT_SEARCHED_OF_UNKNOWN)
    )


def read_identity(files: FileSystem, root: Path) -> MetaProperties | None:
    """Return which cluster and directory this is, None where it does not say."""
    path = root / META_PROPERTIES
    if not files.exists(path):
        return None
    try:
        return decode_meta_properties(files.read_bytes(path, META_PROPERTIES_BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error


def require_gone(answer: ErasureAnswer, topics: Sequence[str], erase: str) -> None:
    """Raise RefusedError unless everything was searched and nothing found; says what is where.

    Of ``topics``, which were named, all must be compacted; what ``--all-topics`` left out is not
    what it asked for. Paths of unknown name with a key, or that are most likely logs and were not
    searched, are in the way too. ``erase`` is the command that shows all of it.
    """
    left = [
        f"{each.name}: {place.partition}: {_where(place.offsets, place.remains)}: {place.why}; may "
        f"go from: {date_words(place.may_go_ms)}, gone by: {date_words(place.by_ms)}"
        for each in answer.there
        for place in each.places
    ]
    left += [f"{partition}: {each.fault}" for partition, each in answer.problems]
    left += [f"{partition}: {error_text(error)}" for partition, error in answer.faults]
    left += [
        f"{partition}: not searched, though its topic was asked for: {why}; ask for others alone"
        for partition, why in answer.left_out
        if partition.topic in topics
    ]
    left += [each.words for each in answer.in_the_way]
    if not left and answer.searches:
        return
    shown = "; ".join(left[:SHOWN_MAX]) or "nothing was searched"
    more = f"; and {len(left) - SHOWN_MAX} more" if len(left) > SHOWN_MAX else ""
    raise RefusedError(
        f"no certificate while a trace may be left: {shown}{more}; {erase} shows all of "
        "them, and --now does what may be done now.",
        code="K615",
    )


def _where(offsets: Sequence[tuple[int, int]], remains: Sequence[str]) -> str:
    segments = sorted({segment for segment, _ in offsets})
    parts = [f"{len(offsets)} record(s) in segment(s) {segments[:SHOWN_MAX]}"] if offsets else []
    return ", ".join([*parts, *remains[:SHOWN_MAX]])


def not_stated(place: CertifiedPlace, standing: ReceiptStanding) -> list[str]:
    """Return what a certificate says nothing of, other than what was not searched."""
    chain, found = standing.chain, []
    if place.document["kind"] == STORE and place.document["store_id"] is None:
        found.append(UNBOUND)
    if chain is None:
        return [*found, WITHOUT_RECEIPTS]
    if chain.head is None:
        found.append(UNCHAINED)
    elif not chain.is_tail_proven:
        found.append(WITHOUT_TAIL)
    if chain.others:
        found.append(f"the receipts that are elsewhere: {named_chains(chain.others)}")
    return found


def not_stated_in(statement: Mapping[str, Any]) -> list[str]:
    """Return what a certificate says nothing of; one of an earlier version does not say so."""
    if "not_stated" in statement:
        return [str(each) for each in statement["not_stated"]]
    found = [UNBOUND] if statement["place"]["kind"] == STORE else []
    return found if statement["receipts"] is not None else [*found, WITHOUT_RECEIPTS]


def not_here(request: ErasureRequest, answer: ErasureAnswer) -> list[str]:
    """Return the partitions that held the keys when they were asked about, and were not searched.

    A topic that was deleted is gone with them, and one that was moved is not: the place does not
    show which.
    """
    named = {each.partition for each in answer.searches} | {each for each, _ in answer.left_out}
    held = {each.partition for each in request.before} - named
    return [f"partition {each}: {NOT_HERE_WORDS}" for each in sorted(held)]


def claim_of(answer: ErasureAnswer) -> str:
    """Return what a certificate says first, paths of unknown name that were not searched too."""
    unknown = answer.unknown
    if not unknown:
        return CLAIM
    size = sum(each.size_bytes for each in unknown)
    return (
        f"{CLAIM} Not searched: {len(unknown)} path(s) of unknown name below the place, {size} "
        "bytes, which are listed as unknown_paths."
    )


def unknown_paths_in(statement: Mapping[str, Any]) -> list[str]:
    """Return the paths that a certificate says were not searched, with size and reason."""
    return [
        f"{each['path']} ({each['bytes']} bytes): {each['why']}"
        for each in statement.get("unknown_paths", ())
    ]


def make_certificate(
    request: ErasureRequest,
    answer: ErasureAnswer,
    place: CertifiedPlace,
    standing: ReceiptStanding,
    signer: Signer,
    *,
    nonce: str,
) -> bytes:
    """Return the file of a certificate; RefusedError while a trace may be left."""
    require_gone(answer, request.topics, _ERASE[place.document["kind"]])
    covered = {each.partition for each in answer.searches}
    chain = standing.chain
    statement = {
        "kind": KIND,
        "version": VERSION,
        "claim": claim_of(answer),
        "nonce": nonce,
        "signed_at_ms": answer.now_ms,
        "time_is": "the signer's clock",
        "place": dict(place.document),
        "request": {
            "id": request.request_id,
            "created_ms": request.created_ms,
            "topics": list(request.topics),
        },
        "keys": {
            "hash": ALGORITHM,
            "hash_key": request.hash_check,
            "hashes": list(request.keys),
        },
        "partitions": [_partition(each, request, answer, place) for each in answer.searches],
        "rounds": [
            _round(each)
            for each in standing.rounds
            if each.partition in covered and each.now_ms >= request.created_ms
        ][-ROUNDS_MAX:],
        "receipts": None
        if chain is None
        else {
            "head": None if chain.head is None else str(chain.head),
            "host": None if chain.chain is None else chain.chain.host,
            "in_directory": standing.in_directory,
            "is_tail_proven": chain.is_tail_proven,
            "lines": chain.lines,
            "missing_before": chain.missing_before,
            "unchained": chain.unchained,
        },
        "not_stated": not_stated(place, standing),
        "searched": list(place.searched),
        "searched_beside": answer.files_searched,
        "not_searched": [
            *place.not_searched,
            *(
                f"partition {partition}: {why}"
                for partition, why in (*answer.left_out, *answer.unseen)
            ),
            *not_here(request, answer),
        ],
        "unknown_paths": [
            {"bytes": each.size_bytes, "path": printable(each.name), "why": each.why}
            for each in answer.unknown
        ],
    }
    signature = signer.sign(CONTEXT, statement_bytes(statement))
    return statement_bytes(
        {
            "statement": statement,
            "signed_by": signer.key_id,
            "signature": base64.b64encode(signature).decode(),
        }
    )


def _partition(
    search: PartitionSearch,
    request: ErasureRequest,
    answer: ErasureAnswer,
    place: CertifiedPlace,
) -> dict[str, Any]:
    partition = search.partition
    return {
        "topic": partition.topic,
        "topic_id": place.topic_ids.get(partition, search.topic_id),
        "metadata_version": place.versions.get(partition),
        **(
            {"metadata_offset": place.metadata_offsets[partition]}
            if partition in place.metadata_offsets
            else {}
        ),
        "partition": partition.partition,
        "searched_from": search.listing.segments[0].base_offset,
        "searched_to": search.log_end,
        "clean_to": answer.clean_to[partition],
        "batches": search.batches,
        "files_beside": searched_files(search.remains),
        "segments_before": [_segment(e) for e in request.before if e.partition == partition],
        "segments_after": [_segment(each) for each in search.sums],
    }


def _segment(held: SegmentDigest) -> dict[str, Any]:
    return {"name": held.name, "bytes": held.size_bytes, "sha256": held.sha256}


def _round(receipt: RoundReceipt) -> dict[str, Any]:
    return {
        "topic": receipt.partition.topic,
        "partition": receipt.partition.partition,
        "round": receipt.name,
        "now_ms": receipt.now_ms,
        "first_dirty": receipt.first_dirty,
        "end_offset": receipt.end_offset,
        "inputs": [_crc(e.base_offset, e.size_bytes, e.crc32c) for e in receipt.inputs],
        "outputs": [_crc(e.base_offset, e.size_bytes, e.crc32c) for e in receipt.outputs],
    }


def _crc(base: int, size_bytes: int, crc32c: int | None) -> dict[str, Any]:
    return {"base": base, "bytes": size_bytes, "crc32c": crc32c}


def partition_of(entry: dict[str, Any]) -> TopicPartition:
    """Return which partition an entry of a statement is about."""
    return TopicPartition(str(entry["topic"]), int(entry["partition"]))


class SearchedPlace(Struct, frozen=True):
    """What a certificate rests on; ``place`` was read before it was searched."""

    answer: ErasureAnswer
    place: CertifiedPlace
    standing: ReceiptStanding


SearchPlace = Callable[[ErasureRequest, ErasureKeys], SearchedPlace]


class IssuedCertificate(Struct, frozen=True):
    """A certificate that lies at ``path``, the request that it answers, and what it rests on.

    ``not_stated`` is what it says nothing of, other than what was not searched.
    """

    path: Path
    request: ErasureRequest
    answer: ErasureAnswer
    not_stated: tuple[str, ...]


def require_new(out: Path) -> None:
    """Raise InvalidError where no new file can be made: before a search of hours, and not after."""
    if os.path.lexists(out):
        what = "a directory; name a file in it" if out.is_dir() else "a file; name a new one"
        raise InvalidError(f"there is {what}. --out={out}", code="K616")
    if not out.absolute().parent.is_dir():
        raise InvalidError(
            "there is no directory for the certificate; make it "
            f"(mkdir -p {out.parent}), or name another. --out={out}",
            code="K111",
        )
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))


def issue_certificate(
    out: Path,
    files: FileSystem,
    shelf: RequestShelf,
    request_id: str | None,
    hasher: KeyHasher,
    plain: Callable[[], Mapping[int, bytes] | None],
    signer: Signer,
    search: SearchPlace,
) -> IssuedCertificate:
    """Search for the keys of the request that is named, or the only one, and sign what was found.

    ``plain`` gives the keys themselves, by line, where they are known. InvalidError for what
    cannot be chosen or written to, RefusedError while a trace may be left.
    """
    require_new(out)
    asked = choose_one(shelf, request_id)
    found = search(asked, keys_of_requests((asked,), hasher, plain()))
    data = make_certificate(
        asked, found.answer, found.place, found.standing, signer, nonce=secrets.token_hex(16)
    )
    files.write_durable(out, data)
    return IssuedCertificate(
        out, asked, found.answer, tuple(not_stated(found.place, found.standing))
    )


def search_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    keys: ErasureKeys,
    *,
    receipt: Path | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> SearchedPlace:
    """Search the chosen partitions of a data directory, whose receipts are read first.

    ``receipt`` None are the receipts that a loop keeps there. RefusedError for changed ones.
    """
    root = selection.directory.root
    standing = read_standing(
        files, receipt_paths(root, receipt), read_round_receipts(files, root, receipt),
        in_directory=receipt is None,
    )  # fmt: skip
    answer = find_traces(
        selection, files, now_ms, keys, planned=planned, progressed=progressed, runner=runner
    )
    return SearchedPlace(answer, directory_place(read_identity(files, root)), standing)
