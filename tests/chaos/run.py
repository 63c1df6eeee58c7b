"""One run: a round for each strike and each fault, the invariants checked after each."""

import asyncio
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.checks import Findings
from chaos.cluster import TOKEN, Cluster
from chaos.faults import FAULTS, INSIDE, Strike
from chaos.lab import Lab, Stuck, do_nothing
from chaos.report import Line, Report
from chaos.workloads import ingest, workloads_for
from distop.client import AsyncClient, Credentials
from distop.client.cluster import Severity
from distop.errors import DistopError
from support.tables.trees import age

MOST_WORKLOADS = 8
"""How many workloads may pass by before a point is said to be out of reach."""
OF_RUNNERS = {
    "distop.metastore.operations.runs",
    "distop.executor.runner.runner",
    "distop.executor.runner.operation_run",
}
"""Modules whose points are reached by runners."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be done."""

    seed: int
    seconds: float
    points: dict[str, str]
    strikes: list[Strike]
    faults: list[str]
    master: str
    runners: int
    folder: Path


class Run:
    """One run of strikes and faults, with its report."""

    def __init__(self, settings: Settings, rng: random.Random) -> None:
        self._settings, self._rng = settings, rng
        killed = {strike.name for strike in settings.strikes if strike.kind == "die"}
        self.report = Report(settings.seed, sorted(killed))
        self._began = time.monotonic()

    async def run(self) -> Report:
        """All rounds, or as many as time allows for."""
        settings, report = self._settings, self.report
        cluster = Cluster(settings.folder, master=settings.master, runners=settings.runners)
        report.etcd = cluster.etcd.binary.version
        async with cluster:
            client = AsyncClient(
                cluster.addresses(), timeout_s=10, connect_timeout_s=30, credentials=Credentials(token=TOKEN)
            )
            lab = Lab(cluster, client, self._rng, settings.folder)
            self._say(f"etcd {report.etcd}, seed {settings.seed}, logs in {cluster.logs}")
            await cluster.ready(coordinators=2, runners=settings.runners)
            reading = asyncio.create_task(lab.read_for_ever())
            try:
                await self._rounds(lab)
                if reading.done():
                    reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await client.close()
                report.operations, report.reads = lab.operations, lab.reads
                report.seconds = time.monotonic() - self._began
        return report

    async def _rounds(self, lab: Lab) -> None:
        rounds: list[Strike | str] = [*self._settings.strikes, *self._settings.faults]
        await self._settled(lab, ingest(lab), self.report.line("nothing"), "undisturbed")
        for number, chosen in enumerate(rounds):
            if time.monotonic() - self._began > self._settings.seconds:
                self.report.untried = len(rounds) - number
                break
            at_runner = isinstance(chosen, Strike) and self._settings.points[chosen.point] in OF_RUNNERS
            # Starting Spark takes long: a runner is only killed when there is another one.
            await lab.cluster.ready(runners=self._settings.runners if at_runner else 1)
            if isinstance(chosen, Strike):
                await self._strike(lab, chosen)
            else:
                await self._fault(lab, chosen)
        await self._look_at_retired(lab)
        try:
            await self._ask_the_doctor(lab)
        except (Stuck, AssertionError, DistopError) as error:
            self.report.stuck.append(f"doctor: {error}")

    async def _ask_the_doctor(self, lab: Lab) -> None:
        """Once orphans are removed `distop cluster doctor` must find nothing to say."""
        await lab.cluster.ready(coordinators=2)
        argument = {"older_than": "1d", "dry_run": False}
        for book in [*lab.retired, *lab.books.values()]:
            if not book.plain:
                await asyncio.to_thread(age, book.location)
                cleaned = await lab.start(book, "remove_orphans", argument)
                self.report.total.wrong += await lab.ended(cleaned)
        await lab.quiet()
        diagnosis = await lab.retry_until_known(lambda: lab.client.diagnose(deep=True))
        for finding in diagnosis.findings:
            self._say(f"    doctor: {finding.severity.value} {finding.code} {finding.sentence}")
            if finding.severity in (Severity.ERROR, Severity.WARNING):
                self.report.total.wrong.append(f"doctor: {finding.code} {finding.sentence}")

    async def _strike(self, lab: Lab, strike: Strike) -> None:
        """Arm a point, and work until somebody has come by."""
        line = self.report.line(strike.name, self._settings.points[strike.point])
        cluster = lab.cluster
        fitting = [INSIDE[strike.inside]] if strike.inside else workloads_for(strike.point)[:MOST_WORKLOADS]
        for workload in fitting:
            arm = partial(cluster.arm, strike.point, strike.action)
            cluster.forget(strike.point, strike.action)
            if strike.inside:
                lab.here = arm
            else:
                arm()
            name = f"{strike.point} {strike.action} ({workload.__name__})"
            good = await self._settled(lab, workload(lab), line, name, strike)
            who = cluster.struck(strike.point, strike.action)
            cluster.disarm()
            lab.here = do_nothing
            if who is not None:
                line.struck.add(who)
                line.done[strike.kind] = line.done.get(strike.kind, 0) + 1
                return
            if not good:
                break
        line.missed.append(strike.kind)
        self._say(f"  NOT REACHED: {strike.name}")

    async def _fault(self, lab: Lab, name: str) -> None:
        line = self.report.line(name)
        await self._settled(lab, FAULTS[name](lab), line, name)
        line.done["fault"] = line.done.get("fault", 0) + 1

    async def _settled(
        self, lab: Lab, work: Awaitable[list[str]], line: Line, name: str, strike: Strike | None = None
    ) -> bool:
        """Let work come to its end, wait until it is quiet, look at everything; whether all is well."""
        began, operations = time.monotonic(), lab.operations
        findings = Findings()
        try:
            findings.wrong += [f"{name}: {problem}" for problem in await work]
            if strike is not None and not lab.cluster.struck(strike.point, strike.action):
                # Some points are reached by what comes after the work: a leader that resigns, a sweep.
                await asyncio.sleep(1.0)
            await lab.quiet()
            findings.add(await lab.check())
        except (Stuck, AssertionError) as error:
            self.report.stuck.append(f"{name}: {error}")
            self._abandon(lab)
        except DistopError as error:
            findings.wrong.append(f"{name}: {error.code} {error}")
            self._abandon(lab)
        except Exception as error:
            findings.wrong.append(f"{name}: the harness failed: {error!r}")
            self._abandon(lab)
        line.operations += lab.operations - operations
        self._enter(findings, line)
        if not findings.good:
            self._abandon(lab)  # each problem is reported once
        took, at = time.monotonic() - began, time.monotonic() - self._began
        who = strike and lab.cluster.struck(strike.point, strike.action)
        verdict = "ok" if findings.good and not self._is_stuck(name) else "WRONG"
        self._say(f"{at:6.0f} s  {name:52} {took:5.1f} s  {who or '':16} {verdict}")
        for problem in [*findings.wrong, *findings.leftovers[:5]]:
            self._say(f"    {problem}")
        return verdict == "ok"

    def _is_stuck(self, name: str) -> bool:
        return any(text.startswith(f"{name}: ") for text in self.report.stuck)

    def _abandon(self, lab: Lab) -> None:
        """Go on with new tables: one fault is not to be found again after every other."""
        lab.books.clear()

    def _enter(self, findings: Findings, line: Line) -> None:
        line.rows_expected += findings.rows_expected
        line.rows_found += findings.rows_found
        line.rows_doubled += findings.rows_doubled
        line.leftovers += len(findings.leftovers)
        self.report.total.add(findings)

    async def _look_at_retired(self, lab: Lab) -> None:
        """Once more at all tables of the run, at its end."""
        line = self.report.line("all tables, at the end")
        for book in lab.retired:
            findings = await lab.check_table(book)
            self._enter(findings, line)
            for problem in [*findings.wrong, *findings.leftovers[:5]]:
                self._say(f"    {problem}")

    def _say(self, text: str) -> None:
        print(text, flush=True)
