"""``make prove-security``, ``make prove-again``: a plugin of pytest that runs what proves it, and counts.

The tests record figures: how many cases one tries, and what must be 0 in the end, such as rows lost. The
last line is a JSON object; the exit code is 0 only if nothing failed and what must be 0 is there, and is 0.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass

import pytest

_SHOWN = re.compile(r"([A-Z]\d+(?:, [A-Z]\d+)*)(?:[:.]|$)", re.MULTILINE)


@dataclass(frozen=True)
class Proof:
    """What is proved, by the tests that are chosen."""

    zero: tuple[str, ...]
    """What tests count of their own that has to be there, and 0."""
    more: tuple[str, ...] = ()
    """What else they count."""
    lines: frozenset[str] = frozenset()
    """Lines of which a test shows one; empty: every test."""

    def chooses(self, docstring: str | None) -> bool:
        """Whether a docstring begins with one of the lines, among others: ``S3, S4: ...``."""
        lines = _SHOWN.match(docstring or "")
        return not self.lines or (lines is not None and not self.lines.isdisjoint(lines[1].split(", ")))


PROOFS = {
    "security": Proof(
        zero=("canary_found", "rotation_failed_calls"),
        lines=frozenset({"S1", "S2", "S3", "S4", "S5", "S6", "U5"}),
    ),
    "again": Proof(zero=("rows_lost", "rows_doubled"), more=("cells",)),
}


class Counts:
    """What the reports of all tests say; itself a plugin."""

    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.cases = self.failed = self.skipped = 0
        self.recorded: Counter[str] = Counter()

    def add(self, report: pytest.TestReport) -> None:
        """A test counts once, with its call, or with what kept it from being called; one that tries many
        cases records how many (``cases``)."""
        if report.when != "call" and report.passed:
            return
        self.cases += report.when == "call"
        self.failed += report.failed
        self.skipped += report.skipped
        for name, value in report.user_properties:
            if name in ("cases", *self.proof.more, *self.proof.zero):
                assert isinstance(value, int)
                self.recorded[name] += value

    def figures(self) -> dict[str, int]:
        """The figures by name, without those that no test has recorded."""
        own = (*self.proof.more, *self.proof.zero)
        cases = self.cases + self.recorded["cases"]
        figures = {name: self.recorded[name] for name in own if name in self.recorded}
        return {"cases": cases, "failed": self.failed, "skipped": self.skipped, **figures}

    def hold(self) -> bool:
        """Whether they prove anything."""
        return not self.failed and all(self.recorded.get(name) == 0 for name in self.proof.zero)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep those that show one of the lines."""
        chosen = [
            item
            for item in items
            if isinstance(item, pytest.Function) and self.proof.chooses(item.function.__doc__)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read has tests that show nothing."""
        self.failed += report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput") and not self.hold():
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if not hasattr(config, "workerinput"):
            print(json.dumps(self.figures()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prove", choices=sorted(PROOFS), default="security", help="what is proved")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Counts(PROOFS[config.getoption("--prove")]))
