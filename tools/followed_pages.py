"""Follows the pages on live clusters and on stores: each line that they show, and what it prints.

    python tools/followed_pages.py live           fill the pages on live clusters; starts a broker
    python tools/followed_pages.py stores         fill the pages on stores
    python tools/followed_pages.py live --check   say which lines a page shows that are not printed

Tests compare in the same way. A step is a line of a ``console`` block that begins with ``$``. It is
run by ``bash`` as it stands, but for names that a page makes up: :class:`Followed` puts those of
this run in their place, and takes them out of what is printed. ``# exit code N`` at the end of a
line says how it ends, and what such a command writes to stderr counts as printed.

A line ``…`` stands for any lines that a page leaves out; a block with one is compared, and never
filled. What differs from run to run is masked before lines are compared: times, spans, sizes, ids,
process ids, ports, and how wide a column is. Everything else must be the same.

What has to happen at the broker meanwhile is a comment of the page, which readers do not see:
``<!-- broker: send TOPIC COUNT -->`` or ``<!-- broker: set TOPIC KEY=VALUE -->``.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from confluent_kafka import Producer  # noqa: E402 - after the path is set
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from typer.testing import CliRunner  # noqa: E402

from keeplast.cli.main import app  # noqa: E402
from keeplast.cluster.client import ClusterClient  # noqa: E402
from keeplast.cluster.metadata_cache import name_of, partition_status  # noqa: E402
from keeplast.cluster.metadata_log import fold_metadata  # noqa: E402
from tests.kafka.broker import HEAP, QUICK_START, Broker, broker_libs, tiered_broker  # noqa: E402
from tests.support.page_steps import COLUMNS, Done, PageShell  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

HOW_TO = ROOT / "docs" / "how-to"
LIVE_PAGES = (
    "name-a-place", "attach-check", "attach-first-round", "attach-watch", "attach-tombstones",
    "attach-as-a-service", "attach-pause-and-leave", "attach-recover",
)  # fmt: skip
"""In the order in which they are followed: each goes on with the cluster that the last one left."""
LONGEST = "move-to-object-storage"
STORE_PAGES = (
    LONGEST, "store-as-a-service", "store-cut-and-forget", "back-up-a-store",
)  # fmt: skip
"""Each begins with an empty directory."""
TOPICS = {"orders": (2, True), "payments": (1, False)}
"""How many partitions each has, and whether its retention has no end."""
SETTINGS = {
    "remote.storage.enable": "true", "cleanup.policy": "delete", "local.retention.bytes": "1",
    "local.retention.ms": "86400000", "segment.bytes": "1048576",
}  # fmt: skip
VERSION = "4.3.0"
HOST = "host-1"
SQLITE = """\
#!{python}
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute(sys.argv[2])
"""
"""The program of pages, where it is not installed."""
CONFIGS = "kafka.admin.ConfigCommand"
KEYS, DELETES, BATCH = 500, 1500, 50
WAIT_SECONDS = 120.0

PART = re.compile(r"^<!-- broker: (.+?) -->$|^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"\s+# exit code (\d+)$")
LEFT_OUT = "…"
SIZE = r"[\d,]+(?:\.\d+)? (?:B|KiB|MiB|GiB)\b"
MASKS = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?\b", "TIME"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"(?<![\w-])(?=[\w-]*\d)[\w-]{22}(?![\w-])", "ID"),
        (SIZE, "SIZE"),
        (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)*", "SPAN"),
        (r"\bpid=\d+", "PID"),
        (r"\b\d+\.\d+ ?%", "SHARE"),
        (r"[─━]{2,}", "━"),
        (r"\s+", " "),
    )
)


def masked(line: str) -> str:
    """Return what of a line is the same in every run."""
    for pattern, put in MASKS:
        line = pattern.sub(put, line)
    return line.strip()


def is_shown(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Say whether a page shows what was printed; ``…`` stands for any lines, also for none."""
    if not shown:
        return not printed
    if shown[0].strip() == LEFT_OUT:
        return any(is_shown(shown[1:], printed[at:]) for at in range(len(printed) + 1))
    same = bool(printed) and masked(shown[0]) == masked(printed[0])
    return same and is_shown(shown[1:], printed[1:])


