"""The loop over many brokers runs as its page has it, with stand-ins for ssh, sudo and Kafka."""

from pathlib import Path

import pytest

from tests.support.page_steps import ROOT, PageShell, read_section

PAGE = ROOT / "docs" / "how-to" / "many-brokers.md"
NOTED = '#!/usr/bin/env bash\necho "$(basename "$0") $*" >> calls\n'
CLEAN = (
    'keeplast clean "$DATA" --config min.cleanable.dirty.ratio=0.1 --receipt $WORK/receipt.jsonl'
)
TURN = """full-isr kafka-1:9092,kafka-2:9092,kafka-3:9092
ssh -n kafka-1 clean-this-broker
sudo systemctl stop kafka
sudo systemctl start keeplast-clean
"""
PREPARED = f"""cp -a {ROOT}/src/keeplast/samples/broker-4.3.0 data
mkdir spool
echo node.id=1 > server.properties
printf 'DATA=data\\nCONFIG=server.properties\\nWORK=spool\\n' > environment
printf 'kafka-1\\nkafka-2\\n' > hosts.txt
clean-brokers hosts.txt"""


@pytest.mark.parametrize(
    ("cleaner", "code", "rest"),
    [
        (CLEAN, 0, "sudo systemctl start kafka\nscp -q kafka-1:"),
        # It loses records that win: the broker stays stopped.
        (f"{CLEAN}; rm data/orders-0/*.log", 1, ""),
        # It fails: the rest is as it was, so that the broker starts, and the loop ends.
        ("touch $WORK/receipt.jsonl; exit 3", 3, "sudo systemctl start kafka\n"),
    ],
)
def test_a_host_is_stopped_cleaned_and_started_and_a_failure_ends_the_loop(
    tmp_path: Path, cleaner: str, code: int, rest: str
) -> None:
    own = {
        name: read_section(PAGE, f"{mark}:").partition("```bash\n")[2].partition("```")[0]
        for name, mark in (("clean-brokers", "loop"), ("clean-this-broker", "host"))
    }
    shell = PageShell(
        tmp_path,
        programs={
            **own,
            # The units of a broker's host: one stops and starts nothing, one cleans.
            "sudo": f"{NOTED}[[ $* == *keeplast-clean* ]] || exit 0\n{cleaner}",
            "ssh": f"{NOTED}shift 2\nexec $*\n", "scp": f'{NOTED}cp "${{2#*:}}" "$3"\n',
            "full-isr": NOTED, "kafka-leader-election.sh": NOTED,
        },
    )  # fmt: skip
    shell.variables = {"ENVIRONMENT": "./environment", "WORK": "spool"}
    done = shell.run(PREPARED)
    calls, is_whole = (tmp_path / "calls").read_text(), code == 0
    assert (code, TURN + rest) == (done.code, calls[: len(TURN + rest)]), done.err
    # Of two hosts the second has its turn after the first, or none; one that is done has no other.
    assert (code != 1, is_whole, is_whole, is_whole) == (
        "start kafka\n" in calls, "ssh -n kafka-2" in calls, "kafka-leader-election" in calls,
        (tmp_path / "receipts" / "kafka-1.done").exists(),
    )  # fmt: skip
    again = "rm calls; clean-brokers hosts.txt; cat calls; cat receipts/kafka-1.jsonl"
    assert code or ("ssh" not in (seen := shell.run(again).out) and '"orders"' in seen)
