"""What every ``erase`` does, of directories, stores and attached topics: ask, keep, act, ask again.

A place says how its logs are searched and what may be done there; what is asked, kept and said is
the same. No key is printed: only its line and its hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.erasure_options import KEYS, HashKey, Keys, Requests
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import SCOPE

if TYPE_CHECKING:
    from keeplast.service.erasure.erasure_answer import ErasureAnswer
    from keeplast.service.erasure.erasure_book import RequestShelf
    from keeplast.service.erasure.erasure_call import AskedErasure
    from keeplast.service.search_tasks import SearchRunner

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
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
        raise InvalidError("--now changes logs and --dry-run nothing; leave one out. --now=True")
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
    from keeplast.service.erasure.erasure_call import ask_again, ask_for_keys

    hasher = read_hasher(about.hash_key)
    plain = None if about.keys is None else read_keys(about.keys)
    if not about.reapply:
        if plain is None:
            raise InvalidError(
                "give the keys with --keys FILE, or --reapply for those of earlier requests"
            )
        return ask_for_keys(plain, hasher, topics, all_topics=about.all_topics)
    if topics or about.all_topics:
        raise InvalidError(
            "--reapply takes the topics of the requests; leave --topic and --all-topics out. "
            f"--topic={' '.join(topics)}"
        )
    return ask_again(shelf, hasher, plain)


def say_answer(answer: ErasureAnswer, asked: AskedErasure) -> int:
    """Say what needs somebody; returns the exit code."""
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE, REFUSED, error_exit_code
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import say

    for warning in answer.warnings:
        say(warning, kind="warning")
    code = CHECK_FAILED if answer.undecided else DONE
    for each in answer.undecided:
        places = ", ".join(str(e.partition) for e in each.places if not e.is_decided)
        say(f"{each.name}: its delete is not decided in {places}", kind="error")
    is_named = bool(asked.topics) and not asked.reapplied
    is_barred = bool(answer.problems or answer.in_the_way)
    if is_barred or (answer.left_out and is_named) or not answer.searches:
        code = max(code, REFUSED)
    for partition, error in answer.faults:
        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error))
    return code


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
