"""The chain of a receipt file: each line names the hash of the one before it.

A line's last field is ``chain``: the chain's id, the line's number in it, from 1 on, and the hash
of the line before. The hash is the SHA-256 of that whole line, newline included, null for the first
line of a file that had none. A file that is put aside goes on in its successor. Lines of earlier
versions have no chain: one may begin after them, and binds the last of them.

There is no secret in it. Lines that were edited, reordered or removed are found, unless all later
ones were made again. A *head* finds those too, and an end that was cut off, when it is kept where
their writer cannot change it. It is kept in a store's metadata, by the commit with the line, or
elsewhere by a person who asked ``keeplast inspect`` for it. A keeper of heads knows the chains. To
it a file without a chain, or with another one, is as little the kept file as one without its end.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import InvalidError

FACT_PREFIX, HOST_PREFIX = "receipts/", "receipts-host/"
"""Under which a store keeps the head and the writer of each chain, by the chain's id."""
_HEAD = re.compile(r"([0-9a-f]{32}):([0-9]{1,18}):([0-9a-f]{64})")
PROBLEMS_MAX = 10
SHOWN_MAX = 3
"""Of the chains that are kept, those that a sentence names."""


class ChainLink(Struct, frozen=True):
    """What a line says of its place; ``previous`` is the hash of the line before, in hex."""

    chain_id: str
    number: int
    previous: str | None


class ChainHead(Struct, frozen=True):
    """A line of a chain, by its number and its hash; nothing in front of it can change."""

    chain_id: str
    number: int
    sha256: str

    def __str__(self) -> str:
        """Return it as one word, to be kept and given back."""
        return f"{self.chain_id}:{self.number}:{self.sha256}"

    def as_fact(self) -> tuple[str, str]:
        """Return the name of a store's fact and its text; of two heads the later one is greater."""
        return FACT_PREFIX + self.chain_id, f"{self.number:018d}:{self.sha256}"

    @classmethod
    def of_fact(cls, chain_id: str, text: str | None) -> ChainHead | None:
        """Return what a store keeps of a chain, None where that is nothing."""
        if not text:
            return None
        number, _, sha256 = text.partition(":")
        return cls.parse(f"{chain_id}:{number.lstrip('0') or '0'}:{sha256}")

    @classmethod
    def parse(cls, text: str) -> ChainHead:
        """Return what :meth:`__str__` wrote; InvalidError for any other text."""
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise InvalidError(
                "the head of a receipt chain is what keeplast inspect says of the file: "
                f"ID:NUMBER:SHA256. head={text}",
                code="K621",
            )
        return cls(found[1], int(found[2]), found[3])


class KeptChain(Struct, frozen=True):
    """What a store, or a decision log, knows of a chain, and the host that began to write it there.

    ``head`` is None where a line was written, and no commit has raised it; ``host`` is None where
    it was not written down.
    """

    chain_id: str
    head: ChainHead | None
    host: str | None = None

    def __str__(self) -> str:
        """Say whose it is, and how far it is known."""
        host = "an unnamed host" if self.host is None else f"host {self.host}"
        return f"{host}, to line {0 if self.head is None else self.head.number}"


def line_hash(line: bytes) -> str:
    """Return the hash of a whole line, newline included."""
    return hashlib.sha256(line).hexdigest()


def chained(line: bytes, link: ChainLink) -> bytes:
    """Return a receipt line with its link as the last field."""
    field = {"id": link.chain_id, "number": link.number, "previous": link.previous}
    text = json.dumps({"chain": field}, separators=(",", ":"))
    return line.removesuffix(b"}\n") + b"," + text[1:].encode() + b"\n"


