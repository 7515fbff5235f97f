"""``keeplast erasure``: requests that keys be gone, and certificates that they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.certifying import CertificateOptions, sign_certificate
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.erasure_options import KEYS, Keys, Requests
from keeplast.cli.frame.options import RunnerOptions, SettingOptions
from keeplast.cli.frame.parameters import FACTS, DataDir, Json, ObjectOptions
from keeplast.cli.tier.options import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.model.keyed_hash import KeyHasher
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.certificate_issue import SearchedPlace
    from keeplast.service.erasure.erasure_answer import ErasureKeys
    from keeplast.service.erasure.erasure_book import RequestShelf

erasure = typer.Typer(
    name="erasure",
    help="Requests that keys be gone, and signed certificates that no trace was found.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Place = Annotated[
    str,
    typer.Argument(
        metavar="DATA_DIR|URL",
        help="A data directory, or the --store of a store or of attached topics.",
        show_default=False,
    ),
]
TIER = "A live cluster's remote tier"
PublicKey = Annotated[
    Path,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="The signer's Ed25519 public key, in PEM: openssl pkey -pubout.",
        show_default=False,
    ),
]
Certificate = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="What erasure certificate, tier certificate or attach certificate wrote.",
    ),
]
HashKeyIfAny = Annotated[
    Path | None,
    typer.Option(
        "--hash-key",
        metavar="FILE",
        help="The key that the certificate's keys are hashed with: to look for them, and to match "
        "--keys.",
        rich_help_panel=KEYS,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Compare what lies in this data directory now."),
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Compare what this store has now."),
]
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where rounds wrote their receipts. Default: those that keeplast run keeps in the "
        "data directory.",
        rich_help_panel=FACTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Which live cluster's remote tier a certificate is compared with, if with one."""

    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", metavar="HOST:PORT", rich_help_panel=TIER,
            help="Compare what this cluster's remote tier has now; --store is the decision log.",
        ),
    ] = None  # fmt: skip
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config", metavar="FILE", rich_help_panel=TIER,
            help="client.properties as Kafka's own tools take it, for SSL and SASL.",
        ),
    ] = None  # fmt: skip
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="PLUGIN:PLACE", rich_help_panel=TIER,
            help="Where the brokers' plugin keeps segments, as for attach certificate.",
        ),
    ] = None  # fmt: skip
    storage_options: Annotated[
        tuple[str, ...],
        typer.Option(
            "--storage-option", metavar="KEY=VALUE", rich_help_panel=TIER,
            help="A setting of the plugin, or an option of its store; repeatable.",
        ),
    ] = ()  # fmt: skip

    def check(self, store: str | None) -> None:
        """Raise InvalidError for a part of what names a remote tier."""
        from keeplast.errors import InvalidError

        given = (self.bootstrap_server, self.storage)
        if any(each is not None for each in given) and None in (*given, store):
            raise InvalidError(
                "a remote tier is named by --bootstrap-server, --storage and --store together. "
                f"--bootstrap-server={self.bootstrap_server} --storage={self.storage} "
                f"--store={None if store is None else '...'}"
            )


@erasure.command(name="list")
@command(first=(), example="keeplast erasure list DATA_DIR")
def list_(place: Place, requests: Requests = None, as_json: Json = False) -> Result:
    """Show the requests of a data directory, a store, or attached topics."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.erase import requests_table
    from keeplast.cli.show.output import print_result

    with _shelf_at(place, requests) as (shelf, _):
        book = shelf.read()
    if not as_json:
        print_result(requests_table(book.requests) if book.requests else "no requests")
        for each in book.elsewhere:
            print_result(f"request {each.request_id} is kept elsewhere; --requests names the file")
    return DONE, {
        "path": shelf.name,
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


@erasure.command()
@command(first=(), example="keeplast erasure forget DATA_DIR 0123456789abcdef")
def forget(
    place: Place,
    request: Annotated[str, typer.Argument(metavar="ID", help="The request.", show_default=False)],
    requests: Requests = None,
    as_json: Json = False,
) -> Result:
    """Remove a request: nobody looks for its keys again. Its certificate counts as before."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.service.erasure.erasure_book import forget_request

    with _shelf_at(place, requests) as (shelf, own):
        keys = forget_request(shelf, request, own)
    if not as_json:
        what = "which is kept elsewhere" if keys is None else f"of {keys} key(s)"
        print_result(f"forgot {request}, {what}")
    return DONE, {"path": shelf.name, "forgotten": request}


