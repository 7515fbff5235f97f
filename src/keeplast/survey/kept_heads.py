"""The heads of receipts' chains that a store, or a decision log, keeps as facts.

The rule: **a fact of a chain is there before a commit raises it, and no commit with a line is made
without raising it**. So an unknown chain has no line of a commit there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from keeplast.log.files import FileSystem
from keeplast.survey.receipt_book import read_whole_lines
from keeplast.survey.receipt_chain import (
    FACT_PREFIX,
    HOST_PREFIX,
    ChainHead,
    ChainReport,
    KeptChain,
    check_chain,
    check_kept,
    head_of,
)

CHAINS_MAX = 10_000
"""Of the chains that are kept, those that are read at once; a file's own is found in addition."""


class HeadFacts(Protocol):
    """The facts of a store or of a decision log."""

    @property
    def host(self) -> str:
        """Return the host of the process that makes facts here."""

    def find(self, key: str) -> str | None:
        """Return a fact, None when it has not been made."""

    def under(self, prefix: str, most: int) -> dict[str, str]:
        """Return the facts whose keys begin with ``prefix``, the first ``most`` of them."""

    def made(self, key: str, make: Callable[[], str]) -> str:
        """Return a fact; ``make`` gives it the first time."""

    def raise_to(self, anchor: tuple[str, str]) -> None:
        """Raise a fact that is there to a greater text."""


def anchor_of(facts: HeadFacts, line: bytes | None) -> tuple[str, str] | None:
    """Return what a commit keeps of a line of a receipt, and make its fact; None for no chain."""
    head = None if line is None else head_of(line)
    if head is None:
        return None
    key, text = head.as_fact()
    if facts.find(key) is None:
        # Whose it is first: a chain that is known has its host, whatever a crash leaves out.
        facts.made(HOST_PREFIX + head.chain_id, lambda: facts.host)
        facts.made(key, str)
    return key, text


def keep_line(facts: HeadFacts, line: bytes | None) -> None:
    """Raise the head to a line that no commit follows: of what was done before it was written."""
    anchor = anchor_of(facts, line)
    if anchor is not None:
        facts.raise_to(anchor)


def kept_chains(facts: HeadFacts, chain_id: str | None = None) -> tuple[KeptChain, ...]:
    """Return what is kept of all chains, of ``chain_id`` in any case, if anything is."""
    heads = facts.under(FACT_PREFIX, CHAINS_MAX)
    hosts = facts.under(HOST_PREFIX, CHAINS_MAX)
    if chain_id is not None and FACT_PREFIX + chain_id not in heads:
        for found, prefix in ((heads, FACT_PREFIX), (hosts, HOST_PREFIX)):
            text = facts.find(prefix + chain_id)
            if text is not None:
                found[prefix + chain_id] = text
    ids = [key.removeprefix(FACT_PREFIX) for key in heads]
    return tuple(
        KeptChain(each, ChainHead.of_fact(each, heads[FACT_PREFIX + each]),
                  hosts.get(HOST_PREFIX + each))
        for each in ids
    )  # fmt: skip


def read_kept_chain(path: Path, files: FileSystem, facts: HeadFacts) -> ChainReport:
    """Return what the chain of a receipt file proves by the heads that are kept."""
    return check_lines(lambda: read_whole_lines(path, files), facts)


def check_lines(read: Callable[[], list[bytes]], facts: HeadFacts) -> ChainReport:
    """Return what the chain of the lines that ``read`` returns proves by the heads that are kept.

    They are read once more after the heads: a line is there before a commit raises a head to it.
    """
    head = check_chain(read()).head
    kept = kept_chains(facts, None if head is None else head.chain_id)
    return check_kept(read(), kept)
