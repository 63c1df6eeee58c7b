"""What ``make prove-security`` and ``make prove-again`` run and count."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from support.proving import PROOFS, Counts
from support.repository import TESTS


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("S3: nobody.", True),
        ("S5", True),
        ("U3, S1: and so on.", True),
        ("U5, S3", True),
        ("U3: rows.", False),
        ("S3 is a store of objects.", False),
        ("A store, of S3: or another.", False),
        ("", False),
        (None, False),
    ],
)
def test_a_test_says_first_what_it_shows(docstring: str | None, shown: bool) -> None:
    assert PROOFS["security"].chooses(docstring) is shown
    assert PROOFS["again"].chooses(docstring)


def report(
    outcome: Literal["passed", "failed", "skipped"], when: Literal["setup", "call"] = "call", **figures: Any
) -> pytest.TestReport:
    return pytest.TestReport("t", ("t", 0, "t"), {}, outcome, None, when, user_properties=figures.items())


def test_what_was_not_counted_is_not_proved() -> None:
    counts = Counts(PROOFS["security"])
    for one in (report("passed", "setup"), report("passed", cases=700), report("passed", canary_found=0)):
        counts.add(one)
    assert not counts.hold()
    counts.add(report("passed", rotation_failed_calls=0, rotation_calls=90))
    assert counts.hold()
    assert counts.figures() == {
        "cases": 703,
        "failed": 0,
        "skipped": 0,
        "canary_found": 0,
        "rotation_failed_calls": 0,
    }


@pytest.mark.parametrize(
    "bad", [report("failed"), report("failed", "setup"), report("passed", canary_found=1)]
)
def test_one_failed_test_disproves_a_guarantee(bad: pytest.TestReport) -> None:
    counts = Counts(PROOFS["security"])
    counts.add(report("passed", canary_found=0, rotation_failed_calls=0))
    counts.add(bad)
    assert not counts.hold()


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("import nothing_of_that_name\n")
    program = [sys.executable, "-m", "pytest", "-q", "-p", "support.proving", "-c", os.devnull, str(broken)]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(program, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=120)
    assert ended.returncode != 0
    assert json.loads(ended.stdout.splitlines()[-1])["failed"] == 1
