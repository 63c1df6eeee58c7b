"""A secret of its own in every place that takes one; then everything that anybody may look at is searched."""

import contextlib
import json
import os
import secrets
import signal
import ssl
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from distop.cli.secure import Security
from distop.client import AsyncClient, Credentials, TableOptions
from distop.coordinator.web.requests import CALLS
from distop.errors import DistopError
from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from support.etcd.etcds import enable_users
from support.processes import ancestors
from support.services.executing import Child, end_sidecar, place_in, short_folder, sidecar_pid
from support.services.tokens import token_line
from support.sources.s3 import S3
from support.types.work_types import traces
from support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("starts an etcd with users, and from the command line a coordinator and a Spark"),
]

PLACES = (
    "etcd's password",
    "token",
    "unknown token",
    "token of the sign-in",
    "key of the storage, by reference",
    "secret of the storage, by reference",
    "key of the storage, by variable",
    "secret of the storage",
    "storage option that there is not",
    "secret among the properties",
    "secret among the properties, through the catalog",
    "password of Kafka",
    "password of Kafka, by reference",
    "password of Kafka, by variable",
    "password of a source",
    "password of a location",
    "argument that there is not",
    "password of a browser",
    "token in a URL",
    "secret of the services themselves",
    "signed token",
    "signed token that has expired",
    "key of the server",
)
MAY_BE_IN_ETCD = ("secret of the storage",)
"""docs/operating.md says so: who does not want it refers to it."""
IN_ENVIRONMENTS = (
    "key of the storage, by variable",
    "password of Kafka, by variable",
    "secret of the services themselves",
)
"""docs/security.md says so: what a service is given by a variable, the processes that it starts inherit."""

ISSUER, AUDIENCE = "https://issuer.example", "distop"


