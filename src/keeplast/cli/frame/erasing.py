"""What ``erase`` and certificate commands share: their options, each declared once, and their work.

The rule that a reader must not break: no key is printed, only its line and its hash.

Every ``erase`` asks, keeps, acts and asks again. A place says how its logs are searched and what
may be done there; what is asked, kept and said is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cli.frame.command import Result
from keeplast.cli.frame.key_files import KEYS_FILE_WORDS
from keeplast.cli.frame.options import SCOPE, RunnerOptions

if TYPE_CHECKING:
    from keeplast.service.erasure.certificate import SearchPlace
    from keeplast.service.erasure.directory_erasing import AskedErasure
    from keeplast.service.erasure.erasure_answer import ErasureAnswer
    from keeplast.service.erasure.erasure_book import RequestShelf
    from keeplast.service.search_tasks import SearchRunner

KEYS = "The keys"

Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys", metavar="FILE", help=f"The keys: {KEYS_FILE_WORDS}.", rich_help_panel=KEYS
    ),
]
HashKey = Annotated[
    Path,
    typer.Option(
        "--hash-key",
        metavar="FILE",
        help="What keys are hashed with wherever they are named: 32 bytes or more, such as openssl "
        "rand -hex 32 writes. Keep it apart from what is hashed with it.",
        show_default=False,
        rich_help_panel=KEYS,
    ),
]
Requests = Annotated[
    Path | None,
    typer.Option(
        "--requests",
        metavar="FILE",
        help="Where requests are kept. Default: keeplast-erasures in a data directory, the "
        "metadata of a store, the decision log of a cluster; a backup takes them along.",
        rich_help_panel=KEYS,
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request",
        metavar="ID",
        help="The request. Default: the only one there is.",
        rich_help_panel=KEYS,
    ),
]
SignKey = Annotated[
    Path,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="The Ed25519 private key, in PEM: openssl genpkey -algorithm ed25519.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FILE", help="Where the certificate goes; a new file.", show_default=False
    ),
]


class CertificateOptions(Struct, frozen=True, kw_only=True):
    """What every certificate command takes."""

    hash_key: HashKey
    sign_key: SignKey
    out: Out
    request: RequestId = None
    keys: Keys = None
    requests: Requests = None


def sign_certificate(
    options: CertificateOptions, shelf: RequestShelf, search: SearchPlace, *, as_json: bool
) -> Result:
    """Search for the keys of the chosen request, and write a certificate down.

    RefusedError while a trace may be left; InvalidError for what cannot be signed with, or written
    to.
    """
    from keeplast.cli.frame.command import DONE, check_packages
    from keeplast.cli.frame.key_files import read_hasher, read_keys, warn_if_open
    from keeplast.cli.show.output import print_result, say
    from keeplast.log.files import LocalFiles
    from keeplast.model.text import printable
    from keeplast.service.erasure.certificate import issue_certificate, require_new
    from keeplast.service.erasure.erasure_answer import unsearched_words

    check_packages("cluster")
    from keeplast.service.erasure.certificate import not_here
    from keeplast.signing import Signer

    files, out = LocalFiles(), options.out
    require_new(out)
    signer, hasher = Signer(options.sign_key), read_hasher(options.hash_key)
    warn_if_open(options.sign_key, "the signing key", "sign with it in your name")
    issued = issue_certificate(
        out, files, shelf, options.request, hasher,
        lambda: None if options.keys is None else read_keys(options.keys), signer, search,
    )  # fmt: skip
    for gone in not_here(issued.request, issued.answer):
        say(f"not searched: {gone}", kind="warning")
    if not as_json:
        print_result(
            f"{out}: no record with one of {len(issued.request.keys)} key(s) was found in "
            f"{len(issued.answer.searches)} partition(s); it says what was searched, and what was "
            f"not{_unknown_words(issued.answer)}",
            *(printable(each) for each in unsearched_words(issued.answer)),
            *(f"not stated: {printable(each)}" for each in issued.not_stated),
        )
    return DONE, {
        "request": issued.request.request_id,
        "certificate": out,
        "signed_by": signer.key_id,
        "not_stated": list(issued.not_stated),
        **issued.answer.document(),
    }


def _unknown_words(answer: ErasureAnswer) -> str:
    unknown = answer.unknown
    if not unknown:
        return ""
    return (
        f": {len(unknown)} path(s) of unknown name, {sum(each.size_bytes for each in unknown)} "
        "bytes, among it"
    )


AllTopics = Annotated[
    bool,
    typer.Option("--all-topics", help="Every compacted topic there.", rich_help_panel=SCOPE),
]
Reapply = Annotated[
    bool,
    typer.Option(
        "--reapply",
        help="Look for the keys of earlier requests instead: for what came back with a backup. The "
        "hash key is enough.",
        rich_help_panel=KEYS,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Look, and keep no request.", rich_help_panel=KEYS)
]


class KeyOptions(Struct, frozen=True, kw_only=True):
    """Which keys are to be gone, from which topics if not from named ones, where that is kept."""

    keys: Keys = None
    hash_key: HashKey
    all_topics: AllTopics = False
    reapply: Reapply = False
    dry_run: DryRun = False
    requests: Requests = None


def check_call(about: KeyOptions, *, now: bool, now_ms: int | None = None) -> None:
    """Raise InvalidError for options that contradict each other; say whose clock rounds go by."""
    from keeplast.cli.show.output import say
    from keeplast.errors import InvalidError

    if now and about.dry_run:
        raise InvalidError(
            "--now changes logs and --dry-run nothing; leave one out. --now=True", code="K101"
        )
    if now and now_ms is not None:
        say(
            "the rounds of --now go by this host's clock; --now-ms dates the answer alone. "
            f"--now-ms={now_ms}",
            kind="note",
        )


def asked_keys(about: KeyOptions, topics: tuple[str, ...], shelf: RequestShelf) -> AskedErasure:
    """Return what is asked; ``topics`` are those that were named, ``shelf`` has earlier requests.

    InvalidError for what contradicts itself.
    """
    from keeplast.cli.frame.key_files import read_hasher, read_keys
    from keeplast.errors import InvalidError
    from keeplast.service.erasure.directory_erasing import ask_again, ask_for_keys

    hasher = read_hasher(about.hash_key)
    plain = None if about.keys is None else read_keys(about.keys)
    if not about.reapply:
        if plain is None:
            raise InvalidError(
                "give the keys with --keys FILE, or --reapply for those of earlier requests",
                code="K102",
            )
        return ask_for_keys(plain, hasher, topics, all_topics=about.all_topics)
    if topics or about.all_topics:
        raise InvalidError(
            "--reapply takes the topics of the requests; leave --topic and --all-topics out. "
            f"--topic={' '.join(topics)}",
            code="K101",
        )
    return ask_again(shelf, hasher, plain)


def say_answer(answer: ErasureAnswer, asked: AskedErasure) -> int:
    """Say what a person has to do; returns the exit code."""
    from keeplast.cli.frame.command import CHECK_FAILED, DONE, REFUSED, say_faults
    from keeplast.cli.show.output import say

    say(*answer.warnings, kind="warning")
    code = CHECK_FAILED if answer.undecided else DONE
    for each in answer.undecided:
        places = ", ".join(str(e.partition) for e in each.places if not e.is_decided)
        say(f"{each.name}: its delete is not decided in {places}", kind="error")
    is_named = bool(asked.topics) and not asked.reapplied
    is_barred = bool(answer.problems or answer.in_the_way)
    if is_barred or (answer.left_out and is_named) or not answer.searches:
        code = max(code, REFUSED)
    return max(code, say_faults(answer.faults))


@contextlib.contextmanager
def search_runner(workers: RunnerOptions) -> Iterator[SearchRunner | None]:
    """Open Spark where the search is to be done there; None for this process."""
    from keeplast.cli.frame import wiring

    if workers.chosen_runner is wiring.RunnerName.LOCAL:
        wiring.check_runner(wiring.RunnerName.LOCAL, master=workers.master)
        yield None
        return
    wiring.say_start(workers.chosen_runner)
    with wiring.open_runner(
        workers.chosen_runner, master=workers.master, cores=workers.cores
    ) as runner:
        yield runner
