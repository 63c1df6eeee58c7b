"""Findings, for people: what is wrong, and below it what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from distop.cli.output.style import SEVERITY_STYLES, printable
from distop.client import Finding, Severity

if TYPE_CHECKING:
    from distop.executor.checking.findings import Finding as WorkerFinding

MOST_HOSTS = 5


def doctor_lines(findings: Iterable[Finding]) -> Iterator[Text]:
    """Those of ``distop doctor``."""
    for one in findings:
        mark = "fixed" if one.fixed else one.severity.value
        style = "green" if one.fixed else SEVERITY_STYLES[one.severity]
        yield _line(mark, style, one.code, one.sentence)
        for text in filter(None, [one.outcome, "" if one.fixed else one.remedy]):
            yield Text(f"    {printable(text)}")


def worker_lines(findings: Iterable[WorkerFinding]) -> Iterator[Text]:
    """Those of ``distop executor --check``."""
    for one in findings:
        hosts = some_hosts(one.workers)
        error = Severity.ERROR
        yield _line(error.value, SEVERITY_STYLES[error], one.code, f"{hosts}: " * bool(hosts) + one.sentence)
        yield Text(f"    {printable(one.remedy)}")


def some_hosts(hosts: Sequence[str]) -> str:
    """The first of them, and how many others there are."""
    more = len(hosts) - MOST_HOSTS
    return ", ".join(hosts[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _line(mark: str, style: str, code: str, sentence: str) -> Text:
    return Text.assemble((f"{mark}: ", style), (f"{code}: ", "bold"), printable(sentence))