@contextlib.contextmanager
def _shelf_at(
    place: str, requests: Path | None
) -> Iterator[tuple[RequestShelf, RequestShelf | None]]:
    """Open where requests are kept; also the list of the place that names those kept elsewhere.

    InvalidError for a store that is not there.
    """
    from keeplast.cli.frame.packages import check_packages
    from keeplast.log.object_paths import is_object_path
    from keeplast.service.erasure.directory_erasing import directory_shelves

    if "://" not in place or is_object_path(Path(place)):
        kept, its_own = directory_shelves(Path(place), requests)
        yield kept, None if kept == its_own else its_own
        return
    check_packages()
    from keeplast.service.store_shelf import store_shelf
    from keeplast.tier.metadata.database import is_missing

    with contextlib.ExitStack() as opened:
        shelf = opened.enter_context(store_shelf(place, requests))
        is_own = requests is None or is_missing(place)
        yield shelf, None if is_own else opened.enter_context(store_shelf(place, None))


@erasure.command()
@command(
    first=("hash_key", "sign_key", "out"),
    example="keeplast erasure certificate DATA_DIR --hash-key hash.key --sign-key sign.pem --out "
    "gone.json",
)
def certificate(
    data_dir: DataDir,
    options: CertificateOptions,
    settings: SettingOptions,
    workers: RunnerOptions,
    receipt: Receipts = None,
    as_json: Json = False,
) -> Result:
    """Search for the keys of a request, and sign that no trace of them was found.

    Refused while there is one, with where and until when. It says what was searched and what
    cannot be from here, and never that a key is gone there. With --keys the search is faster.
    """
    from keeplast.cli.show.output import say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure.certificate_issue import search_directory
    from keeplast.service.erasure.directory_erasing import (
        directory_shelves,
        require_outside,
        select_topics,
    )

    shelf, _ = directory_shelves(data_dir, options.requests)
    require_outside(data_dir, options.out, "--out")
    files = LocalFiles()

    def search(asked: ErasureRequest, keys: ErasureKeys) -> SearchedPlace:
        selection = select_topics(data_dir, files, asked.topics, settings)
        for warning in selection.warnings:
            say(warning, kind="warning")
        with ProgressEvents("searching") as events, search_runner(workers) as runner:
            return search_directory(
                selection, files, SystemClock().now_ms(), keys, receipt=receipt,
                planned=events.planned, progressed=events.progressed, runner=runner,
            )  # fmt: skip

    return sign_certificate(options, shelf, search, as_json=as_json)


