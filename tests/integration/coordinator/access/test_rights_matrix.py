"""Every call by every role, with and without a grant; the calls are those of the table of rights."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio

from distop.client import AsyncClient, Credentials, Grant
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.rights import RIGHTS, RightScope, required
from distop.errors import DistopError
from distop.metastore.etcd.config import EtcdConfig
from distop.operations import Registry, Role
from support.services.coordinators import Service, config_of, running
from support.services.methods import refusal, request_of
from support.services.tokens import token_file, token_of
from support.tables.nowhere import nowhere

ROLES = [role.name.lower() for role in Role]
HIDDEN = ("TABLE_NOT_FOUND", "OPERATION_NOT_FOUND")
REFUSED = ("PERMISSION_DENIED", "UNAUTHENTICATED", *HIDDEN)


@pytest_asyncio.fixture
async def address(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[str]:
    """A coordinator with a policy: each role has a table of its own, ``all-ROLE`` has it on all of them.

    Each table has an operation that has ended.
    """
    subjects = ["root", "nobody", *ROLES, *(f"all-{role}" for role in ROLES)]
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, subjects))
    async with running(config_of(etcd_config, identity=identity)) as coordinator:
        credentials = Credentials(token=token_of("root"))
        async with AsyncClient(coordinator.address, credentials=credentials) as root:
            await root.change_grants(
                [Grant(who=role, role=role, tables=(f"{role}.*",)) for role in ROLES]
                + [Grant(who=f"all-{role}", role=role, tables=("*",)) for role in ROLES]
            )
            for role in ROLES:
                await root.create_table(f"{role}.t", nowhere())
                operation = await root.start(f"{role}.t", "noop", {"partitions": 0})
                await operation.wait()
        yield coordinator.address


def name_for(method: str, role: str) -> str:
    """The table of a role, or the operation on it, whichever the method is about."""
    scope = RIGHTS[method].scope
    if scope in (RightScope.TABLE, RightScope.NEW_TABLE):
        return f"{role}.t"
    return f"{role}.t/noop/1" if scope is RightScope.OPERATION else ""


def expected(method: str, role: Role, *, everywhere: bool, mine: bool) -> str:
    """The code that the call is refused by; empty: the gate lets it in."""
    request = request_of(method, name_for(method, "reader"))
    needed = required(method, request, Registry(()))
    if needed.scope is RightScope.EVERYTHING and not everywhere:
        return "PERMISSION_DENIED"
    if needed.scope in (RightScope.VISIBLE, RightScope.CALLER):
        return ""
    if not mine:
        hidden = {RightScope.TABLE: HIDDEN[0], RightScope.OPERATION: HIDDEN[1]}
        return hidden.get(needed.scope, "PERMISSION_DENIED")
    return "" if role >= needed.role else "PERMISSION_DENIED"


def agrees(error: DistopError | None, code: str) -> bool:
    """Whether a call was refused so. One that was let in may fail for reasons of its own."""
    return (
        (error.code == code) if code and error else not code and (error is None or error.code not in REFUSED)
    )


async def test_every_call_by_every_role_with_and_without_a_grant(
    address: str, record_property: Callable[[str, object], None]
) -> None:
    """S3, U5"""
    wrong: list[str] = []
    cases = 0
    # What it is dropped by comes last: the others need the table.
    methods = sorted(RIGHTS, key=lambda name: ("Drop" in name, name))
    async with Service(address) as service:

        async def see(method: str, name: str, subject: str, code: str) -> None:
            nonlocal cases
            cases += 1
            token = token_of(subject) if subject else ""
            error = await refusal(service.channel, method, request_of(method, name), token)
            if not agrees(error, code):
                wrong.append(f"{method} of {name!r} by {subject!r}: {error!r} and not {code or 'let in'}")

        for method in methods:
            for role in Role:
                own, other = role.name.lower(), ROLES[role % len(ROLES)]
                await see(method, name_for(method, own), "", "UNAUTHENTICATED")
                await see(method, name_for(method, own), "stranger", "UNAUTHENTICATED")
                for everywhere, mine, subject, table in (
                    (False, True, own, own),
                    (False, False, own, other),
                    (True, True, f"all-{own}", own),
                ):
                    if not ("Drop" in method and role is Role.ADMIN and everywhere):
                        code = expected(method, role, everywhere=everywhere, mine=mine)
                        await see(method, name_for(method, table), subject, code)
            none = {RightScope.CALLER: "", RightScope.TABLE: HIDDEN[0], RightScope.OPERATION: HIDDEN[1]}
            code = none.get(RIGHTS[method].scope, "PERMISSION_DENIED")
            await see(method, name_for(method, "reader"), "nobody", code)
    record_property("cases", cases)
    assert not wrong, "\n".join(wrong)
    assert cases > 600
