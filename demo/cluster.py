"""The flights on the cluster of deploy/compose.yaml, while its hosts die, part and stand still.

``make cluster-demo``; ``make cluster-test`` (``--each``) loses a host of each kind. They need a container
engine with Compose, and print what was found as JSON, last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import docker
from cluster_hosts import Cluster, libfaketime, missing, started
from crew import until
from flights import FILE, OPTIONS, write_days

from distop.client import Client, Operation

TABLE = "flights"
CUT_S = 20
"""How long a part of the cluster is away, four times as long as a lease lives."""

CLOCK = "the clock of a coordinator, for a while the only one, is ten minutes ahead"

Fault = tuple[str, Callable[[str], Any], Callable[[Operation], str]]
"""What happens, what does it to a service, and which it is, with an operation at work."""


def storm(cluster: Cluster, client: Client) -> list[Fault]:
    """What the demo shows."""
    return [
        ("a worker of Spark is killed -9", cluster.killed, lambda _: "worker1"),
        ("the coordinator that leads is cut off", cluster.parted, lambda _: _leader(client)),
        ("a member of etcd is killed -9", cluster.killed, lambda _: "etcd2"),
        ("the executor at work stands still", cluster.paused, _runner(client)),
        ("a sidecar is killed -9", cluster.killed, lambda _: "sidecar2"),
        ("the coordinator that leads is killed -9", cluster.killed, lambda _: _leader(client)),
    ]


def losses(cluster: Cluster, client: Client, library: Path | None) -> list[Fault]:
    """A host of each kind, and what a host may suffer that is not dead."""
    faults: list[Fault] = [
        ("a member of etcd is killed -9", cluster.killed, lambda _: "etcd1"),
        ("the coordinator that leads is killed -9", cluster.killed, lambda _: _leader(client)),
        ("the executor at work is killed -9", cluster.killed, _runner(client)),
        ("a worker of Spark is killed -9", cluster.killed, lambda _: "worker1"),
        ("the master of Spark is killed -9", cluster.killed, lambda _: "master"),
        ("all sidecars are killed -9", cluster.killed, lambda _: "sidecar1 sidecar2"),
        ("the object store is killed -9", cluster.killed, lambda _: "s3"),
        ("the disk of a worker is full", cluster.filled, lambda _: "worker1"),
        ("the network of the coordinator that leads is slow", cluster.slowed, lambda _: _leader(client)),
    ]
    if library:
        faults.append((CLOCK, partial(_alone_and_ahead, cluster, library), lambda _: "coordinator1"))
    return faults


@contextmanager
def _alone_and_ahead(cluster: Cluster, library: Path, service: str) -> Iterator[None]:
    with cluster.ahead(service, library):
        with cluster.killed("coordinator2"):
            time.sleep(CUT_S)
        # Its clock shows when another coordinator registers after it, with an earlier time.
        yield


def strike(client: Client, faults: list[Fault], names: Iterable[str]) -> dict[str, list[str]]:
    """One fault after the other, each in the middle of an operation, with more batches behind it; what
    ``distop doctor`` found during each."""
    named: dict[str, list[str]] = {}
    days = sorted(names)
    share = -(-len(days) // len(faults))
    for number, (what, fault, chosen) in enumerate(faults):
        for day in days[number * share : (number + 1) * share]:
            client.enqueue(TABLE, day, "ingest", {"paths": [f"s3://landing/{day}"], **OPTIONS})
        service = until(partial(_victim, client, chosen), "an operation at work", 120)
        before = _left(client)
        with fault(service):
            time.sleep(CUT_S)
            applied = before - _left(client)
            why = client.explain(TABLE).sentence
            named[what] = sorted({one.code for one in client.diagnose().findings})
        print(f"  {what} ({service}) for {CUT_S} s: {applied} batches were applied meanwhile", flush=True)
        print(f"    why: {why}; doctor: {' '.join(named[what]) or 'nothing'}", flush=True)
    return named


def _victim(client: Client, chosen: Callable[[Operation], str]) -> str | None:
    running = client.ordering(TABLE).running
    if not running:
        return None
    operation = client.get(running)
    return chosen(operation) or None if operation.runner else None


def _leader(client: Client) -> str:
    """The service that leads the table; its container is the member's host."""
    leader = client.get_table(TABLE).leader
    return _service(client, leader) if leader else ""


def _runner(client: Client) -> Callable[[Operation], str]:
    return lambda operation: _service(client, operation.runner)


def _service(client: Client, member: str) -> str:
    hosts = {one.id: one.host for one in client.members()}
    if member not in hosts:
        return ""
    found = docker.from_env(timeout=60).containers.get(hosts[member])
    return str(found.labels["com.docker.compose.service"])


def _left(client: Client) -> int:
    return sum(1 for _ in client.backlog(TABLE))


def play(cluster: Cluster, days: Counter[str], folder: Path, *, each: bool) -> dict[str, Any]:
    """All of it; what is found in the end."""
    source, library = folder / "source", libfaketime(folder / "faketime") if each else None
    storage = cluster.storage()
    for day in days:
        storage.put_file(str(source / day / FILE), f"landing/{day}/{FILE}")
    print(f"{days.total():,} flights of 2013 in {len(days)} daily batches, in the object store", flush=True)
    with cluster.connect() as client:
        client.create_table(TABLE, f"s3://tables/{TABLE}", options={"partitionBy": ["month(time_hour)"]})
        client.set_ordering(TABLE, together=2)
        faults = losses(cluster, client, library) if each else storm(cluster, client)
        named = strike(client, faults, days)
        until(lambda: _left(client) == 0 or None, "the end of the backlog", 400)
        failed = sum(found.state.value == "failed" for found in client.list(TABLE))
        marks = client.watermarks(TABLE)
        findings = [one.code for one in client.diagnose(TABLE).findings]
    found = cluster.run_inside("coordinator2", Path(__file__).parent / "cluster_rows.py")
    counted = Counter(found["days"])
    return {
        "rows": counted.total(),
        "rows_lost": (days - counted).total(),
        "rows_doubled": (counted - days).total() + found["doubled"],
        "watermarks": sum(map(len, marks.values())),
        "failed_operations": failed,
        "findings": sorted(set(findings)),
        **cluster.struck,
        **({"named": named, "left_out": [] if library else [CLOCK]} if each else {}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", action="store_true", help="lose a host of each kind, one after the other")
    each = parser.parse_args().each
    began = time.monotonic()
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 2
    folder = Path(__file__).parent / "work-cluster"
    days = write_days(folder / "source")
    with started() as cluster:
        print(f"the cluster is there ({time.monotonic() - began:.0f} s)", flush=True)
        found = play(cluster, days, folder, each=each)
    found["seconds"] = round(time.monotonic() - began)
    print(json.dumps(found), flush=True)
    right = {
        "rows": days.total(),
        "rows_lost": 0,
        "rows_doubled": 0,
        "watermarks": len(days),
        "failed_operations": 0,
    }
    if each and CLOCK in found["named"] and "CLOCK_SKEW" not in found["named"][CLOCK]:
        print(f"doctor did not see that {CLOCK}", file=sys.stderr)
        return 1
    return int(any(found[name] != value for name, value in right.items()))


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
