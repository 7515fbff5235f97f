"""The console's options: what is understood, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cli.frame.command import NEEDED
from keeplast.cli.frame.console import PORT_DEFAULT, console_address
from keeplast.cli.main import with_address
from keeplast.errors import InvalidError
from tests.unit.cli.conftest import Command


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9000", ("127.0.0.1", 9000)), ("0", ("127.0.0.1", 0)), (":81", ("127.0.0.1", 81)),
        ("box", ("box", PORT_DEFAULT)), ("box:1", ("box", 1)), ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", PORT_DEFAULT)), ("192.0.2.1", ("192.0.2.1", PORT_DEFAULT)),
    ],
)  # fmt: skip
def test_an_address_may_be_short(text: str, expected: tuple[str, int]) -> None:
    assert expected == console_address(text)


@pytest.mark.parametrize("text", ["box:x", "box:70000", "a b", "box:-1", "70000", "box:1:x"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="HOST:PORT"):
        console_address(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "d", "--console"], ["run", "d", "--console=127.0.0.1:9590"]),
        (["--console", "--once"], ["--console=127.0.0.1:9590", "--once"]),
        (["--console", "0"], ["--console", "0"]),
        (["--console=box", "d"], ["--console=box", "d"]),
        (["--console", "--", "d"], ["--console=127.0.0.1:9590", "--", "d"]),
        (["--", "--console"], ["--", "--console"]),
        ([], []),
    ],
)
def test_a_console_without_an_address_is_at_the_usual_one(
    given: list[str], expected: list[str]
) -> None:
    assert expected == with_address(given)


def test_a_bare_console_is_one(keeplast: Command, tmp_path: Path) -> None:
    for words in (("--once", "--console"), ("--console", "--once")):
        run = keeplast("run", tmp_path / "nowhere", *words)
        assert (2, True) == (run.code, "no such directory" in run.err), run.err


@pytest.mark.parametrize(
    "command",
    [("run", "sqlite:///nothing.db"),
     ("run", "kafka://b:9092", "--decisions", "sqlite:///nothing.db", "--storage",
      "local:/nothing")],
)  # fmt: skip
def test_actions_that_would_be_written_nowhere_are_refused(
    keeplast: Command, command: tuple[str, ...]
) -> None:
    run = keeplast(*command, "--console", "0", "--allow-actions")
    assert (2, True) == (run.code, "give --receipt FILE too" in run.err), run.err


def test_a_hosts_directory_is_shown_next_to_a_store_alone(
    keeplast: Command, data_dir: Path
) -> None:
    for place in (data_dir, "kafka://b:9092"):
        run = keeplast("console", place, "--data-dir", data_dir)
        assert (2, True) == (run.code, "it is one of a store" in run.err), run.err


@pytest.mark.parametrize(
    "option",
    [("--allow-actions",), ("--metrics-open",), ("--behind-proxy", "192.0.2.1"),
     ("--console-name", "box"), ("--console-key", "k.pem"), ("--console-token-file", "f"),
     ("--no-values",), ("--closed-topics", "*"), ("--search-seconds", "5"),
     ("--search-bytes", "1m")],
)  # fmt: skip
def test_options_of_a_console_that_is_not_there_are_refused(
    keeplast: Command, data_dir: Path, option: tuple[str, ...]
) -> None:
    run = keeplast("run", data_dir, "--once", *option, code=2)
    assert "--console" in run.err
    assert option[0] in run.err


def test_what_cannot_be_a_file_of_receipts_is_no_receipt_of_a_console(
    keeplast: Command, data_dir: Path, tmp_path: Path
) -> None:
    for place in (data_dir, f"sqlite:///{tmp_path / 'm.db'}"):
        for path in (tmp_path, tmp_path / "nowhere" / "receipt"):
            run = keeplast("console", place, "--receipt", path)
            assert (2, True) == (run.code, f"--receipt={path}" in run.err), run.err


@pytest.mark.parametrize("proxy", ["proxy.example", "192.0.2.0/24", "192.0.2.1:443"])
def test_a_proxy_is_named_by_its_address(keeplast: Command, data_dir: Path, proxy: str) -> None:
    run = keeplast("console", data_dir, "--listen", "127.0.0.1:0", "--behind-proxy", proxy)
    assert (2, True) == (run.code, f"--behind-proxy={proxy}" in run.err), run.err


def test_a_search_has_limits_that_make_sense(keeplast: Command, data_dir: Path) -> None:
    for option, value in (
        ("--search-seconds", "0"), ("--search-seconds", "51"), ("--search-bytes", "much"),
        ("--search-bytes", "0"),
    ):  # fmt: skip
        run = keeplast("console", data_dir, option, value)
        assert (2, True) == (run.code, option[2:] in run.err), run.err


def test_a_missing_directory_is_refused_before_a_wait(keeplast: Command, tmp_path: Path) -> None:
    run = keeplast("console", tmp_path / "nothing")
    assert run.code in (2, 4)
    assert "nothing" in run.err


def test_without_the_packages_the_extra_is_named(
    keeplast: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NEEDED, "console", ("the console needs", ("no_such_package",)))
    for arguments in (("console", data_dir), ("run", data_dir, "--console", "0")):
        run = keeplast(*arguments, code=2)
        assert "console" in run.err
        assert "no_such_package" in run.err


def test_a_run_with_a_console_does_the_same_and_ends(
    keeplast: Command, data_dir: Path, tmp_path: Path
) -> None:
    (data_dir / "keeplast.toml").write_text('[topic."t"]\n"cleanup.policy" = "compact"\n')
    log = tmp_path / "said.log"
    run = keeplast(
        "--log-file", log, "run", data_dir, "--once", "--runner", "local", "--cores", 1,
        "--console", "0", "--json", code=0,
    )  # fmt: skip
    assert 1 == run.document["rounds"]
    assert "console at http://127.0.0.1:" in run.err
    # The token is for the person who sits there, and for no file.
    assert "enter#" in run.err
    assert "enter#" not in log.read_text("utf-8")