class Canaries:
    """The secrets, and where they have been found."""

    def __init__(self) -> None:
        self.of = {place: f"canary{secrets.token_hex(12)}" for place in PLACES}
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        for place, for_s in (("signed token", 600), ("signed token that has expired", -600)):
            claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jane", "exp": time.time() + for_s}
            self.of[place] = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "k"})
        self.found: set[str] = set()
        self.searched = 0

    def search(self, where: str, content: object, *allowed: str) -> None:
        """Look for all of them, but those that may be there."""
        self.searched += 1
        data = content if isinstance(content, bytes) else str(content).encode(errors="replace")
        for place, canary in self.of.items():
            if place not in allowed and canary.encode() in data:
                self.found.add(f"{place}: in {where}")

    @contextlib.contextmanager
    def refused(self, where: str) -> Iterator[pytest.ExceptionInfo[DistopError]]:
        """What is done inside fails, and what it says is searched."""
        with pytest.raises(DistopError) as caught:
            yield caught
        error = caught.value
        self.search(f"the error of {where}", [repr(error), error.message, error.hint, error.details])

    def search_processes(self) -> None:
        """All processes of this host."""
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("environ", "cmdline"):
                with contextlib.suppress(OSError):
                    allowed = IN_ENVIRONMENTS if name == "environ" else ()
                    self.search(f"{name} of {process.name}", (process / name).read_bytes(), *allowed)

    def search_files(self, folder: Path) -> None:
        """All below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.search(path.name, path.read_bytes())


def prepared(given: Path, canaries: Canaries) -> Security:
    """The files that are passed to services."""
    (given / "tokens").write_text(token_line("root", canaries.of["token"]))
    (given / "key").write_text(canaries.of["key of the storage, by reference"])
    (given / "secret").write_text(canaries.of["secret of the storage, by reference"])
    (given / "kafka").write_text(canaries.of["password of Kafka, by reference"])
    public = json.loads(RSAAlgorithm.to_jwk(canaries.key.public_key()))
    (given / "jwks").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    made = Security(given / "made")
    canaries.of["key of the server"] = Path(made.path("server.key")).read_text().splitlines()[1]
    return made


@asynccontextmanager
async def live(
    etcd: EtcdConfig, folder: Path, given: Path, canaries: Canaries, s3: S3, base: Path
) -> AsyncIterator[dict[str, str]]:
    """A coordinator with all doors and an executor with Spark, as an operator starts them; the addresses."""
    doors = {name: f"127.0.0.1:{free_port()}" for name in ("listen", "web", "catalog")}
    made = prepared(given, canaries)
    environment = {
        "DISTOP_SECRET_KEY": canaries.of["key of the storage, by variable"],
        "DISTOP_KAFKA_PASSWORD": canaries.of["password of Kafka, by variable"],
        "DISTOP_KAFKA_SECRETS": str(given),
        "AWS_ACCESS_KEY_ID": "services",
        "AWS_SECRET_ACCESS_KEY": canaries.of["secret of the services themselves"],
        "DISTOP_ALLOW_SOURCES": f"{folder},kafka://127.0.0.1:1",
        "DISTOP_ALLOW_LOCATIONS": f"{folder},s3://",
        BASE_VARIABLE: str(base),
        "DISTOP_SECRETS": str(given),
        "DISTOP_ALLOW_ENDPOINTS": s3.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    addresses = [f"--{name}={address}" for name, address in doors.items()]
    known = ["--token-file", str(given / "tokens"), "--admin", "root", "--issuer", ISSUER]
    known += ["--jwks", str(given / "jwks"), "--audience", AUDIENCE]
    known += ["--tls-cert", made.path("server.crt"), "--tls-key", made.path("server.key")]
    logged = ["--log-level", "debug"]
    service = ("-m", "distop.cli")
    with (
        Child(etcd, folder, *service, "coordinator", *logged, *addresses, *known, **environment),
        Child(etcd, folder, *service, "executor", *logged, "--master", "local[2]", **environment) as executor,
    ):
        yield {**doors, "ca": made.path("ca.crt")}
        executor.terminate()
        executor.wait(60)


async def test_a_secret_is_found_nowhere_but_where_it_was_put(
    tmp_path: Path, s3: S3, record_property: Callable[[str, object], None]
) -> None:
    """S5: logs, environments and command lines of all processes, etcd, page, catalog, errors and files.

    Tasks of Spark hold a socket and no credentials of etcd's, and go on when their sidecar dies.
    """
    canaries, prefix = Canaries(), "secured"
    work, given = tmp_path / "work", tmp_path / "given"
    work.mkdir()
    given.mkdir()
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as base:
        password = canaries.of["etcd's password"]
        enable_users(etcd, user="distop", password=password, prefix=f"{prefix}.")
        (given / "password").write_text(password)
        config = EtcdConfig(
            endpoints=(etcd.endpoint,),
            prefix=prefix,
            user="distop",
            password=password,
            password_file=str(given / "password"),
        )
        place = place_in(base, config)
        async with live(config, work, given, canaries, s3, base) as doors:
            await use(doors, work, canaries, s3, place)
        end_sidecar(place)
        canaries.search_files(base)
    stored = (tmp_path / "etcd/data/member/snap/db").read_bytes()
    canaries.search("etcd", stored, *MAY_BE_IN_ETCD)
    assert all(canaries.of[place].encode() in stored for place in MAY_BE_IN_ETCD)  # it is where to look
    canaries.search("etcd's log", (tmp_path / "etcd/etcd.log").read_bytes())
    canaries.search_files(work)
    for name in s3.names():
        canaries.search(f"object {name}", s3.fs.cat(f"{s3.bucket}/{name}"))
    record_property("canary_searched", canaries.searched)
    record_property("canary_found", len(canaries.found))
    assert not canaries.found
    assert canaries.searched > 100


def is_of_spark(worker: int) -> bool:
    return any(b"java" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ancestors(worker))


def of_this_user(path: Path) -> int:
    """The mode of a file of the user whose tests these are."""
    found = path.stat()
    assert found.st_uid == os.getuid()
    return stat.S_IMODE(found.st_mode)


async def use(doors: dict[str, str], work: Path, canaries: Canaries, s3: S3, sidecar: SidecarFolder) -> None:
    """Everything that takes a secret, and everything that may show one."""
    of = canaries.of
    storage = {"endpoint_url": s3.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    by_name = {**storage, "key": "${file:key}", "secret": "${file:secret}"}
    by_variable = {**storage, "key": "${env:DISTOP_SECRET_KEY}", "secret": "${file:secret}"}
    plain = {**storage, "key": "known", "secret": of["secret of the storage"]}
    (work / "rows.csv").write_text("id\n1\n2\n")
    (work / "bad.csv").write_text("id\nnone\n")
    ca = doors["ca"]
    shown = Credentials(token=of["token"], ca=ca)
    async with AsyncClient(
        doors["listen"], timeout_s=120, connect_timeout_s=120, credentials=shown
    ) as client:
        for name, options in (("named", by_name), ("variable", by_variable), ("plain", plain)):
            await client.create_table(
                name, f"{s3.url}/{name}", options={"storage": options, "schema": ["id: long"]}
            )
            for file, good in (("rows.csv", True), ("bad.csv", False)):
                ended = await (await client.start(name, "ingest", {"paths": str(work / file)})).wait(
                    timeout_s=120
                )
                assert (ended.state.name == "SUCCEEDED") is good, ended
                canaries.search(f"the operation on {name}", ended)
            canaries.search(f"the table {name}", await client.table(name).get())
        await client.create_table("nowhere", "s3://no-such-bucket/x", options={"storage": plain})
        with canaries.refused("an ingest into a bucket that is not there"):
            started = await client.start("nowhere", "ingest", {"paths": str(work / "rows.csv")})
            await started.result(timeout_s=120)
        with canaries.refused("a table with a secret among its properties"):
            properties = {"s3.secret-access-key": of["secret among the properties"]}
            await client.create_table(
                "properties", str(work / "properties"), options={"properties": properties}
            )
        with canaries.refused("a table with a storage option that there is not"):
            unknown: TableOptions = {"storage": {"secret_key": of["storage option that there is not"]}}
            await client.create_table("unknown", f"{s3.url}/unknown", options=unknown)
        with canaries.refused("a table at a URL with a password"):
            await client.create_table("there", f"s3://key:{of['password of a location']}@b/there")
        with canaries.refused("an argument that there is not"):
            argument = {"paths": str(work / "rows.csv"), "password": of["argument that there is not"]}
            await client.start("named", "ingest", argument)
        passwords = (of["password of Kafka"], {"file": "kafka"}, {"env": "DISTOP_KAFKA_PASSWORD"})
        for password, code in zip(passwords, ("INVALID_ARGUMENT", *2 * ("KAFKA_UNAVAILABLE",)), strict=True):
            config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
            kafka = {"topic": "t", "servers": "127.0.0.1:1", "config": {**config, "sasl.password": password}}
            with canaries.refused("a source of Kafka with its password") as error:
                await client.start("named", "ingest", {"kafka": kafka})
            assert error.value.code == code, error.value
        url = f"https://jane:{of['password of a source']}@127.0.0.1:1/rows.csv"
        with canaries.refused("a source with a password"):
            started = await client.start("named", "ingest", {"paths": url})
            await started.result(timeout_s=120)
        for place in ("unknown token", "signed token that has expired"):
            wrong = Credentials(token=of[place], ca=ca)
            async with AsyncClient(doors["listen"], credentials=wrong) as stranger:
                with canaries.refused(f"a call with {place}"):
                    await stranger.grants()
        async with AsyncClient(
            doors["listen"], credentials=Credentials(token=of["signed token"], ca=ca)
        ) as jane:
            canaries.search("the grants of the signed token", await jane.grants())

        held = await client.start(
            "named", "traced", {"folder": str(work), "hold": ["0", "1"], "partitions": 2}
        )
        await eventually(lambda: len(traces(work, "began")) == 2, 180)
        assert all(is_of_spark(int(worker)) for *_, worker in traces(work, "began"))
        canaries.search_processes()
        assert (of_this_user(sidecar.folder), of_this_user(sidecar.socket)) == (0o700, 0o600)
        first = sidecar_pid(sidecar)
        os.kill(first, signal.SIGKILL)
        (work / "release").touch()
        await held.result(timeout_s=60)
        assert sidecar_pid(sidecar) != first
        operations = [operation.name async for operation in client.operations()]
        canaries.search("the trail", [entry async for entry in client.audit()])
        canaries.search("the doctor", await client.diagnose(deep=True))
        for name in operations:
            canaries.search("stack traces", await client.operation(name).logs())
    await look(doors, operations, canaries)


async def look(doors: dict[str, str], operations: list[str], canaries: Canaries) -> None:
    """What page and catalog show, to who may see it all and to who is refused."""
    tls = ssl.create_default_context(cafile=doors["ca"])
    async with httpx.AsyncClient(base_url=f"https://{doors['web']}", timeout=30, verify=tls) as browser:
        form = {"token": canaries.of["token of the sign-in"]}
        canaries.search("the sign-in", (await browser.post("/sign-in", data=form)).text)
        headers = {"authorization": f"Bearer {canaries.of['token']}"}
        for path in CALLS:
            for name in (*operations, "named", "variable", "plain"):
                answer = await browser.get(path, params={"name": name, "table": name}, headers=headers)
                canaries.search(f"page {path} of {name}", answer.text)
        signed = await browser.post("/sign-in", data={"token": canaries.of["token"]})
        canaries.search("the cookie", signed.headers)
        basic = ("jane", canaries.of["password of a browser"])
        asked = {"token": canaries.of["token in a URL"]}
        answer = await browser.get("/api/tables", params=asked, auth=basic)
        canaries.search("an answer to a browser", [answer.text, *answer.headers.items()])
    async with httpx.AsyncClient(base_url=f"https://{doors['catalog']}", timeout=30, verify=tls) as engine:
        told: dict[str, Any] = (await engine.get("/v1/config", headers=headers)).json()
        tables = f"/v1/{told['overrides']['prefix']}/namespaces/default/tables"
        taken = {"s3.secret-access-key": canaries.of["secret among the properties, through the catalog"]}
        field = {"id": 1, "name": "id", "type": "long", "required": False}
        body = {"name": "x", "schema": {"type": "struct", "fields": [field]}, "properties": taken}
        answer = await engine.post(tables, json=body, headers=headers)
        assert answer.status_code == 400, answer.text
        canaries.search("the catalog's refusal", answer.text)
        for name in ("named", "variable", "plain"):
            answer = await engine.get(f"{tables}/{name}", headers=headers)
            assert answer.status_code == 200, answer.text
            canaries.search(f"the catalog's {name}", answer.text)
