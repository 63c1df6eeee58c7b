"""The back-offs that a leader keeps: those of failed batches that wait, and no others."""

from collections.abc import Sequence, Sized
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest

from distop.coordinator.backlog.drainer import Drainer
from distop.coordinator.backlog.pauses import FIRST_PAUSE_S
from distop.coordinator.backlog.policy import Backlog, Waiting
from distop.metastore.backlog.batches import MAX_TOGETHER, BatchRecord, OrderingRecord, StagedBatch
from distop.metastore.etcd.client import RangePage
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.record import encode

MISSING, MANY = KeyValue.missing(b"k"), 100_000


def failed(revision: int) -> Waiting:
    """A batch, written at this revision, whose first attempt has failed."""
    kv = KeyValue(b"%d" % revision, b"", revision, revision)
    return Waiting(name=str(revision), record=BatchRecord(type="noop", attempts=1), kv=kv)


class Table:
    """A drainer of one table, which looks at what it is shown."""

    def __init__(self) -> None:
        services, self.now = MagicMock(), 0.0
        services.clock = lambda: self.now
        services.client.get_range = AsyncMock(return_value=RangePage([], 1, False))
        self.drainer = Drainer(services, MagicMock(), rested=lambda: None)
        self.drainer.reader.read = self._read  # type: ignore[method-assign]

    async def _read(self) -> Backlog:
        return self._backlog

    async def look(
        self,
        *heads: Waiting,
        unordered: Sequence[Waiting] = (),
        more: bool = False,
        paused: bool = False,
        ordering: OrderingRecord | None = None,
    ) -> float:
        """A look at these batches, ``more``: and at unordered ones after them; the seconds until the next."""
        self._backlog = Backlog(
            ordering=ordering or OrderingRecord(),
            ordering_kv=MISSING,
            index_kv=MISSING,
            heads=heads,
            unordered=unordered,
            more=more,
            paused=paused,
        )
        return await self.drainer._look()

    @property
    def kept(self) -> int:
        """How much it remembers of batches."""
        pauses = (self.drainer._pauses, self.drainer._unordered._pauses)
        return sum(len(each) for one in pauses for each in vars(one).values() if isinstance(each, Sized))


async def test_first_batches_that_are_taken_away_leave_nothing_behind() -> None:
    """G7."""
    table = Table()
    for revision in range(1, MANY + 1):
        assert await table.look(failed(revision)) == 2 * FIRST_PAUSE_S
        assert table.kept < 5
    await table.look()
    assert not table.kept


@pytest.mark.parametrize("paused", [False, True])
async def test_unordered_batches_that_are_taken_away_leave_nothing_behind(paused: bool) -> None:
    """G7: neither those that were removed before they were looked at again, nor those behind them."""
    table, waiting = Table(), [failed(revision) for revision in range(1, MANY + 1)]
    for start in range(0, MANY, MAX_TOGETHER):
        page = waiting[start : start + MAX_TOGETHER]
        await table.look(unordered=page, more=start + MAX_TOGETHER < MANY)
    assert table.kept >= MANY
    await table.look(unordered=waiting[:MAX_TOGETHER], more=True, paused=paused)
    await table.look(paused=paused)
    assert table.kept <= 5 * MAX_TOGETHER
    await table.look(paused=paused)
    assert not table.kept


async def test_a_back_off_goes_on_whatever_is_looked_at_in_between() -> None:
    """B9, B13: other unordered batches, and the same ones while the table is paused."""
    table, first, second = Table(), [failed(1)], [failed(2)]
    for step, paused in enumerate([False, True, False]):
        table.now = step * 0.1
        left = await table.look(*first, unordered=first, more=True, paused=paused)
        assert left == (0.0 if paused else pytest.approx(2 * FIRST_PAUSE_S - table.now))
        await table.look(*first, unordered=second, paused=paused)


async def test_the_back_off_of_a_staged_batch_goes_on_though_another_one_is_first() -> None:
    """B7, B9: such as one that came late."""
    table, staged = Table(), failed(1)
    kv = msgspec.structs.replace(staged.kv, value=encode(staged.record))
    table.drainer._client.get = AsyncMock(return_value=kv)  # type: ignore[method-assign]
    ordering = OrderingRecord(staged=StagedBatch(batch="1", branch="b"))
    for step in range(3):
        table.now = step * 0.1
        left = await table.look(failed(2), ordering=ordering)
        assert left == pytest.approx(2 * FIRST_PAUSE_S - table.now)
