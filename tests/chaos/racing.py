"""Ten writers of three engines on one table at once, while coordinators are killed."""

import asyncio
import sys
from pathlib import Path

from chaos.cluster import TOKEN
from chaos.commits import append_batch
from chaos.lab import Lab
from support.repository import ROOT, TESTS

MOST_KILLS = 10
ROWS = 3
"""Of each writer over HTTP."""
WRITERS = {"pyiceberg": 6, "duckdb": 3}
"""Over HTTP; the tenth is Spark with ``format("distop")``."""


def engines() -> dict[str, Path]:
    """The Python of each engine that is there: `make conformance` installs them."""
    pythons = {"pyiceberg": Path(sys.executable)}
    folder = ROOT / "build/conformance/venv-duckdb"
    if (folder / "ready").exists():
        pythons["duckdb"] = folder / "bin/python"
    return pythons


async def ten_writers(lab: Lab) -> list[str]:
    """pyiceberg and DuckDB over HTTP, and Spark: every row once. What is not installed is left out."""
    book = await lab.table("raced", apart=True, partitionBy=[])
    problems = await lab.ended(await lab.ingest(book))
    pythons, working, rows = engines(), [], list[int]()
    if missing := sorted(WRITERS.keys() - pythons.keys()):
        print(f"    left out, since they are not installed: {', '.join(missing)}", flush=True)
    catalogs = [f"http://{service.catalog}" for service in lab.cluster.coordinators()]
    for engine, python in pythons.items():
        for writer in range(WRITERS[engine]):
            ids = [lab.sources.next_id() for _ in range(ROWS)]
            rows += ids
            script = str(TESTS / f"chaos/rest_writers/with_{engine}.py")
            url = catalogs[writer % len(catalogs)]
            words = (str(python), script, url, TOKEN, book.table, str(ids[0]), str(ROWS))
            working.append(lab.command(f"{engine}-writer", *words))
    killing = asyncio.create_task(_kill_coordinators(lab))
    try:
        await asyncio.gather(append_batch(lab, book), *working)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    book.foreign += rows
    book.fresh |= set(rows)
    return problems


async def _kill_coordinators(lab: Lab) -> None:
    """One after the other, as soon as both are there."""
    for _ in range(MOST_KILLS):
        await lab.cluster.ready(coordinators=2)
        await asyncio.sleep(lab.rng.uniform(1.0, 4.0))
        service = lab.rng.choice(lab.cluster.coordinators())
        if service.process is not None and service.running:
            service.process.kill()
