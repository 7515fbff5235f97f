"""The pages on a rolling clean and a first one are followed as far as no broker is needed.

The circle itself runs with three brokers in ``tests/kafka/test_rolling_clean.py``; here the
programs that belong to a broker do nothing, so that its other lines are held to what they say.
"""

from __future__ import annotations

import configparser
import filecmp
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keeplast import open_log
from keeplast.cli.main import app
from keeplast.config.place_properties import PROPERTIES
from tests.support.page_steps import ROOT, PageShell, Step, read_section, read_steps

PAGE_OF = {"no-metadata": "topic-policy.md", "to": "first-clean.md"}
"""Marks that are not on the page of the circle."""
DEPLOY = ROOT / "deploy" / "systemd"
SAMPLE = ROOT / "src" / "keeplast" / "samples" / "broker-4.3.0"
NOTHING = "#!/usr/bin/env bash\n"
OF_A_BROKER = ("sudo", "full-isr", "kafka-leader-election.sh")


@pytest.fixture
def host(tmp_path: Path) -> PageShell:
    """A broker's host: its stopped directory, its settings, room next to it."""
    shell = PageShell(tmp_path, programs=dict.fromkeys(OF_A_BROKER, NOTHING))
    data, work = tmp_path / "data", tmp_path / "spool"
    work.mkdir()
    subprocess.run(["cp", "-a", SAMPLE, data], check=True)
    # The sample's own topic was set never to be dirty enough, and another one rolls by its age.
    (data / "keeplast.toml").write_text(
        '[topic.orders]\n"min.cleanable.dirty.ratio" = 0.1\n'
        '[topic.__transaction_state]\n"min.cleanable.dirty.ratio" = 1.0\n'
    )
    config = tmp_path / "server.properties"
    config.write_text("node.id=1\nlog.cleaner.min.cleanable.ratio=0.3\n")
    shell.variables = {
        "DATA": str(data), "WORK": str(work), "CONFIG": str(config),
        "TOPIC": "orders", "BROKERS": "unused:9092",
    }  # fmt: skip
    return shell


def steps_of(mark: str) -> list[Step]:
    steps = read_steps(
        read_section(ROOT / "docs" / "how-to" / PAGE_OF.get(mark, "rolling-clean.md"), f"{mark}:")
    )
    assert steps, mark
    return steps


def final_state(partition: Path) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in open_log(partition).records()}


def test_the_settings_that_count_are_shown_with_their_source(host: PageShell) -> None:
    check, effective, plan = (host.run(step.command) for step in steps_of("settings"))
    assert (0, 0, 0) == (check.code, effective.code, plan.code), plan.err
    assert re.search(r"min\.cleanable\.dirty\.ratio +0\.1 +keeplast\.toml", effective.out)
    assert "log.cleaner.threads" in effective.out
    assert "orders-0: due for a round" in plan.out
    assert "defaults are assumed" not in plan.err


def test_the_circle_cleans_what_verify_then_holds_and_can_be_taken_back(host: PageShell) -> None:
    data, before = host.root / "data", host.root / "spool" / "before"
    host.follow(steps_of("circle"))
    assert (data / "cleaner-offset-checkpoint").read_text() != (
        before / "cleaner-offset-checkpoint"
    ).read_text()
    host.follow(steps_of("back"))
    compared = filecmp.dircmp(data, before)
    assert [] == [*compared.left_only, *compared.right_only, *compared.diff_files]
    partition = compared.subdirs["orders-0"]
    assert [] == [*partition.left_only, *partition.right_only, *partition.diff_files]


@pytest.mark.repeats(
    "tests/unit/cli/test_rolling_clean.py::"
    "test_the_circle_cleans_what_verify_then_holds_and_can_be_taken_back"
)
def test_a_circle_with_nothing_to_do_is_judged_by_its_own_copy_and_receipt(
    host: PageShell,
) -> None:
    steps = steps_of("circle")
    cleans = [step for step in steps if "keeplast clean" in step.command]
    (host.root / "spool" / "before").mkdir()
    host.follow(cleans)
    host.follow(steps)
    assert not (host.root / "spool" / "before" / "data").exists()


