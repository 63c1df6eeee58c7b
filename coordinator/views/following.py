"""Operations that callers look at or watch: each is followed once, for any number of callers.

The cost does not grow with the number of callers, nor with how often they look. For an operation that is led
here, copies of the leader's state are used, and only events that the leader does not get (the deletion of the
operation's own keys) are watched. Another one is listed once and then kept up to date by a watch. The watch
ends when no caller looks any more.

An update is made and encoded once for all watchers: its newest state, whenever there is a newer one. A slow
reader gets the newest one when it is ready, and never those it has missed, so nothing is buffered for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from copy import copy

from distop.coordinator.state.caches import JobEnd, LocalLeaders
from distop.coordinator.state.grid import GridCounts, JobGrid
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.operations import (
    ENDED_STATES,
    add_live_events,
    from_tracked,
    has_many,
    present_pause,
    read_finished,
    read_operation,
    read_own_keys,
)
from distop.errors import Compacted, DeadlineExceeded, DistopError, EtcdUnavailable, Unavailable, as_distop
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import within
from distop.metastore.etcd.watch import WatchBatch, watch
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import PauseRecord
from distop.process.loop import log_failure
from distop.proto import distop_pb2 as pb

log = logging.getLogger(__name__)

FIRST_LOOK_S = 0.5
"""Longest wait for the first listing of an operation; of a larger one only the part read by then is shown."""

RETRY_S = 0.5
PAGE = 1000
"""Keys read at once: few enough to block the event loop only for some milliseconds."""

MAX_JOBS_PER_UPDATE = 1000
"""Jobs named in one update; many watchers share it. The counts are never truncated."""


class Followed:
    """One live operation, derived from its keys.

    Parameters
    ----------
    whole:
        Whether jobs are read. Otherwise, if there are very many, only their number is known, see
        :func:`~distop.coordinator.views.operations.read_live`.
    spacing:
        Shortest time between two updates, in seconds; of the operation itself (true) or of its jobs.
    """

    def __init__(
        self,
        client: EtcdClient,
        leads: LocalLeaders,
        operation: OperationId,
        whole: bool,
        spacing: Callable[[bool], float],
    ) -> None:
        self.operation = operation
        self.looked_at = 0.0
        self.watchers = 0
        self.version = 0
        """Grows with every update; :attr:`changed` is set then, and replaced by another one."""
        self.changed = asyncio.Event()
        self.over = False
        """Its state is gone, and :attr:`last` is its end, if the history has it."""
        self._gone = False
        self.last: pb.OperationUpdate | None = None
        self.listed = asyncio.Event()
        """The first listing has been read, or :attr:`error` is its failure."""
        self.error: DistopError | None = None
        self._client, self._leads = client, leads
        self._spacing = spacing
        self._whole = whole
        self._table = self._client.keyspace.table(operation.table)
        self._keys = self._table.operation(operation)
        keys = self._keys
        self._urgent = (keys.state, keys.cancel, keys.completion, keys.resolve, keys.pause)
        self._moved = asyncio.Event()
        self._own: Tracked | None = None
        """Its state as derived here, unless it is led here."""
        self._led: Tracked | None = None
        """Its leader's state, which is the leader's: it is only read, and the leader reports changes."""
        self._removed: dict[bytes, int] = {}
        """Beside that, keys of the operation itself that were deleted, and when."""
        self._table_pause: PauseRecord | None = None
        self._seen_at = 0
        """A revision up to which it was followed here, whatever changed last."""
        self._jobs: list[pb.JobUpdate] = []
        self._named: list[pb.JobUpdate] = []
        self._update: tuple[bytes, int] | None = None
        self._updated_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def tracked(self) -> Tracked | None:
        """The present state, to be read at once; of one that is led here, a copy."""
        current = self._own
        if self._led is not None:
            current = copy(self._led)
            for key, revision in self._removed.items():
                current.apply_delete(key, revision)
            current.revision = self._led.revision
        if current is not None:
            current.table_pause, current.revision = self._table_pause, max(current.revision, self._seen_at)
        return current

    async def look(self, *, events: bool = False) -> tuple[pb.Operation, JobGrid] | None:
        """The present operation and its jobs, both of one moment; ``None`` when it is over. ``events``: with
        what has happened to it.

        Raises the error that prevents reading it.
        """
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self.listed.wait()
        except TimeoutError:
            if self.tracked is None and self.error is None:
                raise DeadlineExceeded(
                    f"{self.operation} could not be read within {FIRST_LOOK_S:g} s"
                ) from None
        if self.error is not None:
            raise self.error
        tracked = self.tracked
        if self.over or tracked is None or not tracked.state or not isinstance(tracked.jobs, JobGrid):
            return None
        message = from_tracked(tracked, tracked.revision)
        if events:
            add_live_events(message, tracked)
        return message, tracked.jobs.copied()

    async def run(self) -> None:
        """Keep it up to date until it is over."""
        self._leads.listen(self._keys.root, self)
        try:
            while not self._gone:
                self._moved.clear()
                following = asyncio.create_task(self._follow_safely())
                moved = asyncio.create_task(self._moved.wait())
                try:
                    await asyncio.wait({following, moved}, return_when=asyncio.FIRST_COMPLETED)
                    if following.done():
                        following.result()
                finally:
                    for task in (following, moved):
                        task.cancel()
                    await asyncio.gather(following, moved, return_exceptions=True)
            self.last = await self._ended()
        except Exception as error:
            if not isinstance(error, DistopError):
                log.exception("follow_crashed", extra={"operation": str(self.operation)})
            self.error = as_distop(error)
        finally:
            self._leads.forget(self._keys.root, self)
            if self._timer is not None:
                self._timer.cancel()
            self.over = True
            self.notify()
            self.listed.set()

    async def _ended(self) -> pb.OperationUpdate | None:
        message = await read_finished(self._client, self.operation)
        return None if message is None else pb.OperationUpdate(operation=message, revision=message.revision)

    async def _follow_safely(self) -> None:
        try:
            await self._follow()
        except Compacted:
            return
        except DistopError as error:
            self.error = error
            self.listed.set()
            self.notify()
            log_failure(log, "follow_failed", error, operation=str(self.operation))
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        led = self._leads.get(self._keys.root)
        whole = led is None and (self._whole or await has_many(self._client, self._keys) is False)
        # The operation's own keys, from .arg to .state; numbered partitions lie outside of this range.
        start, end = self._keys.arg, self._keys.state + b"\0"
        if whole:
            start, end = self._keys.prefix, prefix_end(self._keys.prefix)
        async with aclosing(watch(self._client, start, end, puts=led is None)) as changes:
            await self._until_open(changes)
            revision = await self._list(led, whole)
            self.error, tracked = None, self.tracked
            if tracked is None or not tracked.state:
                self._gone = True
            if self._gone:
                return
            self.listed.set()
            self._soon()
            async for batch in changes:
                self._apply(batch.after(revision))
                if self._gone:
                    return

    async def _until_open(self, changes: AsyncGenerator[WatchBatch, None]) -> None:
        """Wait until a watch exists, but not longer than a caller would wait."""
        try:
            async with asyncio.timeout(self._client.config.timeout_s):
                await anext(changes)
        except TimeoutError:
            raise EtcdUnavailable(f"etcd at {self._client.endpoint} opens no watch") from None

    async def _list(self, led: Tracked | None, whole: bool) -> int:
        """Read the present state, at one revision."""
        keys = self._keys
        own, revision = await read_own_keys(self._client, keys)
        self._own, self._led, self._removed = None, led, {}
        if led is not None:
            existing = {kv.key for kv in own}
            # Their deletion may precede the watch.
            self._removed = {key: revision for key in (keys.runner, keys.pause) if key not in existing}
            self._gone = keys.state not in existing
        else:
            tracked = self._own = Tracked.of(keys, own, None if whole else GridCounts())
        await self._refresh_pause()
        if led is not None or tracked is None:
            return revision
        tracked.revision = revision
        if isinstance(tracked.jobs, JobGrid):
            tracked.jobs.complete = False
            end = prefix_end(keys.prefix)
            pages = self._client.pages(keys.prefix, end, limit=PAGE, revision=revision)
            async with aclosing(pages):
                async for page in pages:
                    for kv in page.kvs:
                        tracked.apply_put(kv)
            tracked.jobs.complete = True
        return revision

    async def _refresh_pause(self) -> None:
        """Read what no watch reports: who paused the table."""
        pause, revision = await present_pause(self._client, self._table)
        if pause != self._table_pause:
            self._table_pause, self._seen_at = pause, max(self._seen_at, revision)

    def _apply(self, batch: WatchBatch) -> None:
        """Changes of the operation."""
        if any(event.is_delete and event.kv.key == self._keys.state for event in batch.events):
            # Its other keys may be deleted in the same revision: that removes no result.
            self._gone = True
            return
        for event in batch.events:
            key, revision, ended = event.kv.key, event.kv.mod_revision, None
            if self._own is None:
                if key in (self._keys.runner, self._keys.pause):
                    self._removed[key] = revision
            elif event.kind == "put":
                ended = self._own.apply_put(event.kv)
            else:
                self._own.apply_delete(key, revision)
            self._note(key, ended)
        if batch.events:
            self._seen_at = max(self._seen_at, batch.revision)

    def moved(self) -> None:
        """See :class:`~distop.coordinator.state.caches.Listener`.

        A small operation that is already followed is not restarted.
        """
        tracked = self._own
        if self._led is not None or tracked is None or tracked.has_many or not self.listed.is_set():
            self._moved.set()

    def key_written(self, key: bytes, ended: JobEnd | None) -> None:
        """Apply a write that the leader here has seen: :class:`~distop.coordinator.state.caches.Listener`."""
        if self._led is not None:
            self._note(key, ended)

    def _note(self, key: bytes, ended: JobEnd | None) -> None:
        if ended is not None:
            if not self._whole or not self.watchers:
                return
            if len(self._jobs) < max(MAX_JOBS_PER_UPDATE // self.watchers, 1):
                partition, record = ended
                state = "success" if record.state == "success" else "failed"
                self._jobs.append(pb.JobUpdate(partition=partition, state=state, error=record.error))
        self._soon(urgent=key in self._urgent)

    def _soon(self, *, urgent: bool = False) -> None:
        """Something has changed: report it as soon as the spacing allows."""
        if not self.watchers:
            return
        loop = asyncio.get_running_loop()
        due = self._updated_at + self._spacing(urgent)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = max(due, loop.time())
        self._timer = loop.call_at(self._due, self.notify)

    def notify(self) -> None:
        """Wake the watchers."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._updated_at = None, asyncio.get_running_loop().time()
        self._named, self._jobs, self._update = self._jobs, [], None
        self.version += 1
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def update(self) -> tuple[bytes, int] | None:
        """The newest update, encoded once for all, and its revision; ``None``: nothing to report (yet)."""
        if self._update is None:
            self._update = self._encoded(self._named)
        return self._update

    async def heartbeat(self) -> tuple[bytes, int] | None:
        """The same without the names of jobs, when nothing has changed; reads first what no watch reports.

        Raises :class:`~distop.errors.Unavailable` when etcd does not answer.
        """
        if self._own is not None or self._led is not None:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.create_task(self._refresh_pause())
                # Its error is nobody's once all watchers have left.
                self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._refreshing)
        return self._encoded([])

    def _encoded(self, jobs: list[pb.JobUpdate]) -> tuple[bytes, int] | None:
        tracked = self.tracked
        if tracked is None or not tracked.state or not self.listed.is_set():
            return None
        revision = tracked.revision
        update = pb.OperationUpdate(operation=from_tracked(tracked, revision), jobs=jobs, revision=revision)
        return update.SerializeToString(), revision


