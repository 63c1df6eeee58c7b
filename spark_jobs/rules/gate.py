"""Rules on rows before they are published: write, check, publish.

Each job checks the rows that it stages, while it writes them. All findings together decide at the end of the
operation, before anything is published: a broken rule leaves the table and the watermarks unchanged, and the
staged files are swept.

A job's record in etcd has room for some counts. The rows themselves are in a report of the job, stored with
the data; all findings are combined when the operation ends.

Conditions on single rows are counted as the rows are read. For rules of uniqueness the values are stored on
disk until all rows have been read, and compared then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyiceberg.io import FileIO

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import CorruptRecord, JobFailed, ValidationFailed
from distop.lake.iceberg.metadata_files import is_ignored
from distop.lake.layout.model import file_io
from distop.lake.layout.staging import PRIVATE, RULES
from distop.lake.rules.engine import ROWS, NotEvaluable, SqlEngine, quoted
from distop.lake.rules.model import Rule, RuleSet
from distop.operations import JobContext, JobRecord, OperationArg, convert, from_json
from distop.operations.job import staging_folder, staging_stem

MAX_VALUE_CHARACTERS = 200
"""Characters of a value in a sample row."""
BLOCK_BYTES = 32 << 20
"""Rows that are checked together; they are in memory several times meanwhile."""
MAX_JOB_SAMPLES_BYTES = 1 << 20
"""About the most bytes of a job's sample rows."""
TIMES = "times"
"""Field of a uniqueness rule's sample, in addition to the values: how often they occur."""
_EXACT = 1 << 53
"""Larger integers are text in JSON: other readers would lose their last digits."""


class Violation(msgspec.Struct, frozen=True):
    """How often one rule was broken."""

    rule: int
    """Its position in the rule set."""
    count: int
    """Rows that break it. For uniqueness: rows that repeat the values of another one."""
    samples: list[dict[str, Any]] = []


class Samples:
    """Sample rows by rule, until they have taken a number of bytes; a rule without any gets one even then."""

    def __init__(self, rules: int, of_each: int, room: int) -> None:
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(rules)]
        self._of_each, self._room = of_each, room

    def wanted(self, rule: int) -> int:
        """How many more rows of a rule there may be."""
        kept = len(self.rows[rule])
        return self._of_each - kept if self._room > 0 or not kept else 0

    def add(self, rule: int, rows: Iterable[dict[str, Any]]) -> None:
        """Take as many as may be."""
        for row in rows:
            if self.wanted(rule) <= 0:
                return
            self.rows[rule].append(row)
            self._room -= len(msgspec.json.encode(row))


