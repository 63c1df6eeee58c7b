"""What callers see, under which names they act, and how the policy changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop import errors
from distop.client import AsyncClient, Credentials, Grant
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.callers import Caller, held_by
from distop.coordinator.api.calls import Limits
from distop.coordinator.api.cluster import ClusterService
from distop.coordinator.service import Coordinator
from distop.coordinator.work.work import Work
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.installation import GrantRecord, PolicyRecord
from distop.metastore.records.member import HeldUp, LongCall, MemberRecord
from distop.metastore.records.record import encode
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from support.etcd.lossy import LossyClient
from support.refusals import refused
from support.services.coordinators import Service, config_of, raising, running, serving
from support.services.tokens import answering, token_file, token_of
from support.tables.nowhere import nowhere
from support.waiting import eventually

SUBJECTS = ("root", "jane", "joe")

NO_CONTEXT: Any = None


@pytest_asyncio.fixture
async def two(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[list[Coordinator]]:
    """Two coordinators that know the same tokens; root is admin."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, SUBJECTS))
    async with AsyncExitStack() as stack:
        config = config_of(etcd_config, identity=identity)
        yield [await stack.enter_async_context(running(config)) for _ in range(2)]


def client_of(coordinator: Coordinator, subject: str, **options: object) -> AsyncClient:
    return AsyncClient(coordinator.address, credentials=Credentials(token=token_of(subject)), **options)  # type: ignore[arg-type]


async def test_a_table_that_a_caller_may_not_see_does_not_exist_for_it(two: list[Coordinator]) -> None:
    """S3, U5: the same error by each letter, no line in a list, and pages that go on."""
    async with client_of(two[0], "root") as root, client_of(two[0], "jane") as jane:
        for name in ("a.1", "b.1", "b.2", "c.1", "d.1"):
            await root.create_table(name, nowhere())
            operation = await root.start(name, "noop", {"partitions": 0})
            await root.operation(operation.name).wait()
        await root.change_grants([Grant(who="jane", role="reader", tables=("b.*", "d.1"))])
        assert [table.name async for table in jane.tables(page_size=1)] == ["b.1", "b.2", "d.1"]
        assert {operation.table async for operation in jane.operations()} == {"b.1", "b.2", "d.1"}
        assert {leader.table for leader in await jane.leaders()} <= {"b.1", "b.2", "d.1"}

        async def failure(
            call: Callable[[AsyncClient, str], Awaitable[object]], name: str
        ) -> tuple[str, ...]:
            with pytest.raises(errors.DistopError) as refused:
                await call(jane, name)
            error = refused.value
            return error.code, str(error), repr(sorted(error.details.items()))

        calls: list[tuple[Callable[[AsyncClient, str], Awaitable[object]], str, str]] = [
            (lambda caller, name: caller.table(name).get(), "a.1", "z.9"),
            (lambda caller, name: caller.operation(name).get(), "a.1/noop/1", "z.9/noop/1"),
            (lambda caller, name: caller.operation(name).cancel(), "a.1/noop/1", "z.9/noop/1"),
            (lambda caller, name: caller.table(name).describe(), "a.1", "z.9"),
            (lambda caller, name: caller.table(name).drop(), "a.1", "z.9"),
        ]
        for call, hidden, absent in calls:
            seen = [text.replace("z.9", "a.1") for text in await failure(call, absent)]
            assert list(await failure(call, hidden)) == seen
            # For somebody who may see everything it is as for somebody for whom it is not there, too.
            with pytest.raises(errors.DistopError) as told:
                await call(root, absent)
            assert [told.value.code, str(told.value).replace("z.9", "a.1")] == seen[:2]
        with refused(error=errors.PermissionDenied, role="admin"):
            await jane.table("b.1").drop()


async def test_a_folder_that_is_taken_does_not_say_by_whom(two: list[Coordinator]) -> None:
    """S3: not to who may not see that table: he could ask for folder after folder, and list them all."""
    async with client_of(two[0], "root") as root, client_of(two[0], "jane") as jane:
        place = f"{nowhere()}/of/secret.t"
        await root.create_table("secret.t", place)
        await root.change_grants([Grant(who="jane", role="writer", tables=("mine.*",))])
        for wanted in (place, f"{place}/in", place.removesuffix("/secret.t")):
            with pytest.raises(errors.LocationInUse) as refused:
                await jane.create_table("mine.t", wanted)
            told = f"{refused.value} {refused.value.details}".replace(wanted, "")
            assert "secret" not in told
            with pytest.raises(errors.LocationInUse, match=r"'secret\.t'"):
                await root.create_table("mine.t", wanted)


async def test_a_schedule_waits_for_no_table_that_its_caller_may_not_see(two: list[Coordinator]) -> None:
    """S3: when it starts would show how far that table is."""
    async with client_of(two[0], "root") as root, client_of(two[0], "jane") as jane:
        await root.create_table("secret.t", nowhere())
        await root.create_table("mine.t", nowhere())
        await root.change_grants([Grant(who="jane", role="operator", tables=("mine.*",))])
        told = []
        for table in ("secret.t", "secret.u"):
            with pytest.raises(errors.TableNotFound) as refused:
                await jane.table("mine.t").add_schedule("s", "noop", when=f"watermark({table}, s, p) >= 1")
            told.append(str(refused.value).replace(table, ""))
        assert told[0] == told[1]
        await root.table("mine.t").add_schedule("s", "noop", when="watermark(secret.t, s, p) >= 1")