IDLE_S = 10.0
"""Seconds without a look after which an operation is no longer followed."""

MAX_FOLLOWED = 128
"""Operations followed for occasional looks; the least recently used one is dropped."""

UPDATE_EVERY_S = 0.05
"""Shortest time between two updates, changes of state aside."""

SHORTEST_READ_S = 1.0
"""What a read for a watcher may take at least, in seconds, however short its interval of heartbeats is."""

UPDATES_PER_S = 1000
"""Updates sent to all watchers of a coordinator together: with more than fifty watchers each gets fewer."""


class Following:
    """The operations that are followed at present; belongs to one event loop."""

    def __init__(
        self, client: EtcdClient, leads: LocalLeaders | None = None, *, idle_s: float = IDLE_S
    ) -> None:
        self._client = client
        self._leads = leads or LocalLeaders()
        self._idle_s = idle_s
        self._followed: dict[tuple[OperationId, bool], tuple[Followed, asyncio.Task[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watchers = 0

    def __len__(self) -> int:
        return len(self._followed)

    def spacing(self, urgent: bool) -> float:
        """Shortest time between two updates of one operation, in seconds."""
        fair = self._watchers / UPDATES_PER_S
        return fair if urgent else max(UPDATE_EVERY_S, fair)

    async def look(
        self, operation: OperationId, *, events: bool = False
    ) -> tuple[pb.Operation, JobGrid] | None:
        """A live operation and its jobs; ``None`` if it is not live (any more). ``events``: with what has
        happened to it.

        Raises
        ------
        EtcdUnavailable, CorruptRecord
            It cannot be read.
        DeadlineExceeded
            etcd takes too long.
        """
        loop = asyncio.get_running_loop()
        if (operation, True) not in self._followed and len(self._followed) >= MAX_FOLLOWED:
            idle = [key for key, (followed, _) in self._followed.items() if not followed.watchers]
            if idle:
                self._drop(min(idle, key=lambda key: self._followed[key][0].looked_at))
        followed = self._follow(operation, True)
        followed.looked_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._expire)
        tracked = await followed.look(events=events)
        if tracked is None and not followed.watchers:
            self._drop((operation, True))
        return tracked

    @contextmanager
    def watching(self, operation: OperationId, *, whole: bool) -> Generator[Followed, None, None]:
        """Follow an operation while it has watchers."""
        followed = self._follow(operation, whole)
        followed.watchers += 1
        self._watchers += 1
        try:
            yield followed
        finally:
            followed.watchers -= 1
            self._watchers -= 1
            now = asyncio.get_running_loop().time()
            if not followed.watchers and now - followed.looked_at >= self._idle_s:
                self._drop((operation, whole), followed)

    def notify_all(self) -> None:
        """Wake all watchers."""
        for followed, _ in self._followed.values():
            followed.notify()

    async def close(self) -> None:
        """Stop following, and wait until nothing is."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for _, task in self._followed.values()]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, operation: OperationId, whole: bool) -> Followed:
        entry = self._followed.get((operation, whole))
        if entry is None or entry[1].done():
            followed = Followed(self._client, self._leads, operation, whole, self.spacing)
            task = asyncio.create_task(followed.run(), name=f"follow-{operation}")
            entry = self._followed[operation, whole] = followed, task
        return entry[0]

    def _drop(self, key: tuple[OperationId, bool], only: Followed | None = None) -> None:
        entry = self._followed.get(key)
        if entry is not None and only in (None, entry[0]):
            del self._followed[key]
            entry[1].cancel()

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for key, (followed, task) in list(self._followed.items()):
            if task.done() or (not followed.watchers and loop.time() - followed.looked_at >= self._idle_s):
                self._drop(key)
        if self._followed:
            self._timer = loop.call_later(self._idle_s, self._expire)


async def updates(
    client: EtcdClient,
    leads: LocalLeaders,
    followed: Followed,
    *,
    after: int,
    heartbeat_s: float,
    stopping: asyncio.Event,
    in_time: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[bytes | pb.OperationUpdate, None]:
    """Updates of an operation to its end, as messages or encoded. Revisions only grow.

    Parameters
    ----------
    after:
        Changes up to this revision are not repeated, except for the end.
    heartbeat_s:
        Seconds between two updates at most, and for each read. So its watcher, which takes two and a half
        of these intervals for silence, gets the error of an etcd that does not answer.
    in_time:
        Within it the first read ends before the caller's deadline.

    Raises
    ------
    OperationNotFound
        There is no such operation.
    Unavailable
        It cannot be read, or this coordinator is about to end; another one continues from the last seen
        revision.
    """
    loop, read_s = asyncio.get_running_loop(), max(heartbeat_s, SHORTEST_READ_S)
    with suppress(TimeoutError):
        # Reads must be newer than the following's first read. A large operation is not waited for.
        async with asyncio.timeout(FIRST_LOOK_S):
            await followed.listed.wait()
    version = followed.version
    if followed.error is not None:
        raise followed.error
    # The counts include jobs that finished before; naming them all would grow without bound.
    with in_time(), within(read_s):
        operation = await read_operation(client, followed.operation, leads)
    if operation.state in ENDED_STATES or operation.revision > after:
        yield pb.OperationUpdate(operation=operation, revision=operation.revision)
    if operation.state in ENDED_STATES:
        return
    sent = max(after, operation.revision)
    due = loop.time() + heartbeat_s
    while True:
        if stopping.is_set():
            raise Unavailable("this coordinator is shutting down", hint="ask another one")
        if followed.error is not None:
            raise followed.error
        if followed.over:
            if followed.last is not None:
                yield followed.last
            return
        if followed.version != version:
            version = followed.version
            update = followed.update()
            if update is None or update[1] <= sent:
                continue
        elif loop.time() < due:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await followed.changed.wait()
            continue
        else:
            with within(read_s):
                update = await followed.heartbeat()
                if update is None:  # it is still being read
                    operation = await read_operation(client, followed.operation, leads)
                    update = pb.OperationUpdate(operation=operation).SerializeToString(), operation.revision
        sent = max(sent, update[1])
        yield _as_of(update, sent)
        due = loop.time() + heartbeat_s


def _as_of(update: tuple[bytes, int], revision: int) -> bytes:
    """An encoded update with this revision.

    Protobuf encoding: the last occurrence of a repeated scalar field counts, and messages are
    merged.
    """
    encoded, written = update
    if written == revision:
        return encoded
    says = pb.OperationUpdate(operation=pb.Operation(revision=revision), revision=revision)
    return encoded + says.SerializeToString()
