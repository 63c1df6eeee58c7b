"""What the pages show is what happens: each block of README.md and docs is run, in the order of its page."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from distop.cli import project
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.pages import Reader, blocks, lines, reading
from support.repository import ROOT

README, TOUR, TUTORIAL = "README.md", "docs/first-steps.md", "docs/tutorial.md"

PAGES = [
    README,
    TOUR,
    "docs/again.md",
    "docs/changing-tables.md",
    "docs/cookbook.md",
    "docs/ingest.md",
    "docs/ordered-batches.md",
    "docs/sources/avro.md",
    "docs/sources/csv.md",
    "docs/sources/json-lines.md",
    "docs/sources/parquet.md",
]
"""Pages that begin with nothing."""

FLIGHTS = {
    "docs/catalog.md": "",
    "docs/indexes.md": "",
    "docs/maintenance.md": "",
    "docs/operating.md": """
distop operation start flights audit --wait
distop table create people --location /tmp/people-table
distop table ingest people /tmp/flights.csv --wait
""",
    "docs/schedulers.md": "",
    "docs/sdk.md": "",
    "docs/validation.md": "",
    "docs/writing-operations.md": "",
}
"""Pages that go on with the table of the tour, and what else they speak of."""

SPARK = "needs Spark, which is not started here"
CONFORMANCE = "make conformance runs it"

NOT_RUN = {
    TOUR: [
        "tests/system/deployed/test_three_ways.py runs it where a container engine answers",
        "tests/system/deployed/test_three_ways.py renders it",
    ],
    "docs/again.md": ["tests/system/again/test_again.py does the same"] * 2,
    "docs/deploying.md": [
        "tests/system/deployed/test_project.py runs the services of that file",
        "it builds images",
        "it needs a container engine with Compose",
        "it needs root and systemd",
        "it needs a cluster",
        "it needs a cluster of Spark",
        "it needs hosts of their own",
        "it needs YARN",
    ],
    "docs/engines/daft.md": [CONFORMANCE],
    "docs/engines/polars.md": [CONFORMANCE],
    "docs/engines/sail.md": [CONFORMANCE],
    "docs/engines/spark.md": [CONFORMANCE],
    "docs/ingest.md": [SPARK, SPARK],
    "docs/operating.md": [
        "these services run until they are stopped",
        "an executor runs until it is stopped",
        "it runs until it is stopped",
        "tests/system/tables/test_restored.py does the same",
        "needs an etcdutl of 3.5.10 or newer; tests/system/tables/test_restored.py runs the same",
    ],
    "docs/schedulers.md": [
        "tests/system/deployed/test_airflow.py runs it under Airflow",
        "tests/system/deployed/test_dagster.py runs it with Dagster",
        "a script, which a test of its own runs and kills",
    ],
    "docs/security.md": [
        "it runs until it is stopped",
        "a test of its own runs it, with certificates and ports of its own",
        "a coordinator runs until it is stopped, and this one in a pod",
        "it needs a coordinator that knows who calls",
        "the cursor is made up",
    ],
    "docs/spark-data-source.md": [SPARK, SPARK, SPARK],
    "docs/writing-operations.md": ["the tests of the examples run apart"],
    "docs/ordered-batches.md": ["tests/integration/coordinator/backlog/test_staged_batches.py does the same"],
}
"""Blocks that are not run, by page, and why."""


@pytest_asyncio.fixture
async def reader(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("DISTOP_PREFIX", etcd_config.prefix)
    async with reading(etcd_config, client, tmp_path) as found:
        yield found


@pytest.mark.parametrize("page", PAGES)
async def test_commands_of_a_page_print_what_the_page_shows(page: str, reader: Reader) -> None:
    await asyncio.to_thread(reader.run, page)


@pytest.mark.parametrize("page", FLIGHTS)
async def test_what_a_page_does_with_the_table_of_the_tour(page: str, reader: Reader) -> None:
    for line in lines(blocks(TOUR)[1].code + FLIGHTS[page]):
        await asyncio.to_thread(reader.type, line)
    await asyncio.to_thread(reader.run, page)


async def test_a_new_project_runs_as_its_readme_says(reader: Reader, tmp_path: Path) -> None:
    reader.at = tmp_path / "shop"
    project.write(reader.at)
    await asyncio.to_thread(reader.run, "cli/project/files/README.md")


def test_every_page_with_blocks_is_run_and_what_is_not_is_known() -> None:
    pages = [README, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    # The last one is typed by test_packaging.py, where distop is installed.
    runs = [page for page in pages if any(not block.why_not for block in blocks(page))]
    assert sorted(runs) == sorted([*PAGES, *FLIGHTS, TUTORIAL])
    left_out = {page: [block.why_not for block in blocks(page) if block.why_not] for page in pages}
    assert {page: why for page, why in left_out.items() if why} == NOT_RUN
