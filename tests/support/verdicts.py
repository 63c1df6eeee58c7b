"""A plugin of pytest: verdicts on tests that failed, and a record of the run.

``--verdicts``: what failed is run once more when everything else is over, alone, in a process of its own.
What fails again has failed. What passes is *flaky*: it is named in the summary with its first traceback,
and the run passes with up to :data:`MOST_FLAKY` of them. A test marked ``timed(allowance_s)`` asserts on
time. Where *the machine stood still* for longer than it allows, that is the verdict, and the test is run
alone until the machine does not, at most :data:`REPEATS` times. Known flaky tests are listed in
``tests/flaky.toml``; they are run, and count, like others.

``--most-skipped N`` fails a run in which more tests are skipped: what is not run shows nothing.
``--record FILE`` writes what happened as JSON.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from support import evidence
from support.clock import PauseClock

KNOWN = Path("tests", "flaky.toml")
MOST_FLAKY = 5
MOST_KNOWN = 10
REVIEW_DAYS = 14
MOST_REPEATED = 20
"""More failures than this have a common cause: nothing is run again."""
REPEATS = 3
LONG_S = 5.0
"""Of a test's own time. One that takes longer is to be marked ``slow``."""
MOST_TIMED_ALONE = 5
ALONE_TIMEOUT_S = 1800

Verdict = Literal["failed", "flaky", "the machine stood still"]


class Failure(msgspec.Struct):
    """Of one test; the first of its reports that failed."""

    traceback: str
    paused_s: float = 0.0
    """The longest pause of its process while it ran."""
    allowance_s: float | None = None
    """What a test that asserts on time allows."""
    evidence: str | None = None
    """The folder that it left."""

    @property
    def by_the_machine(self) -> bool:
        return self.allowance_s is not None and self.paused_s > self.allowance_s


class Record(msgspec.Struct):
    """The outcome of a run."""

    passed: int = 0
    skipped: dict[str, int] = {}
    """How many tests, by reason."""
    failed: dict[str, Failure] = {}
    own_s: dict[str, float] = {}
    """How long each test took that is not marked slow, in seconds, less what it has set up for others too."""

    def add(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if "slow" not in report.keywords and report.when != "teardown":  # which ends what is shared as well
            own = report.duration - properties.get("shared_s", 0.0)
            self.own_s[report.nodeid] = self.own_s.get(report.nodeid, 0.0) + own
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        elif report.failed:
            known = {name: properties.get(name) for name in ("allowance_s", "evidence")}
            self.failed.setdefault(
                report.nodeid, Failure(report.longreprtext, properties.get("paused_s", 0.0), **known)
            )
        elif report.when == "call":
            self.passed += 1

    def write(self, file: Path) -> None:
        file.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, file: Path) -> Record:
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def too_long(self) -> list[str]:
        """The tests that take too long for what is not marked slow, the longest first."""
        tests = (test for test, took in self.own_s.items() if took > LONG_S)
        return sorted(tests, key=self.own_s.__getitem__, reverse=True)


@dataclass(frozen=True)
class KnownFlake:
    """An entry of ``flaky.toml``."""

    test: str
    cause: str
    since: datetime.date
    review_by: datetime.date


def known_flakes(text: str, today: datetime.date) -> dict[str, KnownFlake]:
    """The entries of ``flaky.toml`` by test; :class:`ValueError` if one is overdue, or promises too much."""
    entries = [KnownFlake(**entry) for entry in tomllib.loads(text).get("flaky", [])]
    if len(entries) > MOST_KNOWN:
        raise ValueError(f"{len(entries)} tests are listed as flaky, {MOST_KNOWN} may be: mend some")
    for entry in entries:
        if entry.review_by < today:
            raise ValueError(
                f"{entry.test} was to be looked at by {entry.review_by}: mend it, or say why not"
            )
        if entry.review_by - entry.since > datetime.timedelta(days=REVIEW_DAYS):
            raise ValueError(f"{entry.test}: review_by is more than {REVIEW_DAYS} days after since")
    return {entry.test: entry for entry in entries}


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("verdicts")
    group.addoption("--verdicts", action="store_true", help="run what failed once more, alone, at the end")
    group.addoption("--most-skipped", type=int, metavar="N", help="fail if more tests are skipped")
    group.addoption("--record", type=Path, metavar="FILE", help="write what happened as JSON")


def configure(config: pytest.Config) -> None:
    """Registers the plugins of this process: what runs tests measures, what receives the reports judges."""
    if not config.getoption("collectonly"):
        config.pluginmanager.register(_Measuring(), "verdicts-measuring")
    if not hasattr(config, "workerinput"):
        file = config.rootpath / KNOWN
        try:
            today = datetime.datetime.now(datetime.UTC).date()
            known = known_flakes(file.read_text() if file.exists() else "", today)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{KNOWN}: {error}") from error
        config.pluginmanager.register(_Judging(config, known), "verdicts-judging")


