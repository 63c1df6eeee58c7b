"""The page and its JSON twin: who is let in, and what he sees."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from distop.client import AsyncClient, Credentials, Grant
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.rights import RIGHTS, RightScope
from distop.coordinator.web import reads, requests
from distop.coordinator.web.requests import CALLS, COOKIE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue
from distop.operations.api import Role
from support.etcd.starts import begin
from support.services.chromium import CHROMIUM, browser
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.tables.nowhere import nowhere


@pytest_asyncio.fixture
async def page(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a page. ``jane`` reads the table ``seen``, ``root`` everything, ``nobody`` nothing."""
    subjects = ("root", "jane", "nobody", "watcher")
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, subjects))
    async with running(config_of(etcd_config, identity=identity, web="127.0.0.1:0")) as coordinator:
        credentials = Credentials(token=token_of("root"))
        async with AsyncClient(coordinator.address, credentials=credentials) as root:
            for table in ("seen", "hidden"):
                await root.create_table(table, nowhere())
                await (await root.start(table, "noop", {"partitions": 0})).wait()
            reader = [Grant(who="jane", role="reader", tables=("seen",))]
            await root.change_grants([*reader, Grant(who="watcher", role="reader", tables=("*",))])
        yield f"http://{coordinator.web_address}"


def headers(subject: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(subject)}"} if subject else {}


def path_of(path: str, table: str) -> str:
    """With the table, or an operation on it, as the path takes them."""
    right = RIGHTS[f"/distop.v1.{CALLS[path].method}"]
    if right.scope is RightScope.OPERATION:
        return f"{path}?name={table}/noop/1"
    return f"{path}?name={table}&table={table}" if right.scope is RightScope.TABLE else f"{path}?q=other"


async def test_every_path_by_everybody(page: str) -> None:
    """S3, U5: each path asks for the right of the call that tells the same."""
    wrong: list[str] = []
    async with httpx.AsyncClient(base_url=page) as browser:

        async def see(path: str, table: str, subject: str, expected: int) -> None:
            got = await browser.get(path_of(path, table), headers=headers(subject))
            if got.status_code != expected:
                wrong.append(f"{path} about {table} by {subject!r}: {got.status_code} and not {expected}")

        for path, call in CALLS.items():
            scope = RIGHTS[f"/distop.v1.{call.method}"].scope
            whole = call.method == "ClusterService/Diagnose"
            outside = 401 if "api" in path or path == "/metrics" else 303
            await see(path, "seen", "", outside)
            await see(path, "seen", "stranger", outside)
            await see(path, "hidden", "root", 200)
            await see(path, "seen", "jane", 403 if whole else 200)
            named = scope in (RightScope.TABLE, RightScope.OPERATION) and not whole
            await see(path, "hidden", "jane", 404 if named else 403 if whole else 200)
            await see(path, "seen", "nobody", 404 if named else 403)
        await see("/metrics", "", "watcher", 200)
    assert not wrong, "\n".join(wrong)


async def test_lists_hold_what_the_caller_sees_whoever_asked_before(page: str) -> None:
    """S3: pages are kept for a moment, and not for somebody who sees less."""
    async with httpx.AsyncClient(base_url=page) as browser:
        for path in ("/", "/api/tables", "/api/operations"):
            whole = (await browser.get(path, headers=headers("root"))).text
            part = (await browser.get(path, headers=headers("jane"))).text
            assert "hidden" in whole
            assert "seen" in part
            assert "hidden" not in part.replace('class="hidden"', "")