@pytest.mark.repeats("tests/simulation/test_kill.py::test_a_killed_process_loses_nothing")
def test_a_clean_that_was_killed_is_done_again_and_judged_by_the_first_copy(
    host: PageShell,
) -> None:
    data, before = host.root / "data", host.root / "spool" / "before"
    steps = steps_of("circle")
    verify = next(step for step in steps if "keeplast verify" in step.command)
    clean = next(step for step in steps if "keeplast clean" in step.command)
    subprocess.run(["cp", "-a", data, before], check=True)
    host.follow([clean])
    # As after SIGKILL behind the swap: the checkpoint was not written yet.
    subprocess.run(["cp", "-a", before / "cleaner-offset-checkpoint", data], check=True)
    host.follow([clean, verify])
    assert 2 == len((host.root / "spool" / "receipt.jsonl").read_text().splitlines())


def test_a_directory_without_the_metadata_log_needs_a_file(host: PageShell) -> None:
    other = host.root / "other"
    other.mkdir()
    subprocess.run(["cp", "-a", SAMPLE / "orders-0", other], check=True)
    (host.root / "keeplast.toml").write_text((DEPLOY / "keeplast.toml").read_text("utf-8"))
    host.variables["OTHER"] = str(other)
    without, given = (host.run(step.command) for step in steps_of("no-metadata"))
    assert (4, True) == (without.code, "cleanup.policy of the topic is unknown" in without.err)
    assert (0, True) == (given.code, "orders-0: " in given.out), given.err


def test_a_copy_is_put_back_and_lacks_what_the_page_says(host: PageShell) -> None:
    data, cleaned = host.root / "data", host.root / "spool" / "cleaned"
    before = final_state(data / "orders-0")
    size = sum(path.stat().st_size for path in (data / "orders-0").glob("*.log"))
    steps = steps_of("to")
    host.follow(steps[:1])
    missing = {path.name for path in data.iterdir()} - {path.name for path in cleaned.iterdir()}
    assert {
        "__cluster_metadata-0", "__transaction_state-0", "bootstrap.checkpoint", "keeplast.toml",
    } == missing  # fmt: skip
    refused = host.run('keeplast plan "$WORK/cleaned"')
    assert (4, True) == (refused.code, "cleanup.policy of the topic is unknown" in refused.err)
    host.follow(steps[1:])
    assert before == final_state(data / "orders-0")
    assert size > sum(path.stat().st_size for path in (data / "orders-0").glob("*.log"))


def test_the_settings_file_that_is_shown_has_no_mistake(host: PageShell) -> None:
    done = host.run(f"keeplast config --check {DEPLOY / 'keeplast.toml'}")
    assert (0, True) == (done.code, "no mistake" in done.out), done.err


@pytest.mark.parametrize("name", ["keeplast-clean.service", "keeplast-run.service"])
def test_a_unit_starts_what_there_is(name: str) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / name).read_text("utf-8"))
    program, command, *arguments = unit["Service"]["ExecStart"].split()
    assert "keeplast" == Path(program).name
    helped = CliRunner().invoke(app, [command, "--help-all"], env={"COLUMNS": "200"}).output
    properties = {f"--{each.name}" for each in PROPERTIES} if "--with" in helped else set()
    options = [word for word in arguments if word.startswith("--") and word not in properties]
    assert [] == [option for option in options if option not in helped]
    assert "143" == unit["Service"]["SuccessExitStatus"]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        (["", "", "never asked"], 0),
        (["", "orders 1", "", ""], 0),
        (["fails", "", ""], 0),
        (["", "orders 1", "", "orders 1"], 1),
    ],
)
def test_in_sync_means_twice_in_a_row(answers: list[str], code: int, tmp_path: Path) -> None:
    tool = """\
#!/usr/bin/env bash
read -r answer < answers || true
sed -i 1d answers
[[ $answer == fails ]] && exit 1
echo -n "$answer"
"""
    shell = PageShell(tmp_path, programs={"kafka-topics.sh": tool})
    (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    shell.variables = {"FULL_ISR_PAUSE": "0", "FULL_ISR_TRIES": "4"}
    done = shell.run(f"{DEPLOY / 'full-isr.sh'} unused:9092")
    assert code == done.code, done.err
    assert ("never asked" in answers) == ("never asked" in (tmp_path / "answers").read_text())
