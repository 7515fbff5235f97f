"""``keeplast inspect``: look at a log, at any file of it, or at a file of receipts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.key_files import KEY_WORDS, parse_key
from keeplast.cli.frame.options import Json, ObjectOptions
from keeplast.cli.frame.values import place, recipe_for

if TYPE_CHECKING:
    from keeplast.log.files import FileSystem

LIMIT_DEFAULT = 20


@command(
    first=("records", "from_offset", "limit"),
    example="keeplast inspect DATA_DIR/orders-0 --records",
)
def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A partition directory, a segment, any file next to it, or a file of receipts, as "
            "clean --receipt and DATA_DIR/keeplast-receipts; by URL too.",
            show_default=False,
            parser=place,
        ),
    ],
    records: Annotated[
        bool, typer.Option("--records", help="Show records instead of batches.")
    ] = False,
    from_offset: Annotated[
        int, typer.Option("--from-offset", metavar="OFFSET", min=0, help="Show from here on.")
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help=f"Batches, records or entries to show. Default: {LIMIT_DEFAULT}, all receipts.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help=f"Show the records of this key only: {KEY_WORDS}. keeplast explain says what "
            "becomes of them.",
        ),
    ] = None,
    object_options: ObjectOptions = (),
    as_json: Json = False,
) -> Result:
    """Show segments, batches, records and whatever is wrong with them; or the rounds of receipts.

    Everything is read to find problems, whatever is shown. Nothing is changed or locked; a log that
    a broker is writing may end in a batch that is not finished yet.

    A file of receipts is recognized by its content. It has each round's clock and range, what was
    read and written, and what went and why, with the verdict that verify --note left. Its lines
    that were changed, moved or removed are named (exit 1). Only a head that was kept elsewhere
    (verify --receipt-head) shows whether some were cut off its end.
    """
    from keeplast.cli.frame.command import CORRUPT, DONE
    from keeplast.cli.show.log import METADATA_SNAPSHOT, view_partition, view_segment
    from keeplast.cli.show.output import print_result, screen_width
    from keeplast.errors import InvalidError
    from keeplast.format.filename import LOG, parse_segment_file
    from keeplast.inspect.log_scan import RowSample

    path = path.absolute()
    files = recipe_for((path,), object_options).open()
    if not files.exists(path):
        raise InvalidError(f"no such file or directory; correct the path. path={path}", code="K110")
    wanted = None if key is None else parse_key(key)
    count = LIMIT_DEFAULT if limit is None else limit
    sample = RowSample(records or key is not None, from_offset, count, key=wanted)
    parsed = parse_segment_file(path.name)
    if files.is_directory(path):
        view = view_partition(path, files, sample)
    elif (parsed and parsed.kind == LOG) or METADATA_SNAPSHOT.fullmatch(path.name):
        view = view_segment(path, files, sample)
    elif key is not None:
        raise InvalidError(
            f"--key is about records; name a partition or a segment. path={path}", code="K103"
        )
    else:
        from keeplast.cli.show.file import is_receipts

        if is_receipts(path, files):
            return _receipts_inspected(path, files, limit, as_json=as_json)
        return _file_inspected(path, files, count, as_json=as_json)
    if not as_json:
        print_result(*view.render(screen_width()))
        if key is not None and not sample.rows and count:
            print_result(f"no record with this key from offset {from_offset} on")
    return CORRUPT if view.findings.is_corrupt else DONE, view


def _file_inspected(path: Path, files: FileSystem, limit: int, *, as_json: bool) -> Result:
    from keeplast.cli.frame.command import CORRUPT, DONE
    from keeplast.cli.show.file import view_file
    from keeplast.cli.show.output import print_result, say

    view = view_file(path, files)
    count = len(view.rows)
    if not as_json:
        print_result(f"{view.kind}, {count} entr{'y' if count == 1 else 'ies'}", view.table(limit))
    if view.problem is not None:
        say(f"wrong {view.kind}: {view.problem}", kind="error")
    document = {
        "path": path,
        "kind": view.kind,
        "entries": view.entries(limit),
        "truncated": count > limit,
        "problems": []
        if view.problem is None
        else [{"severity": "corrupt", "path": path, "problem": view.problem}],
    }
    return CORRUPT if view.problem else DONE, document


def _receipts_inspected(
    path: Path, files: FileSystem, limit: int | None, *, as_json: bool
) -> Result:
    from keeplast.cli.frame.command import CHECK_FAILED, DONE
    from keeplast.cli.show.file import receipts_table
    from keeplast.cli.show.output import print_result, say
    from keeplast.survey.receipt_book import read_chain, read_entries

    receipts, chain = read_entries(path, files), read_chain(path, files)
    shown = receipts[:limit]
    if not as_json:
        head = "" if chain.head is None else f"; head {chain.head}"
        print_result(receipts_table(shown), "", f"{chain.sentence}{head}")
    for problem in chain.problems:
        say(f"its chain is broken: {problem}. path={path}", kind="error")
    document = {
        "path": path,
        "kind": "receipts",
        "receipts": [each.document for each in shown],
        "truncated": len(shown) < len(receipts),
        "chain": {
            "head": None if chain.head is None else str(chain.head),
            "unchained": chain.unchained,
            "missing_before": chain.missing_before,
            "problems": chain.problems,
        },
    }
    return CHECK_FAILED if chain.problems else DONE, document