def link_of(line: bytes) -> ChainLink | None:
    """Return a line's link, None for one without; InvalidError when it is not what was written."""
    try:
        found = json.loads(line)
        chain = found.get("chain") if isinstance(found, dict) else None
        if chain is None:
            return None
        previous = chain["previous"]
        link = ChainLink(
            str(chain["id"]), int(chain["number"]), None if previous is None else str(previous)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidError(
            f"a receipt's link cannot be read. problem={error}", code="K621"
        ) from error
    return link


def head_of(line: bytes) -> ChainHead | None:
    """Return the head that a line is, None for one without a link."""
    link = link_of(line)
    return None if link is None else ChainHead(link.chain_id, link.number, line_hash(line))


def next_link(last: bytes | None, new_id: str) -> ChainLink:
    """Return the link after the ``last`` line; a new chain where that has none, or is none."""
    if last is None:
        return ChainLink(new_id, 1, None)
    link = link_of(last)
    if link is None:
        return ChainLink(new_id, 1, line_hash(last))
    return ChainLink(link.chain_id, link.number + 1, line_hash(last))


class ChainReport(Struct, frozen=True):
    """What a receipt file's chain proves.

    ``unchained`` lines come before it; ``missing_before`` of it lie in files that were put aside.
    ``head`` is its last line, None without a chain. ``is_tail_proven`` says that a head that was
    kept elsewhere is in it: nothing up to that line was cut off or made again. ``chain`` is what
    was kept of this chain, ``others`` are the other ones whose heads were kept; nothing where no
    chains were given.
    """

    lines: int
    unchained: int
    missing_before: int
    head: ChainHead | None
    is_tail_proven: bool
    problems: tuple[str, ...]
    chain: KeptChain | None = None
    others: tuple[KeptChain, ...] = ()

    @property
    def sentence(self) -> str:
        """Say what is proven, and of whose lines."""
        found = self._proven
        if self.chain is not None and self.chain.host is not None:
            found += f"; written on host {self.chain.host}"
        if self.others and not self._is_strange:
            found += f"; not in it are the lines of {named_chains(self.others)}"
        return found

    @property
    def _is_strange(self) -> bool:
        """Say whether chains were kept, and this file has none of them."""
        return self.chain is None and bool(self.others)

    @property
    def _proven(self) -> str:
        if not self.lines:
            return "it has no lines"
        if self.head is None:
            return "its lines are not chained"
        if self._is_strange:
            return "its chain is none of those whose heads were kept"
        if self.problems:
            return "its chain is broken"
        before = f", {self.unchained} lines before it are not chained" if self.unchained else ""
        before += (
            f", {self.missing_before} earlier lines are elsewhere" if self.missing_before else ""
        )
        tail = "proven up to the head that was kept" if self.is_tail_proven else "tail not proven"
        return f"its chain is whole{before}, {tail}"


def check_chain(lines: Sequence[bytes], kept: ChainHead | None = None) -> ChainReport:
    """Check whole ``lines``, newlines included, and that ``kept`` is among them."""
    problems: list[str] = []
    unchained = missing = 0
    last: tuple[ChainLink, bytes] | None = None
    before: bytes | None = None
    is_proven = False
    for number, line in enumerate(lines, start=1):
        try:
            link = link_of(line)
        except InvalidError as error:
            problems.append(f"line {number}: {error}")
            before = line
            continue
        if link is None:
            unchained += last is None
            if last is not None:
                problems.append(f"line {number} has no link, and the one before it has")
        elif last is None:
            missing = link.number - 1
            expected = None if before is None else line_hash(before)
            if kept and (link.chain_id, link.number) == (kept.chain_id, kept.number + 1):
                is_proven = link.previous == kept.sha256
                if not is_proven:
                    problems.append(f"line {number} does not follow what was kept as head")
            if number > 1 and (link.previous != expected or link.number != 1):
                problems.append(f"line {number} does not follow the line before it")
        elif link.chain_id != last[0].chain_id or link.number != last[0].number + 1:
            problems.append(
                f"line {number} is number {link.number} of its chain, the line before it is "
                f"{last[0].number}: lines are missing, or in another order"
            )
        elif before is None or link.previous != line_hash(before):
            problems.append(f"line {number} follows another line: the one before it was changed")
        if link is not None:
            last = link, line
            if kept is not None and (link.chain_id, link.number) == (kept.chain_id, kept.number):
                is_proven = line_hash(line) == kept.sha256
                if not is_proven:
                    problems.append(f"line {number} is not the one that was kept as head")
        before = line
    head = None if last is None else head_of(last[1])
    if kept is not None and not is_proven and not any("kept as head" in each for each in problems):
        is_other = head is None or head.chain_id != kept.chain_id
        if head is not None and not is_other and kept.number <= missing:
            why = (
                f"the file begins after it, at number {missing + 1}; give the file that was put "
                "aside with it"
            )
        else:
            where = "another chain" if head is None or is_other else f"number {head.number}"
            why = f"the file ends at {where}; lines were cut off, or it is another file"
        problems.append(f"the head that was kept, number {kept.number}, is not there: {why}")
    return ChainReport(
        len(lines), unchained, missing, head, is_proven, tuple(problems[:PROBLEMS_MAX])
    )


def check_kept(lines: Sequence[bytes], kept: Sequence[KeptChain]) -> ChainReport:
    """Check whole ``lines``, newlines included, by all chains that a store knows.

    A file is of one of them. Where heads were kept, a file without lines, without a chain, or with
    an unknown chain is a problem. An emptied file looks like that, and so does one that was
    stripped of its links, or made again. Where no head was kept nothing can be said of the tail.
    """
    found = check_chain(lines)
    head = found.head
    chain = next((e for e in kept if head is not None and e.chain_id == head.chain_id), None)
    if chain is not None and chain.head is not None:
        found = check_chain(lines, chain.head)
    others = tuple(each for each in kept if each.head is not None and each is not chain)
    found = replace(found, chain=chain, others=others)
    if chain is not None or not others:
        return found
    if not lines:
        what = "the file has no lines: it was emptied, or is another one"
    elif head is None:
        what = "no line of the file is chained: their links were taken out, or it is another one"
    else:
        what = f"the file's chain, {head.chain_id}, is none of them: it was begun again, or is of "
        what += "another store"
    problem = f"heads are kept of the lines of {named_chains(others)}, and {what}"
    return replace(found, problems=(problem, *found.problems)[:PROBLEMS_MAX])


def named_chains(chains: Sequence[KeptChain]) -> str:
    """Return chains in words, the longest first."""
    by_length = sorted(chains, key=lambda e: 0 if e.head is None else e.head.number, reverse=True)
    shown = "; ".join(str(each) for each in by_length[:SHOWN_MAX])
    more = "" if len(chains) <= SHOWN_MAX else f"; and {len(chains) - SHOWN_MAX} more"
    count = "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
    return f"{count} ({shown}{more})"
