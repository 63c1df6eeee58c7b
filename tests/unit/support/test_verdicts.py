"""What a run says of tests that fail: that they do, that they are flaky, or that the machine stood still."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.clock import PauseClock
from support.repository import TESTS
from support.verdicts import MOST_KNOWN, Failure, Record, known_flakes

CONFTEST = """
import time
import pytest
from pathlib import Path
from support import verdicts
from support.clock import PauseClock

def pytest_addoption(parser):
    verdicts.add_options(parser)

def pytest_configure(config):
    verdicts.configure(config)

@pytest.fixture
def first():
    "Whether the test runs for the first time."
    def of(name):
        with Path(f"ran-{name}").open("a+") as file:
            return file.write(".") == file.tell()
    return of

@pytest.fixture
def standing(monkeypatch):
    "A machine that stands still for a second."
    monkeypatch.setattr(PauseClock, "longest_since", lambda clock, began: 1.0)
"""
TODAY = datetime.date(2026, 11, 27)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow(reason)\n  timed(allowance_s)\n")
    return tmp_path


def run(folder: Path, tests: str, *options: str, **limits: float) -> tuple[int, str]:
    """The exit code and the output of a run with ``--verdicts``, and with other limits of the plugin's."""
    (folder / "test_it.py").write_text(f"import pytest\n{tests}")
    with (folder / "conftest.py").open("a") as conftest:
        conftest.writelines(f"verdicts.{name} = {limit}\n" for name, limit in limits.items())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--verdicts", *options],
        cwd=folder, env=environment | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


FAILING = """
def test_passes(): pass

def test_flaky(first): assert not first("flaky"), "a row is lost"

def test_fails(): assert False

@pytest.fixture
def broken(): raise ValueError

def test_without_its_fixture(broken): pass

"""
STOPPED = """
@pytest.mark.timed(0.5)
def test_stopped(first, request):
    if first("stopped"):
        request.getfixturevalue("standing")
        assert False

@pytest.mark.timed(0.5)
def test_stopped_and_wrong(first, request):
    if first("wrong"):
        request.getfixturevalue("standing")
    assert False

@pytest.mark.timed(0.5)
def test_always_stopped(first, standing):
    first("always")
    assert False

def test_untimed(standing): assert False
"""


def judged(output: str) -> list[tuple[str, str]]:
    """The verdicts in a run's output, each with the name of the test."""
    pattern = r"^(flaky|failed|the machine stood still): test_it.py::test_(\w+)"
    return sorted(re.findall(pattern, output, re.MULTILINE))


def test_a_failed_test_is_run_again_alone_and_judged(folder: Path) -> None:
    code, output = run(folder, FAILING, "-n", "1")
    assert code == 1
    assert judged(output) == [("failed", "fails"), ("failed", "without_its_fixture"), ("flaky", "flaky")]
    assert (folder / "ran-flaky").read_text() == ".."


def test_a_failure_of_a_test_that_asserts_on_time_is_the_machines_while_it_stands_still(folder: Path) -> None:
    code, output = run(folder, STOPPED)
    assert code == 1
    assert judged(output) == [
        ("failed", "stopped_and_wrong"),
        ("failed", "untimed"),
        ("the machine stood still", "always_stopped"),
        ("the machine stood still", "stopped"),
    ]
    ran = {file.name: len(file.read_text()) for file in folder.glob("ran-*")}
    assert ran == {"ran-stopped": 2, "ran-wrong": 2, "ran-always": 4}


LONG = """
import time

def test_flaky(first): assert not first("flaky"), "a row is lost"

@pytest.fixture(scope="module")
def shared(): time.sleep(0.2)

def test_that_sets_up_for_others(shared): pass

def test_long(): time.sleep(0.2)

@pytest.mark.slow("it has to be")
def test_slow(): time.sleep(0.2)
"""


def test_a_run_passes_with_a_flaky_test_and_names_it_and_what_takes_too_long(folder: Path) -> None:
    code, output = run(folder, LONG, LONG_S=0.1)
    assert code == 0
    assert "AssertionError: a row is lost" in output.partition("= verdicts =")[2]
    assert re.search(r"3 passed, 1 flaky in", output)
    assert "a row is lost" in (folder / "artifacts/failures/test_it.py-test_flaky/call.txt").read_text()
    assert re.findall(r"longer than 0.1 s, and not marked slow: (\S+)", output) == ["test_it.py::test_long"]


def test_a_run_with_too_many_flaky_tests_fails(folder: Path) -> None:
    code, output = run(folder, 'def test_flaky(first): assert not first("flaky")', MOST_FLAKY=0)
    assert code == 1
    assert "flaky: test_it.py::test_flaky" in output


def test_a_run_that_skips_too_much_fails(folder: Path) -> None:
    code, output = run(
        folder, 'def test_a(): pytest.skip("needs helm")\ndef test_b(): pass', "--most-skipped=0"
    )
    assert code == 1
    assert "failed: 1 tests are skipped, 0 may be" in output


def test_an_overdue_entry_fails_every_run(folder: Path) -> None:
    (folder / "tests").mkdir()
    (folder / "tests/flaky.toml").write_text(
        "[[flaky]]\ntest = 'test_it.py::test_a'\ncause = '?'\nsince = 2026-01-01\nreview_by = 2026-01-08\n"
    )
    code, output = run(folder, "def test_a(): pass\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_a was to be looked at by 2026-01-08" in output


def entry(number: int = 0, days: int = 7) -> str:
    ends = TODAY + datetime.timedelta(days=days)
    return f"[[flaky]]\ntest = 't{number}'\ncause = 'a race'\nsince = {TODAY}\nreview_by = {ends}\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (entry(days=15), "more than 14 days"),
        ("".join(entry(n) for n in range(MOST_KNOWN + 1)), "11 tests are listed"),
        (entry(days=-1), "was to be looked at"),
    ],
)
def test_the_list_of_flaky_tests_stays_short_and_young(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        known_flakes(text, TODAY)


def test_the_list_names_tests_and_causes() -> None:
    assert known_flakes("", TODAY) == {}
    assert known_flakes(entry(), TODAY)["t0"].cause == "a race"
    with pytest.raises(TypeError, match="unexpected keyword"):
        known_flakes(entry().replace("cause", "why"), TODAY)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record(
        3, failed={"t": Failure("lost", 1.5, 0.5, "artifacts/failures/t")}, own_s={"t": 6.0, "u": 1}
    )
    record.skipped["needs helm"] = 2
    record.write(tmp_path / "record")
    assert Record.read(tmp_path / "record") == record
    assert record.too_long() == ["t"]
    assert record.failed["t"].by_the_machine


def test_the_clock_knows_the_longest_pause_since_a_moment() -> None:
    clock = PauseClock()
    for ended, pause_s in [(1.0, 3.0), (2.0, 0.5), (3.0, 0.05), (4.0, 0.7)]:
        clock.note(ended, pause_s)
    assert clock.longest_since(2.0) == 0.7
    assert clock.longest_since(0.0) == 3.0
    assert clock.longest_since(4.5) == 0.0