async def test_members_do_not_say_what_else_they_do(client: LossyClient) -> None:
    """S3: not the names of tables and operations that the caller may not see."""
    calls = [LongCall(table=name, what="its plan", since=1.0) for name in ("seen", "secret", "")]
    held = [HeldUp(operation=name, what="slow", since=1.0) for name in ("seen/noop/1", "secret/noop/1", "")]
    record = MemberRecord(id="m", role="executor", calls=calls, held_up=held)
    await client.put(client.keyspace.executor("m"), encode(record))
    policy = PolicyRecord(grants=[GrantRecord(who="jane", role="reader", tables=["seen"])])
    jane, service = Caller(held=held_by(policy, "jane")), ClusterService(client, Work(Registry(), None))
    for who, tables in ((Caller(), ["seen", "secret", ""]), (jane, ["seen", ""])):
        with answering(who):
            [member] = (await service.ListMembers(pb.ListMembersRequest(), NO_CONTEXT)).members
        assert [call.table for call in member.calls] == tables
        assert [one.operation.partition("/")[0] for one in member.held_up] == tables


async def test_actions_have_the_verified_name(two: list[Coordinator]) -> None:
    """S6, U2: the name that a verified caller claims is ignored."""
    async with client_of(two[0], "root", identity="mallory") as root:
        table = await root.create_table("t", nowhere())
        operation = await root.start("t", "noop", {"partitions": 0})
        await root.table("t").pause("a look")
        audit = [entry async for entry in root.audit("t")]
        whole = [entry async for entry in root.audit()]
    assert (table.created_by, operation.started.started_by) == ("root", "root")
    assert {entry.by for entry in audit} == {"root"}
    assert {(entry.by, entry.target) for entry in whole} >= {("root", "t"), ("--admin", "root")}


async def test_a_change_is_followed_by_every_coordinator(two: list[Coordinator]) -> None:
    """S4: also the taking away; and what the other one has changed is what is changed next."""
    async with (
        client_of(two[0], "root") as root,
        client_of(two[1], "root") as other,
        client_of(two[1], "jane") as jane,
    ):
        await root.create_table("t", nowhere())

        async def sees() -> bool:
            try:
                return bool(await jane.table("t").get())
            except errors.TableNotFound:
                return False

        assert not await sees()
        await root.change_grants([Grant(who="jane", role="reader", tables=("t",))])
        await eventually(sees)
        assert [grant.who for grant in (await jane.grants()).grants] == ["jane"]
        assert (await jane.grants()).subject == "jane"
        await other.change_grants(remove=[Grant(who="jane")])
        await eventually(sees, holds=lambda found: not found)
        assert [grant.who for grant in (await root.grants()).grants] == ["root"]
        entries = [entry async for entry in root.audit()]
        assert [entry.action for entry in entries].count("change-grants") == 2


async def test_a_stream_ends_whose_caller_is_no_longer_known(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S4: also one on which nothing is said; one whose caller is known goes on."""
    identity = IdentityConfig(admins=("root", "jane"), token_file=token_file(tmp_path, ["root", "jane"]))
    config = config_of(etcd_config, identity=identity, limits=Limits(again_s=0.1))
    async with running(config) as coordinator, Service(coordinator.address) as service:
        async with client_of(coordinator, "root") as root:
            await root.create_table("t", nowhere())
            operation = await root.start("t", "noop", {"partitions": 1})

        def watching(subject: str) -> Any:
            metadata = (("authorization", f"Bearer {token_of(subject)}"),)
            request = pb.WatchOperationRequest(name=operation.name)
            request.heartbeat.FromSeconds(3600)
            return service.operations.WatchOperation(request, metadata=metadata)

        stays, goes = watching("root"), watching("jane")
        await stays.read()
        await goes.read()
        token_file(tmp_path, ["root"])

        async def to_its_end() -> None:
            async with asyncio.timeout(60):
                while True:
                    await goes.read()

        with pytest.raises(errors.Unauthenticated, match="unknown"), raising():
            await to_its_end()
        assert not stays.done()
        stays.cancel()


async def test_a_coordinator_that_cannot_tell_callers_apart_lets_nobody_in_once_a_policy_stands(
    etcd_config: EtcdConfig, two: list[Coordinator]
) -> None:
    """S3: whatever it was started with, the policy holds."""
    async with serving(etcd_config) as open_one:
        with pytest.raises(errors.Unauthenticated, match="policy exists"):
            await open_one.create_table("t")


async def test_without_a_policy_everybody_may_do_everything(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S3: who has a way to tell callers apart wants to know them, though; and nobody locks everybody out."""
    identity = IdentityConfig(token_file=token_file(tmp_path, SUBJECTS))
    async with (
        running(config_of(etcd_config)) as plain,
        running(config_of(etcd_config, identity=identity)) as known,
    ):
        async with AsyncClient(plain.address) as anybody, AsyncClient(known.address) as stranger:
            await anybody.create_table("t", nowhere())
            assert not (await anybody.grants()).enforced
            with pytest.raises(errors.PreconditionFailed, match="cannot identify callers"):
                await anybody.change_grants([Grant(who="joe", role="admin", tables=("*",))])
            with pytest.raises(errors.Unauthenticated):
                await stranger.table("t").get()
        async with client_of(known, "joe") as joe:
            await joe.table("t").drop()
            with pytest.raises(errors.PreconditionFailed, match="no admin"):
                await joe.change_grants([Grant(who="joe", role="writer", tables=("*",))])


async def test_an_unreadable_policy_lets_nobody_in(client: LossyClient, two: list[Coordinator]) -> None:
    """S3: a policy that makes no sense opens no door."""
    async with client_of(two[0], "root") as root:
        assert (await root.grants()).enforced
        await client.put(client.keyspace.policy, b'{"version": 99}')

        async def refused() -> bool:
            try:
                await root.grants()
            except errors.DistopError as error:
                return error.code == "CORRUPT_RECORD"
            return False

        await eventually(refused)
