"""The flights on the cluster of deploy/compose.yaml, while its hosts die, part and stand still.

``make cluster-demo``; ``make cluster-test`` (``--each``) loses a host of each kind. Hosts are containers, or,
for the demo where no engine with Compose answers, network namespaces. Prints what was found as JSON, last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cluster_namespaces
from cluster_hosts import Cluster, libfaketime, missing, started
from cluster_namespaces import Namespaces
from flights import FILE, OPTIONS, write_days

from distop.cli.demo.crew import until
from distop.client import Client, Operation, Severity

TABLE, COPY, STREAM = "flights", "flights_copy", "stream"
STREAMED_AT_ONCE = 24
"""Files in one batch of the stream."""

CUT_S = 20
"""How long a part of the cluster is away, four times as long as a lease lives."""

CLOCK = "the clock of a coordinator, for a while the only one, is ten minutes ahead"

Hosts = Cluster | Namespaces


class Fault(NamedTuple):
    """What happens, what does it to a service, and which it is, with an operation at work."""

    what: str
    strikes: Callable[[str], AbstractContextManager[Any]]
    chosen: Callable[[Operation], str]
    named: str = ""
    """What ``distop cluster doctor`` has to find meanwhile. Nothing where all work goes on: with a full disk
    that no task needs, or a network that is slow only for much at once."""


def storm(cluster: Hosts, client: Client) -> list[Fault]:
    """What the demo shows."""
    leader, runner = _leader(cluster, client), _runner(cluster, client)
    return [
        Fault("a worker of Spark is killed -9", cluster.killed, lambda _: "worker1"),
        Fault("the coordinator that leads is cut off", cluster.parted, leader),
        Fault("a member of etcd is killed -9", cluster.killed, lambda _: "etcd2"),
        Fault("the executor at work stands still", cluster.paused, runner),
        Fault("a sidecar is killed -9", cluster.killed, lambda _: "sidecar2"),
        Fault("the coordinator that leads is killed -9", cluster.killed, leader),
    ]


def losses(cluster: Cluster, client: Client, library: Path | None) -> list[Fault]:
    """A host of each kind, and what a host may suffer that is not dead."""
    leader, runner = _leader(cluster, client), _runner(cluster, client)
    killed, worker = cluster.killed, "worker1 sidecar1"
    faults = [
        Fault("a member of etcd is killed -9", killed, lambda _: "etcd1", "ETCD_MEMBER_AWAY"),
        Fault("the coordinator that leads is killed -9", killed, leader, "MEMBER_LOST"),
        Fault("the executor at work is killed -9", killed, runner, "MEMBER_LOST"),
        Fault("a worker of Spark is killed -9, with its sidecar", killed, lambda _: worker, "MEMBER_LOST"),
        Fault("the master of Spark is killed -9", killed, lambda _: "master", "MEMBER_HELD_UP"),
        Fault("all sidecars are killed -9", killed, lambda _: "sidecar1 sidecar2", "MEMBER_LOST"),
        Fault("the object store is killed -9", killed, lambda _: "s3", "HEAD_UNREADABLE"),
        Fault("the disk of a worker is full", cluster.filled, lambda _: "worker1"),
        Fault("the network of the coordinator that leads is slow", cluster.slowed, leader),
    ]
    if library:
        ahead = partial(_alone_and_ahead, cluster, library)
        faults.append(Fault(CLOCK, ahead, lambda _: "coordinator1", "CLOCK_SKEW"))
    return faults


@contextmanager
def _alone_and_ahead(cluster: Cluster, library: Path, service: str) -> Iterator[None]:
    with cluster.ahead(service, library):
        with cluster.killed("coordinator2"):
            time.sleep(CUT_S)
        # Its clock shows when another coordinator registers after it, with an earlier time.
        yield


def strike(
    cluster: Hosts, client: Client, faults: list[Fault], names: Iterable[str], *, patient: bool
) -> dict[str, list[str]]:
    """One fault after the other, each in the middle of an operation, with more batches behind it; what
    ``distop cluster doctor`` found during each, and not before the first."""
    usual, named = _codes(client), dict[str, list[str]]()
    days = sorted(names)
    share = -(-len(days) // len(faults))
    for number, fault in enumerate(faults):
        if patient:
            until(lambda: _codes(client) <= usual or None, "all to be well", 240)
        for day in days[number * share : (number + 1) * share]:
            client.table(TABLE).enqueue(day, "ingest", {"paths": [cluster.url(f"landing/{day}")], **OPTIONS})
        service = until(partial(_victim, client, fault.chosen), "an operation at work", 120)
        before = _left(client)
        with fault.strikes(service):
            time.sleep(CUT_S)
            applied = before - _left(client)
            why = client.table(TABLE).why().sentence
            named[fault.what] = sorted(_codes(client) - usual)
        print(
            f"  {fault.what} ({service}) for {CUT_S} s: {applied} batches were applied meanwhile", flush=True
        )
        print(f"    why: {why}; doctor: {' '.join(named[fault.what]) or 'nothing'}", flush=True)
    return named


def stream(cluster: Hosts, client: Client, rows: int) -> dict[str, int]:
    """A user's streaming query copies the table, on the cluster; the host of its driver dies half-way."""
    client.create_table(COPY, cluster.url(f"tables/{COPY}"), options={"partitionBy": ["month(time_hour)"]})
    driver = f"spark.driver.host={cluster.address(STREAM)}"
    room = ["spark.cores.max=2", "spark.executor.memory=512m"]
    settings = [driver, "spark.driver.bindAddress=0.0.0.0", *room]
    words = [
        TABLE,
        COPY,
        "checkpoint",
        str(STREAMED_AT_ONCE),
        f"spark://{cluster.address('master')}:7077",
        *settings,
    ]
    # Its cores are those of an executor, which has nothing to do any more.
    with (
        cluster.stopped("executor2"),
        cluster.program(STREAM, Path(__file__).parent / "stream.py", *words),
    ):
        half = until(lambda: _rows(client, COPY) or None, "a batch of the stream", 300)
        with cluster.killed(STREAM):
            pass
        until(lambda: _rows(client, COPY) >= rows or None, "the end of the stream", 400)
    batches = sum(1 for _ in client.table(COPY).snapshots())
    print(
        f"  a streaming query copied the table: its driver's host killed -9 at {half:,} rows, and "
        f"started again; {_rows(client, COPY):,} rows in {batches} batches",
        flush=True,
    )
    return {"streamed_batches": batches}


