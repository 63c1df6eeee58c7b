"""Whether the rows that an operation has read, or is about to publish, keep its rules."""

from __future__ import annotations

from typing import Any

import msgspec

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.commit.partial import selection
from distop.errors import CorruptRecord, ValidationFailed
from distop.lake.iceberg.content import is_ignored
from distop.lake.layout.staging import RULES
from distop.metastore.records.record import convert
from distop.spark_jobs.rules.findings import TOLD_RULES, Broken, gather, write_report
from distop.spark_jobs.rules.model import RuleSet

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
        arg, jobs = context.view.arg, context.view.jobs
        try:
            rules = convert(arg.argument[RULES], RuleSet)
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptRecord(f"the argument of {arg.id} has no valid rules: {error}") from error
        if is_ignored(context):
            return Contribution()
        # Withheld output is not published: its problems do not matter.
        withheld = selection(arg, jobs).withheld
        counted = {name: job for name, job in jobs.items() if job.state == "success" and name not in withheld}
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
        facts |= {"violations": [one.to_facts() for one in broken[:TOLD_RULES]], "report": report}
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
