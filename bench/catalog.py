"""Commits and loads of tables through the catalog, against pyiceberg's catalog in a database.

    make bench-catalog

Four processes commit for some seconds, to one table all of them, then each to any of 100 tables: a property
of the table changes, so that what is measured is the catalog. A writer that loses a race loads the table and
commits again; only commits that have succeeded count. Then one process loads tables. In turns, in one run:
pyiceberg's ``SqlCatalog`` on SQLite, which Python programs use without a server, and on PostgreSQL;
distop's ``EtcdCatalog``, which is the same to a program; and pyiceberg's ``RestCatalog`` with a
coordinator, and with Iceberg's own REST service (in Java, over PostgreSQL). Metadata is on one disk; the
best of three rounds counts for each. What is compared with is installed into ``build/bench``, for this
alone; what needs PostgreSQL is left out where that is not installed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

from common import Processes, is_small, print_json, print_table, sized, skip
from peers.catalogs import USER, missing, postgres, rest_service
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port

WRITERS, TABLES, LOADS = sized((4, 100, 300), (1, 2, 3))
SECONDS = sized(4.0, 0.2)
ROUNDS = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdecimal() else sized(3, 1)
DRIVERS = ("sqlalchemy==2.*", "psycopg2-binary==2.*")
SCHEMA = Schema(NestedField(1, "id", LongType()))
LIBRARIES = Path(__file__).resolve().parents[1] / "build/bench"
CATALOGS = {
    "sqlite": "SqlCatalog on SQLite",
    "postgres": "SqlCatalog on PostgreSQL",
    "java": "RestCatalog, Iceberg's own service",
    "etcd": "EtcdCatalog",
    "rest": "RestCatalog, one coordinator",
}
OF_DISTOP = ("etcd", "rest")


def name_of(number: int) -> tuple[str, str]:
    return ("bench", f"t{number}")


def work(properties: str, number: int, tables: int, go: Path) -> None:
    """One writer: prints how many commits it has made in :data:`SECONDS`, once the file ``go`` exists."""
    catalog, chance, done = opened(json.loads(properties)), Random(number), 0
    catalog.load_table(name_of(0))
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.01)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        table = catalog.load_table(name_of(chance.randrange(tables)))
        with suppress(CommitFailedException):
            with table.transaction() as transaction:
                transaction.set_properties({f"writer-{number}": str(done)})
            done += 1
    print(done, flush=True)


def opened(properties: dict[str, str]) -> Catalog:
    return load_catalog("bench", **properties)


def rate(properties: dict[str, str], tables: int, folder: Path) -> float:
    """Commits per second of all writers together, to so many tables."""
    go = folder / f"go-{time.monotonic_ns()}"
    path = os.pathsep.join((str(LIBRARIES), os.environ.get("PYTHONPATH", "")))
    writers = [
        subprocess.Popen(
            [sys.executable, __file__, "work", json.dumps(properties), str(number), str(tables), str(go)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None
        if writer.stdout.readline() != "ready\n":
            raise SystemExit("a writer has not started")
    go.touch()
    done = [writer.communicate(timeout=SECONDS + 60)[0] for writer in writers]
    return sum(int(each) for each in done) / SECONDS


def loads(properties: dict[str, str]) -> float:
    """Seconds that loading a table takes, the median."""
    catalog, taken = opened(properties), []
    for number in range(LOADS):
        began = time.perf_counter()
        catalog.load_table(name_of(number % TABLES))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(catalogs: dict[str, dict[str, str]], folder: Path) -> dict[str, dict[str, float]]:
    """For each catalog: commits per second to ``one`` table and to ``all``, and the seconds of a ``load``."""
    best = {name: {"one": 0.0, "all": 0.0, "load": float("inf")} for name in catalogs}
    for name, properties in catalogs.items():
        if name == "rest":  # it serves the tables of etcd
            continue
        catalog = opened(properties)
        catalog.create_namespace("bench")
        for number in range(TABLES):
            catalog.create_table(name_of(number), SCHEMA)
    for _ in range(ROUNDS):
        for name, properties in catalogs.items():
            figures = best[name]
            figures["one"] = max(figures["one"], rate(properties, 1, folder))
            figures["all"] = max(figures["all"], rate(properties, TABLES, folder))
            figures["load"] = min(figures["load"], loads(properties))
    return best


def over(distop: dict[str, float], peers: dict[str, dict[str, float]]) -> float:
    """The smallest ratio of a rate of distop's to the same rate of a peer: the bar holds for each of them."""
    return round(min(distop[rate] / of[rate] for of in peers.values() for rate in ("one", "all")), 2)


