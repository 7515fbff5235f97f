"""``keeplast erase``: keys that must go, requests for it, and certificates that they are gone.

No key is printed: only its line and its hash. No tombstone is written: that is a producer's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import (
    KEYS,
    CertificateOptions,
    KeyOptions,
    Keys,
    Requests,
    asked_keys,
    check_call,
    say_answer,
    search_runner,
    sign_certificate,
)
from keeplast.cli.frame.lazy import PlaceCommand
from keeplast.cli.frame.options import ROUND, SCOPE, Json, NowMs
from keeplast.cli.frame.round_options import (
    Given,
    PlaceOptions,
    TakeOver,
    runner_of,
    search_of,
    work_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure.certificate import SearchedPlace
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.survey.report import CleanReport

erase = typer.Typer(
    name="erase",
    help="Keys that must go: where they are, requests for it, and certificates that they are gone.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Topics = Annotated[
    tuple[str, ...],
    typer.Option("--topic", metavar="T", help="The topic; repeatable.", rich_help_panel=SCOPE),
]
Now = Annotated[
    bool,
    typer.Option(
        "--now", rich_help_panel=ROUND,
        help="Do what may be done now: clean, drop what has expired, collect replaced segments "
        "once their grace has passed. The broker of a data directory must be stopped. What has to "
        "wait has its date.",
    ),
]  # fmt: skip
PublicKey = Annotated[
    Path,
    typer.Option(
        "--public-key", metavar="FILE", show_default=False,
        help="The signer's Ed25519 public key, in PEM: openssl pkey -pubout.",
    ),
]  # fmt: skip
Certificate = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="The certificate.")
]
HashKeyIfAny = Annotated[
    Path | None,
    typer.Option(
        "--hash-key", metavar="FILE", rich_help_panel=KEYS,
        help="The key that the certificate's keys are hashed with: to look for them, and to match "
        "--keys.",
    ),
]  # fmt: skip
ComparedPlace = Annotated[
    str | None,
    typer.Argument(
        metavar="PLACE", show_default=False,
        help="Compare what this place has now. Default: none.",
    ),
]  # fmt: skip


@erase.command(cls=PlaceCommand)
@command(
    first=("keys", "hash_key", "topics"),
    example="keeplast erase keys DATA_DIR --keys leaving.txt --hash-key hash.key --topic customers",
)
def keys(
    where: PlaceOptions,
    about: KeyOptions,
    topics: Topics = (),
    now: Now = False,
    now_ms: NowMs = None,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Show for each key whether its delete is decided, where a trace is, and by when it is gone.

    Writes no tombstone: that is the producer's. A key whose value wins anywhere is named by its
    line and hash, and the exit code is 1. The request is kept, hashed; nothing else is written
    without --now. Of a store and a live cluster replaced segments are searched too; what brokers
    alone have is not. keeplast erase certify says it in writing when nothing is left.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.api.round_terms import AskedRounds
    from keeplast.cli.frame.command import StopSignals, report_errors, report_exit_code
    from keeplast.cli.show.keys import render_answer
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.model.topic_config import Keyless
    from keeplast.run.events import StopSwitch
    from keeplast.service.erasure.directory_erasing import carry_out
    from keeplast.service.erasure.erasure_book import name_in_own

    check_call(about, now=now, now_ms=now_ms)
    found, place = where.open()
    place.require_whole()
    # The searches and the rounds have one, which remembers what brokers said.
    brokers = brokers_of(found)
    switch, code = StopSwitch(), 0

    def find() -> ErasureAnswer:
        with ProgressEvents("searching") as events, search_runner(runner_of(found)) as runner:
            return place.find_traces(asked, search_of(found, events, runner, brokers, now_ms))

    def act(answer: ErasureAnswer) -> CleanReport:
        nonlocal code
        keyless = Keyless(found.text("keyless") or Keyless.FAIL)
        with ProgressEvents("cleaning") as events, StopSignals(switch.stop) as signals:
            report = place.clean_traces(
                asked, answer, AskedRounds(keyless=keyless, takes_over=take_over),
                work_of(found, events, switch, brokers=brokers),
            )  # fmt: skip
        code = max(report_exit_code(report), signals.exit_code or 0)
        return report

    with place.shelves(about.requests) as shelves:

        def kept(requests: Sequence[ErasureRequest]) -> None:
            problem = name_in_own(shelves.own, shelves.shelf, requests)
            if problem is not None:
                say(problem, kind="warning")

        asked = asked_keys(about, topics, shelves.shelf)
        done = carry_out(
            asked, shelves.shelf, find, act=act if now else None, keeps=not about.dry_run,
            kept=kept,
        )  # fmt: skip
    answer = done.answer
    code = max(say_answer(answer, asked), code)
    for message in () if done.done is None else report_errors(done.done):
        say(message, kind="error")
    request = done.requests[0].request_id if len(done.requests) == 1 else None
    if not as_json:
        name = [] if request is None else [f"request {request}"]
        print_result(*name, *render_answer(answer))
    return code, {
        **place.head,
        "request": request,
        "requests": [each.request_id for each in asked.reapplied],
        **answer.document(),
        "rounds": None if done.done is None else done.done.partitions,
    }


@erase.command(cls=PlaceCommand)
@command(first=("forget",), example="keeplast erase requests DATA_DIR")
def requests(
    where: PlaceOptions,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget", metavar="ID", show_default=False,
            help="Remove this request: its keys are not looked for again. Its certificate counts "
            "as before.",
        ),
    ] = None,
    requests: Requests = None,
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Show the requests that are kept in a place, or remove one."""
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.keys import requests_table
    from keeplast.cli.show.output import print_result
    from keeplast.service.erasure.erasure_book import forget_request

    _, place = where.open()
    with place.shelves(requests) as shelves:
        shelf = shelves.shelf
        if forget is not None:
            own = None if shelves.own == shelf else shelves.own
            count = forget_request(shelf, forget, own)
            if not as_json:
                what = "which is kept elsewhere" if count is None else f"of {count} key(s)"
                print_result(f"forgot {forget}, {what}")
            return DONE, {**place.head, "kept_in": shelf.name, "forgotten": forget}
        book = shelf.read()
    if not as_json:
        print_result(requests_table(book.requests) if book.requests else "no requests")
        for each in book.elsewhere:
            print_result(f"request {each.request_id} is kept elsewhere; --requests names the file")
    return DONE, {
        **place.head,
        "kept_in": shelf.name,
        "requests": [
            {
                "id": each.request_id,
                "created_ms": each.created_ms,
                "topics": list(each.topics),
                "hash_key": each.hash_check,
                "keys": list(each.keys),
            }
            for each in book.requests
        ],
        "elsewhere": [
            {"id": each.request_id, "topics": list(each.topics)} for each in book.elsewhere
        ],
    }


