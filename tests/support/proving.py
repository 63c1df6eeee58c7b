"""``make prove-security``: a plugin of pytest that runs what shows lines S1 to S6 and U5, and counts.

A test says in its docstring which lines it shows. One that tries many cases records how many (``cases``);
the test of canaries records what it has found, that of the rotation the calls that failed. The last line is a
JSON object; the exit code is 0 only if nothing failed and both of these are there, and are 0.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

LINES = frozenset({"S1", "S2", "S3", "S4", "S5", "S6", "U5"})
ZERO = ("canary_found", "rotation_failed_calls")
"""What tests count of their own that has to be there, and 0."""

_SHOWN = re.compile(r"([A-Z]\d+(?:, [A-Z]\d+)*)(?:[:.]|$)", re.MULTILINE)


def shows(docstring: str | None) -> bool:
    """Whether a docstring begins with one of the lines, among others: ``S3, S4: ...``."""
    found = _SHOWN.match(docstring or "")
    return found is not None and not LINES.isdisjoint(found[1].split(", "))


class Counts:
    """What the reports of all tests say."""

    def __init__(self) -> None:
        self.cases = self.failed = self.skipped = 0
        self.recorded: Counter[str] = Counter()

    def add(self, report: pytest.TestReport) -> None:
        """A test counts once, with its call, or with what kept it from being called."""
        if report.when != "call" and report.passed:
            return
        self.cases += report.when == "call"
        self.failed += report.failed
        self.skipped += report.skipped
        for name, value in report.user_properties:
            if name == "cases" or name in ZERO:
                assert isinstance(value, int)
                self.recorded[name] += value

    def told(self) -> dict[str, int]:
        """The figures; one that no test has recorded is missing."""
        own = {name: self.recorded[name] for name in ZERO if name in self.recorded}
        cases = self.cases + self.recorded["cases"]
        return {"cases": cases, "failed": self.failed, "skipped": self.skipped, **own}

    def hold(self) -> bool:
        """Whether they prove anything."""
        return not self.failed and all(self.recorded.get(name) == 0 for name in ZERO)


_counts = Counts()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those that show one of the lines."""
    chosen = [item for item in items if isinstance(item, pytest.Function) and shows(item.function.__doc__)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be read has tests that show nothing."""
    _counts.failed += report.failed


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _counts.add(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput") and not _counts.hold():
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        print(json.dumps(_counts.told()))
