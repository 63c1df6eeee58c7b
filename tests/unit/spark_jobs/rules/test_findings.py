"""What jobs found, put together: counts from records, rows from the reports of jobs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distop.errors import CorruptRecord, ValidationFailed
from distop.lake.cleanup.staged import remove_attempt
from distop.lake.layout.staging import RULES
from distop.lake.rules.model import Rule, RuleSet
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES, JobRecord, OperationArg
from distop.metastore.records.record import convert, encode
from distop.spark_jobs.rules.gate import (
    IN_REPORT,
    MAX_SAMPLED_JOBS,
    SHOWN_RULES,
    VIOLATED,
    Gate,
    Violation,
    gather,
    table_io,
    write_findings,
)
from support.sources.ingesting import LocalJob
from support.tables.publishing import Staged, new_table


def operation(folder: Path, jobs: list[str] | None, rules: int = 3, **fields: Any) -> OperationArg:
    names = RuleSet(rules=[Rule(name=f"rule {at}", violated="false") for at in range(rules)], **fields)
    argument = {RULES: msgspec.to_builtins(names), "layout": {"properties": {}}}
    return OperationArg(
        table="t",
        type="validate",
        instance=1,
        uuid="u1",
        argument=argument,
        partitions=jobs,
        partition_count=len(jobs or ()),
        location=f"file://{folder}",
        stages_files=True,
    )


def rules_of(arg: OperationArg) -> RuleSet:
    return convert(arg.argument[RULES], RuleSet)


def done(arg: OperationArg, name: str, found: list[Violation]) -> JobRecord:
    job = LocalJob(arg, name)
    result = {"rows": 10, **write_findings(job, table_io(arg), found)}
    return JobRecord(state="success", attempt=job.attempt, result=result)


def test_pieces_of_a_partition_are_one_partition(tmp_path: Path) -> None:
    """P12: counts of all jobs of a partition are summed; jobs that go by no partition are named as such."""
    arg = operation(tmp_path, ["m=1", "m=1~1", "m=2", "m=3"])
    found = {
        "m=1": [Violation(0, 5, [{"id": 1}]), Violation(2, 1)],
        "m=1~1": [Violation(0, 2, [{"id": 2}])],
        "m=2": [Violation(0, 1)],
        "m=3": [],
    }
    jobs = {name: done(arg, name, one) for name, one in found.items()}
    first, last = gather(arg, rules_of(arg), jobs)
    assert (first.rule, first.rows, first.partitions) == ("rule 0", 8, {"m=1": 7, "m=2": 1})
    assert first.samples == [{"partition": "m=1", "row": {"id": 1}}, {"partition": "m=1", "row": {"id": 2}}]
    assert (last.rule, last.rows) == ("rule 2", 1)
    assert str(first) == "rule 0 by 8 rows in 2 partitions"

    unnamed = operation(tmp_path, None)
    jobs = {"0": done(unnamed, "0", [Violation(1, 1)])}
    assert [str(one) for one in gather(unnamed, rules_of(unnamed), jobs)] == ["rule 1 by 1 row in 1 job"]


def test_what_a_record_has_no_room_for_stands_in_the_report(tmp_path: Path) -> None:
    """A job's record stays below its limit however many rules are broken, and nothing is lost."""
    arg = operation(tmp_path, ["all"], rules=64)
    job = done(arg, "all", [Violation(at, 1_000_000 + at) for at in range(64)])
    assert job.result[VIOLATED] == IN_REPORT
    assert len(encode(job)) < MAX_JOB_RECORD_BYTES / 2
    found = gather(arg, rules_of(arg), {"all": job})
    assert [one.rows for one in found] == [1_000_000 + at for at in range(64)]


def test_rows_are_shown_of_so_many_jobs_and_counted_of_all(tmp_path: Path) -> None:
    """Nothing unbounded: reports of further jobs are not even read."""
    names = [f"p={at:04}" for at in range(MAX_SAMPLED_JOBS + 5)]
    arg = operation(tmp_path, names)
    jobs = {name: done(arg, name, [Violation(0, 1, [{"id": 1}])]) for name in names}
    for name in names[MAX_SAMPLED_JOBS:]:
        job = LocalJob(arg, name, jobs[name].attempt)
        remove_attempt(job)
        remove_attempt(job)
    (found,) = gather(arg, rules_of(arg), jobs)
    assert (found.rows, len(found.partitions), len(found.samples)) == (
        len(names),
        len(names),
        MAX_SAMPLED_JOBS,
    )
    remove_attempt(LocalJob(arg, names[0], jobs[names[0]].attempt))
    with pytest.raises(CorruptRecord, match="missing"):
        gather(arg, rules_of(arg), jobs)


def test_wide_rows_are_shown_of_fewer_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in bytes, too; every rule has a row all the same."""
    monkeypatch.setattr("distop.spark_jobs.rules.gate.MAX_SAMPLES_BYTES", 10_000)
    names = [f"p={at:02}" for at in range(30)]
    arg = operation(tmp_path, names, rules=2)
    wide = [{"text": "x" * 999}]
    jobs = {name: done(arg, name, [Violation(0, 1, wide)]) for name in names[:-1]}
    jobs[names[-1]] = done(arg, names[-1], [Violation(0, 1, wide), Violation(1, 1, wide)])
    first, last = gather(arg, rules_of(arg), jobs)
    assert (first.rows, len(first.samples)) == (30, 10)
    assert (last.rows, len(last.samples)) == (1, 1)


def test_a_verdict_is_the_same_however_often_it_is_worked_out(tmp_path: Path) -> None:
    """O17: a leader that goes on writes the same report again; what the history keeps is bounded."""
    table = new_table(tmp_path)
    arg = operation(tmp_path, ["all"], rules=30)
    row = {f"column {at}": "x" * 200 for at in range(32)}
    staged = Staged(arg, table.layout, {"all": done(arg, "all", [Violation(n, 7, [row]) for n in range(30)])})
    told = []
    for _ in range(2):
        with pytest.raises(ValidationFailed, match=r"30 of 30 .*20 more") as raised:
            Gate().prepare(table.context(staged))
        told.append(raised.value.facts)
    assert told[0] == told[1]
    assert (told[0]["checkedRows"], told[0]["violatedRules"], len(told[0]["violations"])) == (
        10,
        30,
        SHOWN_RULES,
    )
    assert len(json.dumps(told[0])) < 16 << 10
    (report,) = (tmp_path / "_validation").iterdir()
    assert len(json.loads(report.read_text())["rules"]) == 30

    arg = operation(tmp_path, ["all"], report_only=True)
    staged = Staged(arg, table.layout, {"all": done(arg, "all", [Violation(1, 7)])})
    facts = Gate().prepare(table.context(staged)).facts
    assert (facts["violatedRules"], facts["violations"][0]["rows"]) == (1, 7)