async def test_a_caller_sees_its_running_operations_behind_many_hidden_ones(
    page: str, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, G3: what a caller may not see takes none of the room of what it may."""
    monkeypatch.setattr(reads, "MAX_ACTIVE", 3)
    for table in ("hidden", "seen"):  # in this order they are in the index
        for number in range(4):
            o = f"o{number}"
            await begin(client, table=table, object=o, compatible=lambda other: True, partition_count=1)
    async with httpx.AsyncClient(base_url=page) as browser:
        for subject in ("jane", "root"):
            shown = (await browser.get("/", headers=headers(subject))).text
            assert "Nothing is running" not in shown
            assert "<b>3" in shown


async def test_signing_in_and_out(page: str) -> None:
    """U5: the token stays with the service; another site's form is refused, a wrong token named."""
    async with httpx.AsyncClient(base_url=page) as browser:
        assert (await browser.get("/")).headers["location"] == "/sign-in"
        shown = await browser.get("/sign-in")
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        wrong = await browser.post("/sign-in", data={"token": "guessed"})
        assert (wrong.status_code, "UNAUTHENTICATED" in wrong.text) == (401, True)
        foreign = await browser.post(
            "/sign-in", data={"token": token_of("jane")}, headers={"origin": "https://elsewhere.example"}
        )
        assert (foreign.status_code, COOKIE in foreign.cookies) == (400, False)
        large = await browser.post("/sign-in", data={"token": "x" * 100_000})
        assert large.status_code == 400
        inside = await browser.post("/sign-in", data={"token": token_of("jane")})
        assert (inside.status_code, inside.headers["location"]) == (303, "/")
        assert token_of("jane") not in inside.headers["set-cookie"]
        assert "seen" in (await browser.get("/")).text
        assert "jane" in (await browser.get("/sign-in")).text
        session = browser.cookies[COOKIE]
        await browser.post("/sign-out")
        browser.cookies.set(COOKIE, session)
        again = await browser.get("/")
        assert again.headers["location"] == "/sign-in"


async def test_sessions_of_the_page_are_bounded(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3, U5: whoever signs in ends the session that he had, and the oldest one if there are too many."""
    monkeypatch.setattr(requests, "MAX_SESSIONS", 2)
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=page)) for _ in range(3)
        ]

        async def signed_in() -> list[bool]:
            return [(await one.get("/")).status_code == 200 for one in (first, second, third)]

        for one in (first, second, second):
            signed = await one.post("/sign-in", data={"token": token_of("jane")})
            assert signed.status_code == 303
        assert await signed_in() == [True, True, False]
        await third.post("/sign-in", data={"token": token_of("jane")})
        assert await signed_in() == [False, True, True]


@pytest.fixture
def sessions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "KEEP_SESSION_S", 600.0)


@pytest.mark.usefixtures("sessions_are_kept")
async def test_requests_with_a_cookie_do_not_each_read_etcd(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: the cookie may be of a session or invented; a session that is signed out is over at once."""
    read, get = list[bytes](), EtcdClient.get

    async def counted(client: EtcdClient, key: bytes, *, revision: int = 0) -> KeyValue:
        read.extend([key] if b"_answers.session" in key else [])
        return await get(client, key, revision=revision)

    monkeypatch.setattr(EtcdClient, "get", counted)
    async with httpx.AsyncClient(base_url=page) as one, httpx.AsyncClient(base_url=page) as other:
        await one.post("/sign-in", data={"token": token_of("jane")})
        other.cookies.set(COOKIE, "invented")
        seen = [((await one.get("/")).status_code, (await other.get("/")).status_code) for _ in range(5)]
        assert (seen, len(read)) == ([(200, 303)] * 5, 2)
        other.cookies.set(COOKIE, one.cookies[COOKIE])
        await one.post("/sign-out")
        assert (await other.get("/")).status_code == 303


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there")
@pytest.mark.slow("starts a browser")
async def test_a_browser_signs_in(page: str, tmp_path: Path) -> None:
    """U5: what it says of where a form comes from lets its own form pass."""

    def signs_in() -> tuple[str, str]:
        with browser(tmp_path / "profile") as window:
            window.open(page)
            fill = f"document.querySelector('#token').value = '{token_of('jane')}'"
            with window.leaving():
                window.evaluate(f"{fill}; document.querySelector('main form button').click()")
            where, text = window.evaluate("[location.pathname, document.body.innerText]")
            return where, text

    where, text = await asyncio.to_thread(signs_in)
    assert where == "/", text
    assert "seen" in text


def test_every_path_needs_a_right() -> None:
    """S3"""
    for path, call in CALLS.items():
        assert RIGHTS[f"/distop.v1.{call.method}"].role is Role.READER, path
