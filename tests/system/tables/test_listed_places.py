"""An installation with lists of where tables and sources lie: it works, and reaches nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from distop.errors import DistopError
from distop.lake.storage.allowed import ENDPOINTS, LOCATIONS, SOURCES
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.whole import Whole, whole, write_csv

AWAY = [
    *(f"{scheme}/etc/shadow" for scheme in ("", "file://", "FILE://", "file:", "simplecache::file://")),
    "{listed}/../away/1.csv",
    "{listed}/link/1.csv",
    "http://169.254.169.254/latest/meta-data.csv",
    *(f"http://{host}/a.csv" for host in ("127.0.0.1:1", "127.1:1", "[::1]:1", "0")),
    *(f"{scheme}://127.0.0.1/a.csv" for scheme in ("ftp", "webhdfs", "sftp", "smb")),
    *("github://a:b@main/a.csv", "gist://a/b", "reference://a", "memory://a.csv", "git:///etc"),
    *("zip://a.csv::{listed}/1.csv", "hf://a/b", "jupyter://a", "dask://a", "s3://bucket/a.csv"),
]
"""Sources that are not listed, and schemes of fsspec that nobody has thought of."""

PLACES = [
    *("/etc/t", "{tables}/../t", "{tables}/link/t", "memory://t"),
    *("FILE:///etc/t", "local:///etc/t", "s3://b/t"),
]

RULES = [
    "getenv('HOME') = kind",
    "read_text('/etc/passwd') = kind",
    "id > (SELECT max(id) FROM read_csv('/etc/passwd'))",
    "id > 0; COPY (SELECT 1) TO '/tmp/x'",
    "id > 0) FROM rows; INSTALL httpfs; --",
    "nextval('s') > id",
    "random() > id",
]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sources; next to it the folder of the tables, and folders that links lead to."""
    source, tables, away = (tmp_path / name for name in ("in", "tables", "away"))
    write_csv(source, "1.csv", 0, 10)
    write_csv(away, "1.csv", 0, 10)
    tables.mkdir()
    for folder in (source, tables):
        (folder / "link").symlink_to(away)
    monkeypatch.setenv(SOURCES, f"{source},https://")
    monkeypatch.setenv(LOCATIONS, str(tables))
    monkeypatch.setenv(ENDPOINTS, "")
    return source


async def refused(service: Whole, kind: str, **argument: Any) -> DistopError:
    """Why an operation is not begun."""
    with pytest.raises(DistopError) as caught:
        await service.client.start("t", kind, argument)
    return caught.value


async def test_an_installation_works_in_listed_places_and_reaches_no_others(
    tmp_path: Path, listed: Path, etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """S1: tables that lie right in a listed folder, too, and operations of every kind of source."""
    tables = tmp_path / "tables"
    async with whole(etcd_config, tables, client) as service:
        ended = await service.ingest(listed / "1.csv")
        assert ended.error is None
        for kind in ("compact", "validate"):
            argument = {"rules": ["id >= 0"]} if kind == "validate" else {}
            await service.succeeds(kind, **argument)
        for source in AWAY:
            error = await refused(service, "ingest", paths=source.format(listed=listed))
            assert error.code in ("NOT_ALLOWED", "INVALID_ARGUMENT", "SOURCE_UNREADABLE"), (source, error)
            assert "defect" not in error.hint
        for rule in RULES:
            assert (await refused(service, "validate", rules=[rule])).code == "INVALID_ARGUMENT", rule
        for place in PLACES:
            with pytest.raises(DistopError) as caught:
                await service.client.create_table("u", place.format(tables=tables))
            assert caught.value.code in ("NOT_ALLOWED", "INVALID_ARGUMENT"), (place, caught.value)
        assert await asyncio.to_thread(service.ids) == list(range(10))
    assert {path.name for path in (tmp_path / "away").iterdir()} == {"1.csv"}