class CalledShell(PageShell):
    """A shell in which ``keeplast`` is called in this process, where it stands alone in a line."""

    def run(self, command: str) -> Done:
        """Run one line to its end."""
        program, *arguments = shlex.split(command, comments=True)
        if program != "keeplast" or {"|", "&&", ">", "<"} & {*arguments}:
            return super().run(command)
        kept = {name for name in os.environ if name.startswith("KEEPLAST_")}
        variables = {"COLUMNS": COLUMNS, "NO_COLOR": "1", **dict.fromkeys(kept), **self.variables}
        with contextlib.chdir(self.root):
            done = CliRunner().invoke(app, arguments, env=variables)
        return Done(done.exit_code, done.stdout.replace(f"{self.root}/", ""), done.stderr)


class Followed:
    """Pages that are followed in one place, one after the other."""

    def __init__(
        self, shell: PageShell, names: Mapping[str, str],
        at_broker: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """``names`` are what pages make up, and what stands for it in this run."""
        self._shell = shell
        self._names = names
        self._at_broker = at_broker

    def follow(self, page: Path) -> tuple[str, list[str]]:
        """Return the page as it should be, and what differs from the page as it is.

        A block that shows nothing, or has ``…``, is left as it is.
        """
        differences: list[str] = []

        def renewed(found: re.Match[str]) -> str:
            if found[1] is not None:
                assert self._at_broker is not None, f"{page.name} needs a broker"
                self._at_broker(found[1])
                return found[0]
            steps = re.split(r"^(?=\$ )", found[2], flags=re.MULTILINE)
            return (
                f"```console\n{''.join(self._step(page, each, differences) for each in steps)}```"
            )

        return PART.sub(renewed, page.read_text("utf-8")), differences

    def _step(self, page: Path, text: str, differences: list[str]) -> str:
        if not text.startswith("$ "):
            return text
        line, *shown = text.splitlines()
        code = CODE.search(line)
        done = self._shell.run(self._real(line[2:]))
        output = done.out + done.err if code else done.out
        printed = [each.rstrip() for each in self._as_on_pages(output).splitlines()]
        if done.code != int(code[1] if code else 0):
            differences.append(f"{page.name}: {line}\nended with {done.code}\n{output}{done.err}")
            return text
        if shown and not is_shown(shown, printed):
            lines = difflib.unified_diff(shown, printed, "shown", "printed", lineterm="", n=1)
            differences.append(f"{page.name}: {line}\n" + "\n".join(lines))
        is_whole = bool(shown) and LEFT_OUT not in (each.strip() for each in shown)
        return "\n".join([line, *printed, ""]) if is_whole else text

    def _real(self, text: str) -> str:
        for made_up, real in self._names.items():
            text = text.replace(made_up, real)
        return text

    def _as_on_pages(self, text: str) -> str:
        for made_up, real in self._names.items():
            text = re.sub(rf"(?<!\w){re.escape(real)}(?!\w)", made_up, text)
        return text


@contextlib.contextmanager
def stores(root: Path) -> Iterator[Followed]:
    """Yield who follows the pages on stores below ``root``."""
    root.mkdir(exist_ok=True)
    (root / "src").symlink_to(ROOT / "src")
    programs = {"sqlite3": SQLITE.format(python=sys.executable)}
    yield Followed(CalledShell(root, programs=programs), {HOST: socket.gethostname()})


class LiveTopics:
    """Topics of a broker with a remote tier, with records that are the same in every run."""

    def __init__(self, broker: Broker) -> None:
        """Create them; ``payments`` with the retention that brokers give it."""
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._client = ClusterClient(broker.address)
        self._sent = dict.fromkeys(TOPICS, 0)
        # Of now: an active segment that is older than local retention is rolled, at any size.
        self._first_ms = int(time.time() * 1000)
        new = [
            NewTopic(name, count, 1, config=SETTINGS | ({"retention.ms": "-1"} if keeps else {}))
            for name, (count, keeps) in TOPICS.items()
        ]
        for answer in self._admin.create_topics(new).values():
            answer.result(WAIT_SECONDS)

    def do(self, words: str) -> None:
        """Do what a comment of a page says, and wait until the remote tier has it."""
        verb, topic, what = words.split()
        if verb == "send":
            self._send(topic, int(what))
        else:
            assert verb == "set", words
            self._set(topic, *what.split("=", 1))
        wait_until(
            lambda: self._is_copied(topic),
            words=lambda: "\n".join(self._broker.lines("ERROR", "WARN")),
        )

    def _send(self, topic: str, count: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._broker.address, "batch.num.messages": BATCH,
                "linger.ms": 1000, "enable.idempotence": True, "log_level": 0,
            }
        )  # fmt: skip
        for partition in range(TOPICS[topic][0]):
            for number in range(self._sent[topic], self._sent[topic] + count):
                key, value = b"customer-%d" % (number % KEYS), b"%06d" % number + b"v" * 1000
                # A batch is full or it is not sent: so all batches are the same in every run.
                producer.produce(
                    topic, partition=partition, key=key,
                    timestamp=self._first_ms + number,
                    value=None if number % DELETES == 0 else value,
                )  # fmt: skip
                if number % BATCH == BATCH - 1:
                    assert producer.flush(WAIT_SECONDS) == 0
        assert producer.flush(WAIT_SECONDS) == 0
        self._sent[topic] += count

    def _set(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for answer in self._admin.incremental_alter_configs([resource]).values():
            answer.result(WAIT_SECONDS)

    def _is_copied(self, topic: str) -> bool:
        """Say whether the remote tier has all but the active segments, and disks have no more."""
        facts = self._client.read_facts([topic])
        if facts.metadata_topic is None:
            return False
        metadata, (found,) = facts.metadata_topic, facts.topics
        folded = fold_metadata(self._client, metadata, range(metadata.partition_count))
        for number, log in enumerate(self._client.read_ranges(found)):
            known = folded.cache.partitions.get(name_of(found, number))
            status = partition_status(found, number, log, known)
            local = list((self._broker.data / f"{topic}-{number}").glob("*.log"))
            active = max(int(each.name[:20]) for each in local)
            if len(local) > 1 or status.copying.count or (status.remote_end or -1) != active - 1:
                return False
        return True


@contextlib.contextmanager
def live(root: Path, version: str = VERSION) -> Iterator[Followed]:
    """Yield who follows the pages on live clusters, with a broker of Kafka ``version``."""
    flags = " ".join([HEAP, *QUICK_START])
    tool = (
        f"#!/usr/bin/env bash\nexec java {flags} -cp '{broker_libs(version)}/*' {CONFIGS} \"$@\"\n"
    )
    with tiered_broker(version, root / "broker") as broker:
        topics = LiveTopics(broker)
        state = root / "state"
        state.mkdir()
        shell = CalledShell(root / "here", programs={"kafka-configs.sh": tool})
        shell.variables = {"XDG_CONFIG_HOME": str(root / "config")}
        names = {
            "localhost:9092": broker.address,
            "/mnt/tier": str(broker.root / "remote"),
            "/var/lib/keeplast": str(state),
            HOST: socket.gethostname(),
        }
        yield Followed(shell, names, topics.do)


def follow_all(followed: Followed, pages: Iterable[str], *, fills: bool = False) -> list[str]:
    """Return what pages show and is not printed; with ``fills`` write what is."""
    differences = []
    for name in pages:
        page = HOW_TO / f"{name}.md"
        text, found = followed.follow(page)
        differences += found
        if fills:
            page.write_text(text, "utf-8")
    return differences


def main() -> int:
    """Fill the pages, or say what they show and is not printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("live", "stores"))
    parser.add_argument("pages", nargs="*", help="these alone; default: all of the kind")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if they differ")
    asked = parser.parse_args()
    world, all_pages = (live, LIVE_PAGES) if asked.kind == "live" else (stores, STORE_PAGES)
    with (
        tempfile.TemporaryDirectory(prefix="keeplast-pages-") as scratch,
        world(Path(scratch)) as it,
    ):
        found = follow_all(it, asked.pages or all_pages, fills=not asked.check)
    print("\n\n".join(found) or "pages show what is printed")
    return 1 if found and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