@erase.command(cls=PlaceCommand)
@command(
    first=("hash_key", "sign_key", "out"),
    example="keeplast erase certify DATA_DIR --hash-key hash.key --sign-key sign.pem --out "
    "gone.json",
)
def certify(where: PlaceOptions, options: CertificateOptions, as_json: Json = False) -> Result:
    """Search for the keys of a request, and sign that no trace of them was found.

    Refused while there is one, with where and until when. It says what was searched and what
    cannot be from here, and never that a key is gone there. With --keys the search is faster.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.cli.show.progress import ProgressEvents

    found, place = where.open()
    place.require_elsewhere(options.out)
    brokers = brokers_of(found)

    def search(asked: ErasureRequest, wanted: ErasureKeys) -> SearchedPlace:
        with ProgressEvents("searching") as events, search_runner(runner_of(found)) as runner:
            return place.search_all(asked, wanted, search_of(found, events, runner, brokers))

    with place.shelves(options.requests) as shelves:
        return sign_certificate(options, shelves.shelf, search, as_json=as_json)


@erase.command(cls=PlaceCommand)
@command(
    first=("public_key", "hash_key", "keys"),
    example="keeplast erase check gone.json --public-key sign.pub",
)
def check(
    file: Certificate,
    public_key: PublicKey,
    place: ComparedPlace = None,
    hash_key: HashKeyIfAny = None,
    keys: Keys = None,
    given: Given = (),
    as_json: Json = False,
) -> Result:
    """Prove that a certificate is as it was signed, and compare what a place has now.

    The public key proves integrity. Only the hash key, with --keys, shows whether a person is
    meant. What came back from a backup is shown as older, a key that was written again as later.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.cli.frame.command import CHECK_FAILED, DONE, check_packages
    from keeplast.cli.frame.key_files import read_hasher, read_keys
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles

    check_packages("cluster")
    from keeplast.service.erasure.certificate import CERTIFICATE_BYTES_MAX
    from keeplast.service.erasure.certificate_check import (
        IS_FINE,
        lines_within,
        read_certificate,
    )
    from keeplast.signing import SignatureCheck

    if keys is not None and hash_key is None:
        raise InvalidError("keys are compared by their hashes; give --hash-key too", code="K102")
    if place is None and given:
        raise InvalidError(
            f"properties are those of a place; name it, too. --with={given[0]}", code="K102"
        )
    files, proof = LocalFiles(), SignatureCheck(public_key)
    hasher = None if hash_key is None else read_hasher(hash_key)
    plain = None if keys is None else read_keys(keys)
    document: dict[str, Any] = {"certificate": file, "is_as_signed": False, "problem": None}
    try:
        statement = read_certificate(files.read_bytes(file, CERTIFICATE_BYTES_MAX), proof)
    except FileNotFoundError as error:
        raise InvalidError(
            f"no such certificate; correct the path. path={file}", code="K110"
        ) from error
    except InvalidError as error:
        say(f"{error} path={file}", kind="error")
        return CHECK_FAILED, {**document, "problem": str(error)}
    within = {} if plain is None or hasher is None else lines_within(statement, hasher, plain)
    standings: Sequence[PartitionStanding] = ()
    if place is not None:
        where, compared = PlaceOptions(place=place, given=given).open()
        with ProgressEvents("searching") as events:
            terms = search_of(where, events, None, brokers_of(where))
            standings = compared.compare(statement, hasher, terms)
    code = DONE
    for line in (line for line, is_within in within.items() if not is_within):
        say(f"line {line}: the certificate is not about this key", kind="error")
        code = CHECK_FAILED
    for each in standings:
        if each.standing not in IS_FINE:
            code = CHECK_FAILED
            say(f"{each.partition}: {each.standing}: {each.why}", kind="error")
    if not as_json:
        print_result(*_verified_lines(file, statement, within, standings))
    return code, {
        **document,
        "is_as_signed": True,
        "statement": statement,
        "keys": [{"line": line, "is_within": is_within} for line, is_within in within.items()],
        "data": standings,
    }


def _verified_lines(
    file: Path,
    statement: dict[str, Any],
    within: dict[int, bool],
    standings: Sequence[PartitionStanding],
) -> list[str]:
    """Return what a person reads of a certificate that is as it was signed."""
    from keeplast.clock import time_text
    from keeplast.model.text import printable
    from keeplast.service.erasure.certificate import not_stated_in, unknown_paths_in

    lines = [
        f"{file}: as it was signed, {time_text(int(statement['signed_at_ms']))[:19]} by the "
        "signer's clock",
        f"{statement['claim']} {len(statement['keys']['hashes'])} key(s), "
        f"{len(statement['partitions'])} partition(s)",
    ]
    if within:
        lines.append(f"it is about {sum(within.values())} of {len(within)} key(s) of the file")
    lines += [f"not searched: {each}" for each in unknown_paths_in(statement)]
    lines += [f"not searched: {each}" for each in statement["not_searched"]]
    lines += [f"not stated: {each}" for each in not_stated_in(statement)]
    lines += [f"{each.partition}: {each.standing}: {each.why}" for each in standings]
    return [printable(line) for line in lines]