class RowChecks:
    """Checks the rows of one job.

    Parameters
    ----------
    scratch:
        Makes a folder on local disk, for rules of uniqueness.
    look:
        Called now and then during the check; its errors end it.
    """

    def __init__(
        self, rules: RuleSet, scratch: Callable[[], Path], look: Callable[[], None] = lambda: None
    ) -> None:
        self._rules = rules
        self._by_row = [(at, rule) for at, rule in enumerate(rules.rules) if rule.kind == "row"]
        self._unique = [(at, rule) for at, rule in enumerate(rules.rules) if rule.kind == "unique"]
        self._engine = SqlEngine(scratch() if self._unique else None, look)
        self._begun = False
        self._counts = dict.fromkeys(range(len(rules.rules)), 0)
        self._samples = Samples(len(rules.rules), rules.samples, MAX_JOB_SAMPLES_BYTES)
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()

    def check(self, rows: pa.Table, source: str = "") -> None:
        """Check some rows.

        Parameters
        ----------
        source:
            Their source, named in samples.

        Raises
        ------
        JobFailed
            A condition fails for one of them.
        """
        if rows.nbytes > BLOCK_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            self.check(rows.slice(0, half), source)
            self.check(rows.slice(half), source)
            return
        self.rows += rows.num_rows
        if not rows.num_rows:
            return
        with self._engine.over(rows.select(self._rules.columns)):
            if self._by_row:
                self._count(source)
            if self._unique:
                self._keep()

    def finish(self) -> list[Violation]:
        """The findings; only broken rules."""
        if self._begun:
            for at, rule in self._unique:
                self._sort_out(at, rule)
        return [
            Violation(at, count, self._samples.rows[at])
            for at, count in sorted(self._counts.items())
            if count
        ]

    # -- conditions on a row ---------------------------------------------------------------------------

    def _count(self, source: str) -> None:
        counts = self._answer(f"SELECT {', '.join(_count_of(rule) for _, rule in self._by_row)} FROM {ROWS}")
        for (at, rule), count in zip(self._by_row, counts, strict=True):
            self._counts[at] += count
            wanted = self._samples.wanted(at)
            if count and wanted > 0:
                self._samples.add(at, self._examples(rule, wanted, source))

    def _answer(self, sql: str) -> tuple[int, ...]:
        try:
            (answer,) = self._engine.run(sql)
        except NotEvaluable as error:
            raise self._named(error) from error
        return answer

    def _named(self, error: NotEvaluable) -> JobFailed:
        """The failure, with the rule that fails."""
        for _, rule in self._by_row:
            try:
                self._engine.run(f"SELECT {_count_of(rule)} FROM {ROWS}")
            except NotEvaluable as refusal:
                return JobFailed(
                    f"rule {rule.name!r} cannot be evaluated for some row: {refusal}",
                    hint="guard it, for example with TRY_CAST",
                    details={"rule": rule.name},
                )
        return JobFailed(f"the rules cannot be evaluated: {error}")

    def _examples(self, rule: Rule, wanted: int, source: str) -> list[dict[str, Any]]:
        names = list(dict.fromkeys([*self._rules.shown, *rule.columns]))
        chosen = ", ".join(map(quoted, names))
        rows = self._engine.run(f"SELECT {chosen} FROM {ROWS} WHERE {rule.violated} LIMIT {wanted}")
        return [_sample(names, row) | ({"file": source} if source else {}) for row in rows]

    # -- uniqueness ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        for at, rule in self._unique:
            # Names of their own: a column may be called as the count of its values is.
            chosen = ", ".join(f"{quoted(name)} AS k{position}" for position, name in enumerate(rule.columns))
            whole = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in rule.columns)
            if not self._begun:
                self._engine.run(f"CREATE TABLE keys{at} AS SELECT {chosen} FROM {ROWS} LIMIT 0")
            self._engine.run(f"INSERT INTO keys{at} SELECT {chosen} FROM {ROWS} WHERE {whole}")
        self._begun = True

    def _sort_out(self, at: int, rule: Rule) -> None:
        chosen = ", ".join(f"k{position}" for position in range(len(rule.columns)))
        try:
            self._engine.run(
                f"CREATE TEMP TABLE twice{at} AS SELECT {chosen}, count(*) AS {TIMES} FROM keys{at} "
                f"GROUP BY {chosen} HAVING count(*) > 1"
            )
            ((repeated,),) = self._engine.run(f"SELECT sum({TIMES} - 1) FROM twice{at}")
            rows = self._engine.run(
                f"SELECT * FROM twice{at} ORDER BY {TIMES} DESC, {chosen} LIMIT {self._rules.samples}"
            )
        except NotEvaluable as error:
            raise JobFailed(
                f"rule {rule.name!r} cannot be evaluated: {error}", details={"rule": rule.name}
            ) from error
        self._counts[at] = int(repeated or 0)
        self._samples.add(at, (_sample([*rule.columns, TIMES], row) for row in rows))


def _count_of(rule: Rule) -> str:
    return f"count(*) FILTER (WHERE {rule.violated})"


def _sample(names: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in zip(names, row, strict=True)}