class _Measuring:
    """Where tests run: adds to each report what no other process can know."""

    def __init__(self) -> None:
        self._clock = PauseClock()
        self._clock.start()
        self._began = self._shared_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared_s += time.monotonic() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._shared_s:
            report.user_properties = [*report.user_properties, ("shared_s", self._shared_s)]
            self._shared_s = 0.0
        if report.failed:
            report.user_properties = [*report.user_properties, *self._of_failure(item, report)]
        return report

    def _of_failure(self, item: pytest.Item, report: pytest.TestReport) -> list[tuple[str, object]]:
        properties: list[tuple[str, object]] = [("paused_s", self._clock.longest_since(self._began))]
        if timed := item.get_closest_marker("timed"):
            properties.append(("allowance_s", timed.args[0]))
        if item.config.getoption("verdicts"):
            folder = evidence.keep(item, report, item.config.rootpath / evidence.FAILURES)
            properties.append(("evidence", folder and str(folder.relative_to(item.config.rootpath))))
        return properties


class _Judging:
    """Where the reports arrive."""

    def __init__(self, config: pytest.Config, known: Mapping[str, KnownFlake]) -> None:
        self._known = known
        self._record = Record()
        self._file: Path | None = config.getoption("record")
        self._judges = config.getoption("verdicts")
        self._lines: list[tuple[str, str]] = []
        """Of the summary: a heading, and what stands below it."""
        self._root = config.rootpath
        if self._judges:
            shutil.rmtree(self._root / evidence.FAILURES, ignore_errors=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record.add(report)

    @pytest.hookimpl(trylast=True)  # the processes of the run are gone by then
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._file:
            self._record.write(self._file)
        self._repeat(session, exitstatus)
        skipped, most = sum(self._record.skipped.values()), session.config.getoption("most_skipped")
        if most is not None and skipped > most:
            self._lines.append((f"failed: {skipped} tests are skipped, {most} may be", ""))
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _repeat(self, session: pytest.Session, exitstatus: int) -> None:
        if not self._judges or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        failed = self._record.failed
        if len(failed) > MOST_REPEATED:
            self._lines.append(("Not run again", f"{len(failed)} tests failed: they have a common cause"))
            return
        terminal = session.config.pluginmanager.getplugin("terminalreporter")
        if failed:
            terminal.write_line(f"\n{len(failed)} failed and will be run again, alone")
        verdicts = {test: self._judge(test, failure) for test, failure in failed.items()}
        self._add_verdicts(verdicts)
        self._add_long_tests()
        if failed and "failed" not in verdicts.values() and len(verdicts) <= MOST_FLAKY:
            _pass_for(terminal, verdicts)
            session.exitstatus = pytest.ExitCode.OK

    def _judge(self, test: str, first: Failure) -> Verdict:
        for _ in range(REPEATS):
            again = run_alone(self._root, [test]).failed.get(test)
            if again is None:
                return "the machine stood still" if first.by_the_machine else "flaky"
            if not again.by_the_machine:
                return "failed"
        return "the machine stood still"

    def _add_verdicts(self, verdicts: Mapping[str, Verdict]) -> None:
        for test, judged in verdicts.items():
            failure = self._record.failed[test]
            about = [f"{judged}: {test}"]
            if known := self._known.get(test):
                about.append(f"known since {known.since}: {known.cause}")
            if failure.paused_s:
                about.append(f"the machine stood still for {failure.paused_s:.1f} s while it ran")
            if failure.evidence:
                about.append(f"kept: {failure.evidence}")
            self._lines.append(("\n".join(about), failure.traceback))

    def _add_long_tests(self) -> None:
        """A test that takes long beside others may take its time from them: alone it shows its own."""
        suspected = self._record.too_long()[:MOST_TIMED_ALONE]
        for test in run_alone(self._root, suspected).too_long() if suspected else ():
            self._lines.append((f"longer than {LONG_S:g} s, and not marked slow: {test}", ""))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in sorted(self._record.skipped.items()):
            terminalreporter.write_line(f"skipped {count}: {reason}")
        if self._lines:
            terminalreporter.section("verdicts")
        for heading, text in self._lines:
            terminalreporter.write_line(f"\n{heading}", bold=True)
            terminalreporter.write_line(text)


def run_alone(root: Path, tests: Sequence[str]) -> Record:
    """Run tests in one process of their own; a run that leaves no record has failed all of them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder, "record.json"), Path(folder, "output")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--record={file}", *tests]
        with output.open("wb") as log, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                timeout=ALONE_TIMEOUT_S, check=False,
            )  # fmt: skip
        if file.exists():
            return Record.read(file)
        return Record(failed={test: Failure(output.read_text(errors="replace")[-4000:]) for test in tests})


def _pass_for(terminal: Any, verdicts: Mapping[str, Verdict]) -> None:
    """Count the tests by their verdicts, in the last line as well."""
    for kind in ("failed", "error"):
        for report in terminal.stats.pop(kind, []):
            terminal.stats.setdefault(verdicts[report.nodeid], []).append(report)