@erasure.command()
@command(
    first=("public_key", "hash_key", "data"),
    example="keeplast erasure verify gone.json --public-key sign.pub",
)
def verify(
    file: Certificate,
    public_key: PublicKey,
    live: LiveOptions,
    hash_key: HashKeyIfAny = None,
    keys: Keys = None,
    data: Data = None,
    store: Store = None,
    object_options: ObjectOptions = (),
    receipt: Receipts = None,
    as_json: Json = False,
) -> Result:
    """Prove that a certificate is as it was signed, and look what is there now, if told where.

    The public key proves integrity. Whether a person is meant only the hash key can tell, with
    --keys. --data, --store, or --bootstrap-server with --storage and --store, say where to look:
    what came back from a backup is told as older, a key that was written again as later.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.frame.key_files import read_hasher, read_keys
    from keeplast.cli.frame.packages import check_signing
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles

    check_signing()
    from keeplast.service.erasure.certificate import CERTIFICATE_BYTES_MAX
    from keeplast.service.erasure.certificate_check import (
        IS_FINE,
        compare_directory,
        given_receipts_behind,
        lines_within,
        read_certificate,
    )
    from keeplast.signing import SignatureCheck

    live.check(store)
    if data is not None and store is not None:
        raise InvalidError(f"compare one place at a time. --data={data} --store=...")
    if keys is not None and hash_key is None:
        raise InvalidError("only the hash key tells whose hashes these are; give --hash-key too.")
    files, check = LocalFiles(), SignatureCheck(public_key)
    hasher = None if hash_key is None else read_hasher(hash_key)
    plain = None if keys is None else read_keys(keys)
    document: dict[str, Any] = {"certificate": file, "is_as_signed": False, "problem": None}
    try:
        statement = read_certificate(files.read_bytes(file, CERTIFICATE_BYTES_MAX), check)
    except FileNotFoundError as error:
        raise InvalidError(f"there is no such certificate. path={file}") from error
    except InvalidError as error:
        say(f"{error} path={file}", kind="error")
        return CHECK_FAILED, {**document, "problem": str(error)}
    within = {} if plain is None or hasher is None else lines_within(statement, hasher, plain)
    behind = given_receipts_behind(statement, files, receipt)
    standings: Sequence[PartitionStanding] = ()
    if data is not None:
        with ProgressEvents("searching") as events:
            standings = compare_directory(
                statement, data, files, hasher, receipt=receipt, progressed=events.progressed
            )
    elif live.bootstrap_server is not None and store is not None:
        standings = _compare_tier(statement, live, store, hasher, behind)
    elif store is not None:
        standings = _compare_store(
            statement, StoreAddress(store=store, object_options=object_options), hasher, behind
        )
    code = DONE
    outside = [line for line, is_within in within.items() if not is_within]
    for line in outside:
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


def _compare_store(
    statement: dict[str, Any],
    call: StoreAddress,
    hasher: KeyHasher | None,
    behind: str | None,
) -> Sequence[PartitionStanding]:
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.progress import ProgressEvents

    check_packages()
    from keeplast.service.erasure.store_certificate import compare_store

    with call.opened(only_looks=True) as opened, ProgressEvents("searching") as events:
        return compare_store(statement, opened, hasher, behind=behind, progressed=events.progressed)


def _compare_tier(
    statement: dict[str, Any],
    live: LiveOptions,
    store: str,
    hasher: KeyHasher | None,
    behind: str | None,
) -> Sequence[PartitionStanding]:
    from keeplast.cli.attach.erase import look_at_cluster
    from keeplast.cli.attach.options import (
        ClusterAddress,
        TierOptions,
        WantedOptions,
        decision_log_there,
    )
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.service.erasure.attached_certificate import LiveTier, compare_attached

    cluster = ClusterAddress(
        bootstrap_server=live.bootstrap_server or "", command_config=live.command_config
    )
    tier = TierOptions(
        store=store, storage=live.storage or "", storage_options=live.storage_options
    )
    with decision_log_there(store) as log, ProgressEvents("searching") as events:
        assert log is not None
        named = {str(each["topic"]) for each in statement["partitions"]}
        there = cluster.connect().read_topic_ids(named)
        found = look_at_cluster(cluster, tuple(sorted(named & there.keys())), log)
        settings = WantedOptions().settings_of(found.facts.topics)
        return compare_attached(
            statement,
            LiveTier(found.client, found.facts, found.folded, log, tier.open_layout(), settings),
            hasher, SystemClock(), behind=behind,
            progressed=events.progressed,
        )  # fmt: skip


def _verified_lines(
    file: Path,
    statement: dict[str, Any],
    within: dict[int, bool],
    standings: Sequence[PartitionStanding],
) -> list[str]:
    """Return what a person is told of a certificate that is as it was signed."""
    from keeplast.clock import time_text
    from keeplast.model.escapes import printable
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