def _plain(value: Any) -> Any:
    """A value as JSON, shortened for people."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _EXACT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"


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

SHOWN_RULES, SHOWN_PARTITIONS, SHOWN_CHARACTERS = 20, 3, 300
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
        shown = {name: self.partitions[name] for name in most[:SHOWN_PARTITIONS]}
        facts: dict[str, Any] = {
            "rule": self.rule,
            "rows": self.rows,
            "partitions": len(self.partitions),
            "most": shown,
        }
        if self.samples:
            row = msgspec.json.encode(self.samples[0]["row"]).decode()
            facts["sample"] = row if len(row) <= SHOWN_CHARACTERS else row[: SHOWN_CHARACTERS - 1] + "…"
        return facts

    def __str__(self) -> str:
        unit = "job" if next(iter(self.partitions), "").startswith(JOB) else "partition"
        partitions = f"{len(self.partitions):,} {unit}{'s' if len(self.partitions) > 1 else ''}"
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
    violating = {name: job for name, job in sorted(jobs.items()) if VIOLATED in job.result}
    wanted = [
        name
        for at, (name, job) in enumerate(violating.items())
        if at < MAX_SAMPLED_JOBS or job.result[VIOLATED] == IN_REPORT
    ]
    io = table_io(operation)
    samples = Samples(len(rules.rules), rules.samples * MAX_SAMPLED_JOBS, MAX_SAMPLES_BYTES)
    broken = [Broken(rule.name, samples=rows) for rule, rows in zip(rules.rules, samples.rows, strict=True)]
    with ThreadPoolExecutor(READERS, thread_name_prefix="findings") as pool:
        for start in range(0, len(wanted), READERS):  # a slow one does not leave all others in memory
            some = wanted[start : start + READERS]
            read = pool.map(lambda name: _read_findings(io, operation, name, violating[name].attempt), some)
            for name, findings in zip(some, read, strict=True):
                partition = _partition(operation, name)
                for finding in findings:
                    _add(broken, finding.rule, finding.count, partition)
                    rows = ({"partition": partition, "row": row} for row in finding.samples)
                    samples.add(finding.rule, rows)
    for name in violating.keys() - set(wanted):
        for rule, count in violating[name].result[VIOLATED]:
            _add(broken, int(rule), int(count), _partition(operation, name))
    return [rule for rule in broken if rule.rows]


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
                "rule": rule.rule,
                "rows": rule.rows,
                "partitions": dict(sorted(rule.partitions.items())[:MAX_PARTITIONS]),
                "samples": rule.samples,
            }
            for rule in broken
        ],
    }
    with table_io(operation).new_output(path).create(overwrite=True) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return path


def table_io(operation: OperationArg) -> FileIO:
    """File access for an operation's table."""
    return file_io(operation.location, operation.storage)


class JobChecks:
    """Checks the rows that one job stages; without rules it does nothing."""

    def __init__(self, rules: RuleSet | None, job: JobContext) -> None:
        self._job = job
        self._checks: RowChecks | None = None
        if rules is not None:
            self._checks = RowChecks(rules, job.scratch_path, job.raise_if_cancelled)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checks is not None:
            self._checks.__exit__(kind, error, trace)

    def check(self, rows: pa.Table, source: str = "") -> None:
        """Check rows as they are staged. Raises as :meth:`RowChecks.check`."""
        if self._checks is not None:
            self._checks.check(rows, source)

    def finish(self) -> dict[str, Any]:
        """The findings in the job's result; rows that break rules are written to a file."""
        if self._checks is None:
            return {}

        return write_findings(self._job, table_io(self._job.operation), self._checks.finish())


NAMED_IN_ERROR = 10
"""Most rules that the error names."""


class Gate(TransactionalStep):
    """Refuses to finish an operation whose rows break rules; otherwise only adds facts.

    It precedes the steps that publish, and is computed from the results of all jobs, which are final by then:
    so what is published has passed, however often and by however many leaders the operation is
    completed.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        ValidationFailed
            Rules are broken, and the operation is not to report only.
        CorruptRecord
            The findings of a job are missing.
        """
        arg = context.view.arg
        try:
            rules = convert(arg.argument[RULES], RuleSet)
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptRecord(f"the argument of {arg.id} has no valid rules: {error}") from error
        if is_ignored(context):
            return Contribution()
        # Withheld output is not published: its problems do not matter.
        counted = context.selection.jobs
        broken = gather(arg, rules, counted)
        facts: dict[str, Any] = {
            "checkedRows": sum(int(job.result.get("rows", 0)) for job in counted.values()),
            "rules": len(rules.rules),
            "violatedRules": len(broken),
            **({"warnings": rules.warnings} if rules.warnings else {}),
        }
        if not broken:
            return Contribution(facts=facts)
        report = write_report(arg, broken)
        facts |= {"violations": [rule.to_facts() for rule in broken[:SHOWN_RULES]], "report": report}
        if rules.report_only:
            return Contribution(facts=facts)
        raise ValidationFailed(
            sentence(broken, len(rules.rules)), hint=f"rows that break them are in {report}", facts=facts
        )


def sentence(broken: list[Broken], rules: int) -> str:
    """Which rules are broken, and by how many rows."""
    named = "; ".join(map(str, broken[:NAMED_IN_ERROR]))
    more = f"; and {len(broken) - NAMED_IN_ERROR} more" if len(broken) > NAMED_IN_ERROR else ""
    verb = "is" if len(broken) == 1 else "are"
    return f"{len(broken)} of {rules} rules {verb} broken: {named}{more}"
