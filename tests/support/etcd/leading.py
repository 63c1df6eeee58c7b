"""A table with a leader, and an operation of it that is being committed: for tests of the log."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.lease import Epoch, LeaseSession, campaign, resign
from distop.metastore.operations.ending import seal
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.operation import COMMITTING, RUNNING, CommitSequence, OperationArg, StepRecord
from distop.metastore.records.record import decode
from support.etcd.starts import begin

_numbers = itertools.count()


@dataclass
class Committing:
    """A sealed operation and who leads its table."""

    client: EtcdClient
    session: LeaseSession
    table: TableKeys
    epoch: Epoch
    keys: OperationKeys
    arg: OperationArg

    @classmethod
    async def of(cls, client: EtcdClient, session: LeaseSession, table: str = "t") -> Committing:
        """Lead a table, which exists, and seal an operation of it."""
        keys = client.keyspace.table(table)
        epoch = await campaign(client, keys, session, LeaderRecord(member="m"))
        assert epoch is not None
        op = keys.operation(await begin(client, table=table))
        await seal(client, op, epoch, before=RUNNING, after=COMMITTING)
        arg = decode((await client.get(op.arg)).value, OperationArg)
        return cls(client, session, keys, epoch, op, arg)

    async def another(self) -> Committing:
        """One more operation of the table, sealed likewise."""
        op = self.table.operation(
            await begin(self.client, table=self.table.name, object=f"o{next(_numbers)}")
        )
        await seal(self.client, op, self.epoch, before=RUNNING, after=COMMITTING)
        arg = decode((await self.client.get(op.arg)).value, OperationArg)
        return replace(self, keys=op, arg=arg)

    async def depose(self) -> Epoch:
        """Somebody else leads from now on; the new epoch."""
        await resign(self.client, self.epoch)
        epoch = await campaign(self.client, self.table, self.session, LeaderRecord(member="next"))
        assert epoch is not None
        return epoch

    def sequence(self, *steps: StepRecord) -> CommitSequence:
        return CommitSequence.of(str(self.arg.id), self.arg.uuid, steps)

    def noted(self, count: int, note: str = "") -> CommitSequence:
        """A sequence of so many steps that are never executed."""
        return self.sequence(*(StepRecord(step="none", argument={"n": n, "x": note}) for n in range(count)))

    async def log_keys(self) -> list[bytes]:
        whole, chunks = await asyncio.gather(
            self.client.get(self.keys.commit), self.client.scan(self.keys.commit_chunks)
        )
        return [whole.key] * whole.exists + [kv.key for kv in chunks.kvs]