def _rows(client: Client, table: str) -> int:
    return next((snapshot.rows or 0 for snapshot in client.table(table).snapshots() if snapshot.present), 0)


def counted(cluster: Hosts, table: str, days: Counter[str]) -> dict[str, int]:
    """The rows of a table, held against those of the source."""
    answer = cluster.run_inside("coordinator2", Path(__file__).parent / "cluster_rows.py", table)
    there = Counter(answer["days"])
    return {
        "rows": there.total(),
        "rows_lost": (days - there).total(),
        "rows_doubled": (there - days).total() + answer["doubled"],
    }


def _victim(client: Client, chosen: Callable[[Operation], str]) -> str | None:
    running = client.table(TABLE).ordering().running
    if not running:
        return None
    operation = client.operation(running).get()
    return chosen(operation) or None if operation.runner else None


def _leader(cluster: Hosts, client: Client) -> Callable[[Operation], str]:
    return lambda _: _service(cluster, client, client.table(TABLE).get().leader or "")


def _runner(cluster: Hosts, client: Client) -> Callable[[Operation], str]:
    return lambda operation: _service(cluster, client, operation.runner)


def _service(cluster: Hosts, client: Client, member: str) -> str:
    hosts = {member.id: member.host for member in client.members()}
    return cluster.service_of(hosts[member]) if member in hosts else ""


def _codes(client: Client) -> set[str]:
    return {finding.code for finding in client.diagnose().findings if finding.severity is not Severity.NOTICE}


def _left(client: Client) -> int:
    return sum(1 for _ in client.table(TABLE).backlog())


def play(cluster: Hosts, days: Counter[str], folder: Path, *, each: bool) -> dict[str, Any]:
    """All of it; what is found in the end."""
    library = libfaketime(folder / "faketime") if each else None
    for day in days:
        cluster.put(folder / "source" / day / FILE, f"landing/{day}/{FILE}")
    print(
        f"{days.total():,} flights of 2013 in {len(days)} daily batches, where all hosts see them", flush=True
    )
    with cluster.connect() as client:
        client.create_table(
            TABLE, cluster.url(f"tables/{TABLE}"), options={"partitionBy": ["month(time_hour)"]}
        )
        client.table(TABLE).set_ordering(together=2)
        if each and isinstance(cluster, Cluster):
            faults = losses(cluster, client, library)
        else:
            faults = storm(cluster, client)
        named = strike(cluster, client, faults, days, patient=each)
        unnamed = [fault.what for fault in faults if fault.named not in ["", *named[fault.what]]]
        until(lambda: _left(client) == 0 or None, "the end of the backlog", 400)
        failed = sum(operation.state.value == "failed" for operation in client.operations(TABLE))
        marks = client.table(TABLE).watermarks()
        findings = [finding.code for finding in client.diagnose(TABLE).findings]
        streamed = {} if each else stream(cluster, client, days.total())
    figures = counted(cluster, TABLE, days)
    if not each:
        streamed |= {f"streamed_{name}": value for name, value in counted(cluster, COPY, days).items()}
    return {
        "hosts_are": cluster.hosts_are,
        **figures,
        **streamed,
        "watermarks": sum(map(len, marks.values())),
        "failed_operations": failed,
        "findings": sorted(set(findings)),
        **cluster.struck,
        **({"named": named, "unnamed": unnamed, "left_out": [] if library else [CLOCK]} if each else {}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", action="store_true", help="lose a host of each kind, one after the other")
    each = parser.parse_args().each
    began = time.monotonic()
    folder = Path(__file__).parent / "work-cluster"
    hosts: AbstractContextManager[Hosts]
    if lacking := missing():
        print(f"NO_CONTAINER_ENGINE: {lacking}", file=sys.stderr)
        if why_not := "the faults of --each need containers" if each else cluster_namespaces.unable():
            print(f"nor does it go without: {why_not}", file=sys.stderr)
            return 2
        print("the same in network namespaces, without TLS, users and an object store", file=sys.stderr)
        hosts = cluster_namespaces.started(folder)
    else:
        hosts = started()
    days = write_days(folder / "source")
    with hosts as cluster:
        print(f"the cluster is there ({time.monotonic() - began:.0f} s)", flush=True)
        figures = play(cluster, days, folder, each=each)
    figures["seconds"] = round(time.monotonic() - began)
    print(json.dumps(figures), flush=True)
    right: dict[str, Any] = {
        "rows": days.total(),
        "rows_lost": 0,
        "rows_doubled": 0,
        "watermarks": len(days),
        "failed_operations": 0,
    }
    if each:
        right["unnamed"] = []
    else:
        right |= {f"streamed_{name}": right[name] for name in ("rows", "rows_lost", "rows_doubled")}
    return int(any(figures[name] != value for name, value in right.items()))


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
