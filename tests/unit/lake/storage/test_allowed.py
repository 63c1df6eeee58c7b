"""What is opened for callers, and what is not."""

import http.server
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.cli.options.services import AllowOptions
from distop.errors import InvalidArgument, NotAllowed, Unavailable
from distop.executor.launch.spark_task import SparkTask
from distop.lake.altering import check_options
from distop.lake.layout.model import Layout, file_io
from distop.lake.storage import allowed
from distop.lake.storage import storage as storage_module
from distop.lake.storage.allowed import ENDPOINTS, LOCATIONS, SOURCES, check_location, check_source
from distop.lake.storage.storage import (
    delta_options,
    file_system,
    io_properties,
    may_connect,
    opened_with,
    storage_from,
)
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.locations import canonical
from distop.sources.formats.files import OpenFile, find_files
from distop.sources.kafka.client import consumer_settings
from distop.spark_jobs.tables import open_snapshot
from support.tables.publishing import ROWS, Table, rows


@pytest.fixture(autouse=True)
def _unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SOURCES, LOCATIONS, ENDPOINTS, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that may be read, next to a secret that may not."""
    made = tmp_path / "in"
    made.mkdir()
    (tmp_path / "secret").write_text("id\n1\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "1.csv").write_text("id\n1\n")
    monkeypatch.setenv(SOURCES, str(made))
    return made


LISTED = "/data/in,s3://bucket/in,HTTPS://Files.example.com/a/,gs://,kafka://broker:9092"


OPENED = """
/data/in  /data/in/2024/*.csv  file:///data/in/x  /data//in/./x  /data/other/../in/x
s3://bucket/in  s3a://bucket/in/x  S3://bucket/in/x
https://files.example.com/a/x?y=1  gs://any/x  kafka://broker:9092
"""
REFUSED = r"""
/etc/shadow  etc/shadow  /data/input  /data/in/../secret  /data/in/x/../../secret
file:/etc/shadow  file:////etc/shadow  FILE:///etc/shadow  local:///etc/shadow
s3://bucket/input/x  s3://bucket/in/../x  s3://bucket2/in/x
https://files.example.com/a/../b  https://files.example.com/a/%2e%2e/b  https://files.example.com/a/..%2fb
https://files.example.com/a\..\b  https://files.example.com@evil.com/a/x  https://evil.com/a/x
https://files.example.com:8080/a/x  http://files.example.com/a/x
simplecache::file:///etc/shadow  filecache::s3://bucket/in/x  zip://x::file:///data/in/x.zip
gs://a::file:///etc/shadow  jar:file:///x!/y  libarchive://x  reference://x  memory://x  dask://x
github://a:b@c/x  ftp://h/x  sftp://h/x  webhdfs://h/x  smb://h/x  data:text/plain,x  kafka://broker:9093
"""


def test_urls_below_a_listed_prefix_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES, LISTED)
    for url in OPENED.split():
        check_source(url)


def test_everything_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: whatever the spelling; the error says what to ask for."""

    def refused(check: Callable[[str], object], url: str, option: str) -> bool:
        try:
            check(url)
        except NotAllowed as error:
            return option in str(error)
        return False

    urls = [*REFUSED.split(), "", "https://files.example.com/a/.\n./b"]
    monkeypatch.setenv(SOURCES, LISTED)
    assert [url for url in urls if not refused(check_source, url, "--allow-source")] == []
    monkeypatch.setenv(LOCATIONS, LISTED)
    assert [url for url in urls if not refused(check_location, url, "--allow-location")] == []


@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_a_url_with_a_password_is_refused_not_repeated(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: whatever is listed."""
    url = f"{chain}https://jane:hers@files.example.com/rows.csv"
    for variable in (SOURCES, LOCATIONS):
        monkeypatch.setenv(variable, "*")
    for check in (check_source, check_location, canonical, lambda named: find_files([named])):
        with pytest.raises(InvalidArgument, match="a URL with a password") as refused:
            check(url)
        assert "hers" not in f"{refused.value!r} {refused.value.hint}"
    for check in (check_source, check_location, canonical):
        check("https://jane@files.example.com/a:b@c.csv")


def test_links_do_not_lead_out_of_a_folder(folder: Path) -> None:
    """S1: neither one that is named, nor one that is found, nor a folder, nor what a pattern matches."""
    (folder / "1.csv").write_text("id\n1\n")
    assert len(find_files([str(folder)]).files) == 1
    (folder / "link.csv").symlink_to(folder.parent / "secret")
    (folder / "sub").symlink_to(folder.parent / "inside")
    for named in ("link.csv", "", "*", "sub", "sub/1.csv", "l*"):
        with pytest.raises(NotAllowed):
            find_files([f"{folder}/{named}"])


def test_a_link_that_comes_after_the_plan_is_not_followed(folder: Path) -> None:
    """S1: what is opened is looked at when it is opened."""
    file = folder / "1.csv"
    file.write_text("id\n1\n")
    opened = OpenFile.at(str(folder), "1.csv")
    file.unlink()
    file.symlink_to(folder.parent / "secret")
    with pytest.raises(NotAllowed):
        opened.open()


def test_tables_are_opened_in_listed_places_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: through every door to the files of a table."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "out").symlink_to(tmp_path)
    monkeypatch.setenv(LOCATIONS, f"file://{tmp_path}/tables/,s3://tables/")
    for good in (f"{tmp_path}/tables/a", "s3://tables/a"):
        file_io(good), file_system(good, {"key": "k", "secret": "s"}), delta_options(good)
    for bad in ("/etc/distop", f"{tmp_path}/tables/../x", f"{tmp_path}/tables/out/x", "s3://others/a"):
        for door in (file_io, file_system, io_properties, delta_options):
            with pytest.raises(NotAllowed):
                door(bad)
    io = file_io(f"{tmp_path}/tables/a")
    out = f"file://{tmp_path}/tables/out"
    broken = f"file://{tmp_path}/tables/o\nut/x"
    ways: list[Callable[[str], object]] = [io.new_input, io.new_output, io.delete]
    for elsewhere, way in itertools.product(
        ("/etc/hostname", f"{out}/x", f"{out}?/x", f"{out}#/x", broken), ways
    ):
        with pytest.raises(NotAllowed):
            way(elsewhere)
    with pytest.raises(NotAllowed):
        pickle.loads(pickle.dumps(io)).new_input("/etc/hostname")


def test_a_table_with_files_elsewhere_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a writer to a table can add any file to its metadata."""
    monkeypatch.setenv(LOCATIONS, str(tmp_path))
    table = Table("flights", str(tmp_path / "tables" / "flights"), Layout.create(ROWS, ["kind"]))
    table.publish(table.staged([rows(0, 3)]))
    snapshot = open_snapshot(table.record().metadata_location)
    found = snapshot.plan_files()
    monkeypatch.setenv(LOCATIONS, str(tmp_path / "tables" / "flights" / "metadata"))
    snapshot = open_snapshot(table.record().metadata_location)
    with pytest.raises(NotAllowed):
        list(snapshot.batches(found))


EVIL = {"endpoint_url": "https://evil.example.com"}


@pytest.mark.parametrize(
    "storage",
    [
        EVIL,
        {"client_kwargs": EVIL},
        {**EVIL, "key": "k"},
        {**EVIL, "token": "t"},
        {**EVIL, "client_kwargs": {"aws_access_key_id": "k"}},
        {**EVIL, "key": "k", "secret": "${env:DISTOP_SECRET_A}"},
        {**EVIL, "key": "k", "secret": "s", "token": "${file:a}"},
        {"endpoint_url": "http://169.254.169.254", "key": "k", "secret": "s"},
        {"endpoint_url": "http://127.0.0.1:9000", "anon": True},
        {"endpoint_url": "http://minio:9000@evil.example.com"},
    ],
)
def test_an_endpoint_that_a_caller_names_gets_no_credentials_of_ours(
    storage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S5: and is none that only this host can reach."""
    monkeypatch.setenv(LOCATIONS, "s3://")
    monkeypatch.setenv(ENDPOINTS, "http://minio:9000")
    for door in (io_properties, file_system, file_io, delta_options):
        with pytest.raises(NotAllowed) as refused:
            door("s3://b/x", storage)
        assert refused.value.details["field"] == "storage"
    monkeypatch.delenv(SOURCES)  # of a user's own program, too
    if "anon" not in storage and "169" not in str(storage):
        with pytest.raises(NotAllowed):
            io_properties("s3://b/x", storage)


def test_the_endpoint_of_a_catalog_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its creator configures the endpoint, with the credentials of the environment."""
    properties = {"etcd.endpoints": "127.0.0.1:9", "s3.endpoint": "http://minio:9000"}
    for _ in range(2):
        EtcdCatalog("mine", **properties).close()
    assert opened_with(storage_from(properties))
    assert allowed.lists()[ENDPOINTS] == "http://minio:9000"


def test_a_name_server_that_gave_no_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES, "")
    answers = iter([set[str](), {"8.8.8.8"}])
    monkeypatch.setattr(storage_module, "addresses", lambda _: next(answers))
    storage = {"endpoint_url": "https://asked-again.example.com", "key": "k", "secret": "s"}
    with pytest.raises(Unavailable, match=r"asked-again\.example\.com"):
        opened_with(storage)
    assert opened_with(storage) == opened_with(storage)


def test_a_listed_endpoint_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS, "http://minio:9000")
    assert opened_with({"endpoint_url": "http://minio:9000"})
    assert opened_with({"endpoint_url": "http://8.8.8.8", "key": "k", "secret": "s"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://ours:1")
    assert opened_with({"endpoint_url": "http://ours:1"})


SECRETS = ["${env:PATH}", "${env:DISTOP_ETCD_PASSWORD}", "${file:../a}", "${file:/etc/shadow}"]
TOKENS = ["/etc/passwd", "google_default", {"type": "service_account", "token_uri": "http://169.254.169.254"}]
CLIENTS = [
    "x",
    {"verify": "/etc/shadow"},
    {"region_name": "x@evil.com/"},
    {"api_version": "../../../../tmp/mine"},
]
LEADING_ELSEWHERE: list[dict[str, Any]] = [
    *({"key": secret} for secret in SECRETS),
    *({"token": token} for token in TOKENS),
    *({"client_kwargs": client} for client in CLIENTS),
    {"profile": "admin"},
    {"session": "x"},
    {"s3_additional_kwargs": {"ACL": "public-read"}},
    {"endpoint_url": ["http://169.254.169.254"]},
    {"config_kwargs": {"proxies": {"https": "http://evil.com"}}},
    {"config_kwargs": {"client_cert": "/etc/shadow"}},
    {"target_protocol": "file"},
    {"fo": "/etc/shadow"},
    {"account_name": "evil.com/"},
    {"connection_string": "BlobEndpoint=https://evil.com"},
]


def test_options_that_lead_elsewhere_are_refused() -> None:
    """S1: by name; secrets that were not put there to be referred to are not read."""
    for storage in LEADING_ELSEWHERE:
        with pytest.raises(InvalidArgument) as refused:
            opened_with(storage)
        assert refused.value.details["field"] == "storage", storage


def test_secrets_may_be_referred_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: the record has their names, and who opens files their values."""
    (tmp_path / "minio").write_text("of a file\n")
    monkeypatch.setenv("DISTOP_SECRETS", str(tmp_path))
    monkeypatch.setenv("DISTOP_SECRET_KEY", "of the environment")
    monkeypatch.setenv(LOCATIONS, "s3://")
    storage = {"key": "${env:DISTOP_SECRET_KEY}", "client_kwargs": {"aws_secret_access_key": "${file:minio}"}}
    found = io_properties("s3://b/x", storage)
    assert found["s3.access-key-id"] == "of the environment"
    assert found["s3.secret-access-key"] == "of a file"


def test_kafka_is_reached_where_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: brokers and issuers of tokens get our credentials."""
    monkeypatch.setenv(SOURCES, "kafka://broker:9092")
    assert consumer_settings("broker:9092", {})
    with pytest.raises(NotAllowed):
        consumer_settings("broker:9092,evil:9092", {})
    with pytest.raises(NotAllowed):
        consumer_settings("broker:9092", {"sasl.oauthbearer.token.endpoint.url": "http://169.254.169.254"})


class _Web(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/in/redirect"):
            self.send_response(302)
            port = self.headers["Host"].rpartition(":")[2]
            self.send_header("Location", f"http://127.0.0.2:{port}/in/secret.csv")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"id\n1\n")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), _Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_web_servers_of_this_host_are_not_reached(web: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: unless they are listed by name; a redirect leads to no other one."""
    pytest.importorskip("aiohttp")
    url = f"http://127.0.0.1:{web}/in/a.csv"
    monkeypatch.setenv(SOURCES, "http://")
    for local in (url, f"http://localhost:{web}/in/a.csv", f"http://[0:0:0:0:0:ffff:7f00:1]:{web}/in/a.csv"):
        with pytest.raises(Exception, match="cannot be read"):
            find_files([local])
    monkeypatch.setenv(SOURCES, f"http://127.0.0.1:{web}/in/")
    (found,) = find_files([url]).files
    assert found.size == 5
    with pytest.raises(Exception, match="cannot be read"):
        find_files([f"http://127.0.0.1:{web}/in/redirect.csv"])


def test_addresses_that_only_this_host_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1"""
    monkeypatch.setenv(SOURCES, "https://")
    local = "127.0.0.1 169.254.169.254 10.1.2.3 192.168.0.1 0.0.0.0"
    for address in f"{local} ::1 fe80::1%eth0 ::ffff:169.254.169.254 fd00:ec2::254".split():
        assert not may_connect(address)
    assert may_connect("8.8.8.8")
    monkeypatch.setenv(SOURCES, "https://10.1.2.3/")
    assert may_connect("10.1.2.3")
    assert not may_connect("8.8.8.8")


def test_a_table_is_not_created_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: neither in a folder that is not listed, nor with an endpoint that would get our credentials."""
    monkeypatch.setenv(LOCATIONS, "s3://tables/")
    with pytest.raises(NotAllowed, match="--allow-location"):
        check_options(TableRecord(name="t", location="file:///etc/t"))
    with pytest.raises(NotAllowed, match="--allow-endpoint"):
        check_options(TableRecord(name="t", location="s3://tables/t", options={"storage": EVIL}))
    check_options(TableRecord(name="t", location="s3://tables/t"))


def test_options_of_a_service_come_on_top_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES, "/a")
    AllowOptions(allow_source=["/b", "s3://c/"], allow_endpoint=["http://minio:9000"])
    for source in ("/a/x", "/b/x", "s3://c/x"):
        check_source(source)
    assert opened_with({"endpoint_url": "http://minio:9000"})
    with pytest.raises(NotAllowed):
        check_location("/a/x")


def test_a_service_that_was_told_nothing_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: and says what to give."""
    for name in (SOURCES, LOCATIONS, ENDPOINTS):
        monkeypatch.delenv(name)
    check_source("/etc/hostname")  # a user's own program
    allowed.restrict()
    with pytest.raises(NotAllowed, match="--allow-source"):
        check_source("/etc/hostname")
    allowed.allow(SOURCES, ["/etc"])
    check_source("/etc/hostname")
    with pytest.raises(NotAllowed):
        check_location("/etc/hostname")
    with pytest.raises(InvalidArgument, match="neither"):
        allowed.allow(LOCATIONS, ["tables"])


def test_tasks_keep_to_the_lists_of_their_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: on hosts whose environment says nothing, or something else."""
    monkeypatch.setenv(SOURCES, "/in")
    task = SparkTask(b"", 1, {}, "", {})
    program = (
        "import json, pickle, sys; from distop.lake.storage.allowed import adopt, lists;"
        "adopt(pickle.load(sys.stdin.buffer).allowed); print(json.dumps(lists()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(task),
        env={name: value for name, value in os.environ.items() if name != SOURCES},
        capture_output=True,
        check=True,
    )
    assert json.loads(found.stdout) == allowed.lists()
    allowed.adopt({SOURCES: "/other"})
    assert allowed.lists()[SOURCES] == "/other"


CANARY = "canary-4711"


def test_a_secret_that_is_referred_to_is_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S5: neither in what etcd keeps, nor in what Spark ships, nor in errors and logs."""
    (tmp_path / "canary").write_text(CANARY)
    monkeypatch.setenv("DISTOP_SECRETS", str(tmp_path))
    monkeypatch.setenv("DISTOP_SECRET_CANARY", CANARY)
    monkeypatch.setenv(LOCATIONS, "s3://")
    monkeypatch.setenv(ENDPOINTS, "http://127.0.0.1:9")
    storage = {
        "key": "${env:DISTOP_SECRET_CANARY}",
        "secret": "${file:canary}",
        "endpoint_url": "http://127.0.0.1:9",
        "client_kwargs": {"region_name": "eu-1"},
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
    }
    table = TableRecord(name="t", location="s3://b/t", options={"storage": storage})
    arg = OperationArg(table="t", type="ingest", instance=1, location=table.location, storage=storage)
    errors = []
    given = {"endpoint_url": "http://169.254.169.254", "profile": CANARY[:3], "key": "${env:X}"}
    for field, wrong in given.items():
        with pytest.raises(InvalidArgument) as refused:
            io_properties("s3://b/t", {**storage, field: wrong})
        errors.append(refused.value)
    files, path = file_system("s3://b/t", storage)
    with pytest.raises(Exception, match="9") as unreachable:
        files.ls(path)
    task = SparkTask(encode(arg), 1, {}, "", {})
    told = [repr(error) + str(error) for error in (*errors, unreachable.value)] + [caplog.text]
    told += [kept.decode("latin-1") for kept in (encode(table), encode(arg), pickle.dumps(task))]
    assert not [text for text in told if CANARY in text]
    assert io_properties("s3://b/t", storage)["s3.secret-access-key"] == CANARY
