"""Findings of jobs that checked rules, and their report.

A job's record in etcd has room for some counts. The rows themselves are in a report of the job, stored with
the data; all findings are combined when the operation ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.io import FileIO

from distop.errors import CorruptRecord
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import PRIVATE
from distop.metastore.records.operation import JobRecord, OperationArg
from distop.metastore.records.record import from_json
from distop.operations.job import JobContext, staging_folder, staging_stem
from distop.spark_jobs.rules.checks import Samples, Violation
from distop.spark_jobs.rules.model import RuleSet

VIOLATED = "violated"
"""Field of a job's result: ``[[position of the rule, rows that break it], ...]``; ``"report"`` if that is too
long, and only the report has it. Without it: no findings."""
IN_REPORT = "report"
MAX_COUNTS_BYTES = 120
SUFFIX = ".findings.json"
FOLDER = "_validation"
"""Folder of operations' reports, below the table's location; readers of plain folders skip it."""

READERS = 8
"""Reports of jobs read concurrently."""
MAX_SAMPLED_JOBS = 100
"""Jobs whose rows the report of an operation shows; those of others are only counted."""
MAX_SAMPLES_BYTES = 8 << 20
"""About the most bytes of an operation's sample rows."""
MAX_PARTITIONS = 10_000
"""Partitions that a report names for each rule."""

TOLD_RULES, TOLD_PARTITIONS, TOLD_CHARACTERS = 20, 3, 300
"""Limits of the history: rules, partitions of each, and size of one row."""

JOB = "job "
"""The key of the job, in place of a partition, if jobs have no partitions."""

_PIECE = re.compile(r"~\d+$")


@dataclass
class Broken:
    """The findings of all jobs for one rule."""

    rule: str
    rows: int = 0
    partitions: dict[str, int] = field(default_factory=dict)
    """Rows by partition."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """``{"partition": ..., "row": {...}}``."""

    def to_facts(self) -> dict[str, Any]:
        """For the history."""
        most = sorted(self.partitions, key=lambda name: (-self.partitions[name], name))
        shown = {name: self.partitions[name] for name in most[:TOLD_PARTITIONS]}
        facts: dict[str, Any] = {
            "rule": self.rule,
            "rows": self.rows,
            "partitions": len(self.partitions),
            "most": shown,
        }
        if self.samples:
            row = msgspec.json.encode(self.samples[0]["row"]).decode()
            facts["sample"] = row if len(row) <= TOLD_CHARACTERS else row[: TOLD_CHARACTERS - 1] + "…"
        return facts

    def __str__(self) -> str:
        what = "job" if next(iter(self.partitions), "").startswith(JOB) else "partition"
        partitions = f"{len(self.partitions):,} {what}{'s' if len(self.partitions) > 1 else ''}"
        return f"{self.rule} by {self.rows:,} row{'s' if self.rows > 1 else ''} in {partitions}"


# -- of a job ----------------------------------------------------------------------------------------


def write_findings(job: JobContext, io: FileIO, findings: list[Violation]) -> dict[str, Any]:
    """Write the report of a job, if it has findings; return the part of its result."""
    if not findings:
        return {}
    path = job.staging_path(SUFFIX, folder=PRIVATE)
    with io.new_output(path).create(overwrite=True) as stream:
        stream.write(msgspec.json.encode(findings))
    counts = [[finding.rule, finding.count] for finding in findings]
    return {VIOLATED: counts if len(msgspec.json.encode(counts)) <= MAX_COUNTS_BYTES else IN_REPORT}


def remove_findings(job: JobContext) -> None:
    """Remove the report of an attempt, if it has written one."""
    with suppress(FileNotFoundError):
        table_io(job.operation).delete(job.staging_path(SUFFIX, folder=PRIVATE))


def _read_findings(io: FileIO, operation: OperationArg, partition: str, attempt: str) -> list[Violation]:
    path = f"{staging_folder(operation, PRIVATE)}/{staging_stem(partition, attempt)}{SUFFIX}"
    try:
        with io.new_input(path).open() as stream:
            return from_json(stream.read(), list[Violation])
    except FileNotFoundError as error:
        raise CorruptRecord(f"the findings {path} of a finished job are missing") from error
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{path} is not a report of findings: {error}") from error


# -- of an operation ---------------------------------------------------------------------------------


def gather(operation: OperationArg, rules: RuleSet, jobs: Mapping[str, JobRecord]) -> list[Broken]:
    """The findings of the jobs that count; rules that hold are omitted.

    Raises :class:`~distop.errors.CorruptRecord` if the report of one is missing.
    """
    found = {name: job for name, job in sorted(jobs.items()) if VIOLATED in job.result}
    wanted = [
        name
        for at, (name, job) in enumerate(found.items())
        if at < MAX_SAMPLED_JOBS or job.result[VIOLATED] == IN_REPORT
    ]
    io = table_io(operation)
    samples = Samples(len(rules.rules), rules.samples * MAX_SAMPLED_JOBS, MAX_SAMPLES_BYTES)
    broken = [Broken(rule.name, samples=rows) for rule, rows in zip(rules.rules, samples.rows, strict=True)]
    with ThreadPoolExecutor(READERS, thread_name_prefix="findings") as pool:
        for start in range(0, len(wanted), READERS):  # a slow one does not leave all others in memory
            some = wanted[start : start + READERS]
            read = pool.map(lambda name: _read_findings(io, operation, name, found[name].attempt), some)
            for name, findings in zip(some, read, strict=True):
                partition = _partition(operation, name)
                for finding in findings:
                    _add(broken, finding.rule, finding.count, partition)
                    rows = ({"partition": partition, "row": row} for row in finding.samples)
                    samples.add(finding.rule, rows)
    for name in found.keys() - set(wanted):
        for rule, count in found[name].result[VIOLATED]:
            _add(broken, int(rule), int(count), _partition(operation, name))
    return [one for one in broken if one.rows]


def _add(broken: list[Broken], rule: int, count: int, partition: str) -> None:
    if not 0 <= rule < len(broken):
        raise CorruptRecord(f"the findings of {partition} name rule {rule} of {len(broken)}")
    broken[rule].rows += count
    broken[rule].partitions[partition] = broken[rule].partitions.get(partition, 0) + count


def _partition(operation: OperationArg, job: str) -> str:
    """The partition that a job has checked. Several jobs may read a large one."""
    return JOB + job if operation.partitions is None else _PIECE.sub("", job)


def write_report(operation: OperationArg, broken: Iterable[Broken]) -> str:
    """Write the complete report; return its path. Idempotent."""
    path = f"{operation.location}/{FOLDER}/{operation.type}-{operation.instance}-{operation.uuid}.json"
    report = {
        "operation": str(operation.id),
        "started": operation.started_at,
        "rules": [
            {
                "rule": one.rule,
                "rows": one.rows,
                "partitions": dict(sorted(one.partitions.items())[:MAX_PARTITIONS]),
                "samples": one.samples,
            }
            for one in broken
        ],
    }
    with table_io(operation).new_output(path).create(overwrite=True) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return path


def table_io(operation: OperationArg) -> FileIO:
    """File access for an operation's table."""
    return file_io(operation.location, operation.storage)
