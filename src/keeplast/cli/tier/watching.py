"""What a console is shown of a store: its metadata, read again and again, never its objects."""

from __future__ import annotations

from pathlib import Path

from keeplast.cli.tier.options import StoreCall
from keeplast.clock import Clock
from keeplast.log.files import LocalFiles
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.receipt_shelf import ReceiptShelf


def store_watcher(
    call: StoreCall, broker_config: Path | None, clock: Clock, receipt: Path | None = None
) -> Watcher:
    """Return what looks at the chosen partitions of a store; each look opens it and closes it.

    ``receipt`` is the file that a loop appends its receipts to.
    """
    files = LocalFiles()

    def look() -> Looked:
        with call.opened(broker_config=broker_config) as opened:
            found = [each for each in opened.partitions() if call.scope.includes(each)]
            given_up = [each for each in opened.forgotten() if call.scope.includes(each)]
            return Looked(
                None, tuple(opened.status(each) for each in found), tuple(given_up), clock.now_ms()
            )

    return Watcher(call.shown, look, clock, files, ReceiptShelf(files, receipt))