def install() -> None:
    """Install the drivers that the peers need into :data:`LIBRARIES`, for this benchmark alone."""
    if not is_small():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "--target", str(LIBRARIES), *DRIVERS], check=True)
    elif not (LIBRARIES / "sqlalchemy").is_dir():
        skip("SqlCatalog needs SQLAlchemy in build/bench: make bench-catalog downloads it")
    sys.path.insert(0, str(LIBRARIES))


def main() -> None:
    install()
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="distop-bench-")))
        etcd = ending.enter_context(EtcdProcess(folder / "etcd"))
        environment = EtcdConfig(endpoints=(etcd.endpoint,)).to_env()
        processes, address = ending.enter_context(Processes(folder, environment)), f"127.0.0.1:{free_port()}"
        warehouse = f"file://{folder}/etcd-tables"
        served = ("--listen", "127.0.0.1:0", "--catalog", address, "--warehouse", warehouse)
        processes.start("coordinator", "coordinator", *served)
        catalogs = {
            "sqlite": {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"file://{folder}/sql-tables",
            },
            "etcd": {
                "py-catalog-impl": "distop.catalog.EtcdCatalog",
                "etcd.endpoints": etcd.endpoint,
                "warehouse": warehouse,
            },
            "rest": {"type": "rest", "uri": f"http://{address}"},
        }
        if without := "--small" if is_small() else missing():
            print(f"left out: {CATALOGS['postgres']} and {CATALOGS['java']}: {without}")
        else:
            database = ending.enter_context(postgres())
            catalogs["postgres"] = {
                "type": "sql",
                "uri": f"postgresql+psycopg2://{USER}@{database}",
                "warehouse": f"file://{folder}/postgres-tables",
            }
            another = ending.enter_context(rest_service(ending.enter_context(postgres()), folder / "java"))
            catalogs["java"] = {"type": "rest", "uri": another}
        best = measure({name: catalogs[name] for name in CATALOGS if name in catalogs}, folder)
    etcd_catalog, rest = best["etcd"], best["rest"]
    peers = {name: of for name, of in best.items() if name not in OF_DISTOP}
    rows = [
        (CATALOGS[name], f"{of['one']:.0f}", f"{of['all']:.0f}", f"{of['load'] * 1e3:.1f}")
        for name, of in best.items()
    ]
    headings = ("catalog", "commits/s, one table", f"commits/s, {TABLES} tables", "load, p50 ms")
    print_table(f"{WRITERS} processes that commit", headings, rows)
    print_json(
        commits_per_s_one=round(etcd_catalog["one"], 1),
        commits_per_s_100=round(etcd_catalog["all"], 1),
        load_p50_ms=round(etcd_catalog["load"] * 1e3, 2),
        over_peer=over(etcd_catalog, peers),
        rest_commits_per_s_one=round(rest["one"], 1),
        rest_commits_per_s_100=round(rest["all"], 1),
        rest_load_p50_ms=round(rest["load"] * 1e3, 2),
        rest_over_peer=over(rest, peers),
        **{f"over_{name}": over(etcd_catalog, {name: of}) for name, of in peers.items()},
        **{f"rest_over_{name}": over(rest, {name: of}) for name, of in peers.items()},
        **{f"{name}_load_p50_ms": round(of["load"] * 1e3, 2) for name, of in peers.items()},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main()
