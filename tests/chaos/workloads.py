"""What the cluster does while it is struck. Each returns what is wrong with how its operations ended."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from chaos.backlogs import flight_of_nothing, in_parts, ordered, rolled_back
from chaos.cluster import TTL_S, Service
from chaos.commits import catalogued, given_up, moved_by_hand, written, written_natively
from chaos.lab import Lab
from chaos.landings import landed, scheduled
from chaos.ledger import Started
from distop.client import Grant, TableChange
from distop.errors import DistopError, OperationNotFound, PreconditionFailed, TableNotFound
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.retention import EVERY, KEEP
from distop.metastore.records.operation import CompletionRecord, HistoryRecord
from distop.metastore.records.record import decode, encode
from support.tables.trees import age

Workload: TypeAlias = Callable[[Lab], Coroutine[Any, Any, list[str]]]


async def all_ended(lab: Lab, *started: Started) -> list[str]:
    problems = []
    for operation in started:
        problems += await lab.ended(operation)
    return problems


async def ingest(lab: Lab) -> list[str]:
    """A batch appended to one table, and another table overwritten with another batch."""
    appended = await lab.ingest(await lab.table("appended"))
    replaced = await lab.ingest(await lab.table("replaced", replaces=True))
    return await all_ended(lab, appended, replaced)


async def dealt(lab: Lab) -> list[str]:
    """A DataFrame that is cut in another way each time it is computed."""
    book, batch = await lab.table("dealt"), lab.new_batch()
    given = {"paths": [str(batch.folder)], "split_bytes": 1024}
    return await all_ended(lab, await lab.start(book, "dealing", given, batch=batch))


async def noop(lab: Lab) -> list[str]:
    """Jobs that do nothing, many to a task."""
    return await all_ended(lab, await lab.start(await lab.table("nothing"), "noop", {"partitions": 5}))


async def stepping(lab: Lab) -> list[str]:
    """Claimed jobs with checkpoints, whose first tries fail; a hook at the end."""
    folder = lab.folder / "stepping" / f"{lab.operations}"
    folder.mkdir(parents=True)
    argument = {"folder": str(folder), "partitions": 2, "steps": 3}
    started = await lab.start(await lab.table("stepped"), "stepping", argument)
    problems = await lab.ended(started)
    missing = {"hook", "job-0", "job-1"} - {path.name for path in folder.iterdir()}
    return [*problems, *(f"{started.operation} left no {name}" for name in sorted(missing))]


async def export(lab: Lab) -> list[str]:
    """An operation that publishes through external steps, logged ahead."""
    started = await _export(lab, "probe.must", broken=False)
    problems = await lab.ended(started)
    return [*problems, *_check_exported(started, {"0", "1", "2", "last"})]


async def maintained(lab: Lab) -> list[str]:
    """A table whose past is forgotten, and files that nothing refers to are removed, while more comes in."""
    book = await lab.table("maintained", replaces=True)
    problems = await all_ended(lab, await lab.ingest(book))
    problems += await all_ended(lab, await lab.ingest(book))
    (book.location / "data" / "litter.parquet").write_text("of a process that was killed")
    await asyncio.to_thread(age, book.location)
    meanwhile = await lab.ingest(book)
    expired = await lab.start(book, "expire_snapshots", {"older_than": "0s"})
    problems += await all_ended(lab, expired)
    removed = await lab.start(book, "remove_orphans", {"older_than": "1d", "dry_run": False})
    problems += await all_ended(lab, removed, meanwhile)
    await lab.quiet()
    if (book.location / "data" / "litter.parquet").exists():
        problems.append(f"{removed.operation} has left litter")
    return problems


async def rewritten(lab: Lab) -> list[str]:
    """Small files are compacted while more come in."""
    book = await lab.table("rewritten")
    problems = await all_ended(lab, await lab.ingest(book), await lab.ingest(book))
    meanwhile = await lab.ingest(book)
    compacted = await lab.start(book, "compact", {"min_files": 2, "sort_by": ["id"]})
    return [*problems, *await all_ended(lab, meanwhile, compacted)]


async def audited(lab: Lab) -> list[str]:
    """A batch that keeps the rules of its table, one that breaks its own, and a look at all rows."""
    book = await lab.table("audited", checks={"rules": ["id >= 0", {"not_null": "batch"}]})
    kept, broken = await lab.ingest(book), lab.new_batch()
    problems = await all_ended(lab, kept)
    argument = {"paths": [str(broken.folder)], "split_bytes": 1024, "checks": {"rules": "id < 0"}}
    refused = await lab.start(book, "ingest", argument, outcome="failed", batch=broken)
    problems += await all_ended(lab, refused)
    return problems + await all_ended(lab, await lab.start(book, "validate", {"rules": {"unique": "id"}}))


async def plain(lab: Lab) -> list[str]:
    """Trees of plain files: one appended to, one overwritten."""
    if (before := lab.books.pop("plain", None)) is not None:
        lab.retired.append(before)  # folders are made once
    book, problems = await lab.table("plain", plain=True), []
    for _ in range(2):
        problems += await lab.ended(await lab.ingest(book))
    for _ in range(2):
        problems += await lab.ended(
            await lab.ingest(await lab.table("plain-replaced", plain=True, replaces=True))
        )
    return problems


async def versioned(lab: Lab) -> list[str]:
    """Two commits to a Delta table."""
    from deltalake import DeltaTable

    folder, expected, problems = lab.folder / "delta" / f"{lab.operations}", list[int](), list[str]()
    folder.mkdir(parents=True)
    for _ in range(2):
        ids = [lab.sources.next_id() for _ in range(20)]
        expected += ids
        argument = {"folder": str(folder), "partitions": 2, "first": ids[0]}
        problems += await lab.ended(await lab.start(await lab.table("delta"), "versioned", argument))
    committed = [Path(urlsplit(uri).path) for uri in DeltaTable(str(folder)).file_uris()]
    ids = sorted(number for path in committed for number in pq.read_table(path)["id"].to_pylist())
    if ids != expected:
        problems.append(f"{folder} holds {len(ids)} rows, not {len(expected)}")
    return problems


async def notified(lab: Lab) -> list[str]:
    """An operation that publishes by calling a hook."""
    path = lab.folder / "notified" / f"{lab.operations}"
    path.parent.mkdir(parents=True, exist_ok=True)
    started = await lab.start(await lab.table("notified"), "notifying", {"path": str(path)})
    problems = await lab.ended(started)
    tokens = set(path.read_text().splitlines()) if path.exists() else set()
    return problems if len(tokens) == 1 else [*problems, f"{started.operation} gave {sorted(tokens)}"]


async def parked(lab: Lab) -> list[str]:
    """A step that cannot be executed parks its operation; it is put right, and tried again."""
    started = await _export(lab, "probe.must", broken=True)
    await _until_parked(lab, started)
    assert started.folder is not None
    (started.folder / "1.broken").unlink()
    await _resolve(lab, started, "retry")
    problems = await lab.ended(started)
    return [*problems, *_check_exported(started, {"0", "1", "2", "last"})]


async def parked_and_left_out(lab: Lab) -> list[str]:
    """The same, but the step is left out; the others are done."""
    started = await _export(lab, "probe.write", broken=True)
    await _until_parked(lab, started)
    await _resolve(lab, started, "skip")
    problems = await lab.ended(started)
    return [*problems, *_check_exported(started, {"0", "2", "last"})]


async def parked_and_aborted(lab: Lab) -> list[str]:
    """The same, but the operation is given up, and what was done is taken back."""
    started = await _export(lab, "probe.must", broken=True)
    started.outcome = "failed"
    await _until_parked(lab, started)
    await _resolve(lab, started, "abort")
    problems = await lab.ended(started)
    return [*problems, *_check_exported(started, set())]


async def _export(lab: Lab, step: str, *, broken: bool) -> Started:
    folder = lab.folder / "exported" / f"{lab.operations}"
    folder.mkdir(parents=True)
    if broken:
        (folder / "1.broken").write_text("for good")
    argument = {"folder": str(folder), "step": step, "partitions": 3}
    return await lab.start(await lab.table("exported"), "stepped", argument, folder=folder)


async def _until_parked(lab: Lab, started: Started) -> None:
    store = lab.cluster.store
    key = store.keyspace.operation(started.operation).completion

    async def waits() -> bool:
        kv = await store.get(key)
        return kv.exists and decode(kv.value, CompletionRecord, key).parked

    await lab.until(waits, f"{started.operation} is not parked")


async def _resolve(lab: Lab, started: Started, action: Literal["retry", "skip", "abort"]) -> None:
    # Decided by a call whose answer was lost; the operation may be over by the time of the next one.
    with contextlib.suppress(PreconditionFailed):
        await lab.retry_until_known(
            partial(getattr(lab.client.operation(str(started.operation)), action), "chaos")
        )


def _check_exported(started: Started, wanted: set[str]) -> list[str]:
    assert started.folder is not None
    written = {path.name: path.read_text() for path in started.folder.iterdir()}
    published = {name for name in written if name != "journal" and not name.endswith(".broken")}
    if published != wanted:
        return [f"{started.operation} has published {sorted(published)}, not {sorted(wanted)}"]
    if len({written[name] for name in published}) > 1:
        return [f"{started.operation} has published under several tokens"]
    return []


async def bad_rows(lab: Lab) -> list[str]:
    """An ingest that must fail: its jobs clean up, and nothing of it is ever seen."""
    return await all_ended(lab, await lab.ingest(await lab.table("appended"), bad=True))


async def cancel(lab: Lab) -> list[str]:
    """An operation that would last for ever is cancelled; the ``after_failure`` of its type is called."""
    aborted = lab.folder / f"aborted-{lab.operations}"
    argument = {"partitions": 1, "release": str(lab.folder / "never"), "aborted": str(aborted)}
    started = await lab.start(await lab.table("held"), "holding", argument, outcome="cancelled")
    await asyncio.sleep(lab.rng.uniform(0.0, 0.5))
    await lab.retry_until_known(lambda: lab.client.operation(str(started.operation)).cancel(reason="chaos"))
    problems = await lab.ended(started)
    tokens = set(aborted.read_text().splitlines()) if aborted.exists() else set()
    return (
        problems if len(tokens) == 1 else [*problems, f"{started.operation} was aborted as {sorted(tokens)}"]
    )


async def held_up(lab: Lab) -> list[str]:
    """A table is paused and resumed, then an operation of it is."""
    book = await lab.table("appended")
    await lab.retry_until_known(lambda: lab.client.table(book.table).pause("chaos"))
    await lab.retry_until_known(lambda: lab.client.table(book.table).resume("chaos"))
    started = await lab.ingest(book)
    name = str(started.operation)
    with contextlib.suppress(PreconditionFailed, OperationNotFound):  # it may be over by now
        await lab.retry_until_known(lambda: lab.client.operation(name).pause("chaos"))
        await lab.retry_until_known(lambda: lab.client.operation(name).resume("chaos"))
    return await lab.ended(started)


async def drained(lab: Lab) -> list[str]:
    """A coordinator is drained while a table has work, and takes part again."""
    await lab.cluster.ready(coordinators=2)
    started = await lab.ingest(await lab.table("appended"))
    address = lab.cluster.addresses().split(",")[lab.rng.randrange(2)]

    async def accepted(undo: bool) -> bool:
        # One that was killed at the point is another member by now, or not there yet.
        with contextlib.suppress(DistopError):
            await lab.client.drain(address, "chaos", undo=undo)
            return True
        return False

    await lab.until(lambda: accepted(False), f"{address} cannot be drained")
    problems = await lab.ended(started)
    await lab.until(lambda: accepted(True), f"{address} stays drained")
    return problems


async def granted(lab: Lab) -> list[str]:
    """Somebody is given a right, and loses it: each change is whole, and made once."""
    mine = Grant(who="chaos", role="admin", tables=("*",))
    theirs = Grant(who=f"reader-{lab.rng.randrange(10**6)}", role="reader", tables=("appended",))
    problems = []
    for change in (
        partial(lab.client.change_grants, [mine, theirs]),
        partial(lab.client.change_grants, (), [theirs]),
    ):
        await lab.retry_until_known(change)
        grants = (await lab.retry_until_known(lab.client.grants)).grants
        if mine not in grants or (theirs in grants) != bool(change.args[0]):
            problems.append(f"the policy is {grants}")
    return problems


async def new_table(lab: Lab) -> list[str]:
    """A table is made, and used."""
    if (before := lab.books.pop("fresh", None)) is not None:
        lab.retired.append(before)
    return await all_ended(lab, await lab.ingest(await lab.table("fresh")))


async def changed_table(lab: Lab) -> list[str]:
    """A table gets a column, and is used; an alteration whose answer was lost is not made twice."""
    book = await lab.table("changing")
    problems = await lab.ended(await lab.ingest(book))
    name = f"extra{book.operations}"
    change: TableChange = {"change": "add", "column": name, "type": "long"}
    await lab.retry_until_known(partial(lab.client.table(book.table).alter, [change], run=name))
    return [*problems, *await lab.ended(await lab.ingest(book))]


async def dropped(lab: Lab) -> list[str]:
    """A table is made, used, and dropped with its files; nothing of it is left."""
    book = await lab.table("doomed")
    problems = await lab.ended(await lab.ingest(book))
    del lab.books["doomed"]
    store, keys = lab.cluster.store, lab.cluster.store.keyspace.table(book.table)
    await lab.until(partial(_at_rest, lab, book.table), f"{book.table} is at work for ever")
    with contextlib.suppress(TableNotFound):  # an earlier call, whose answer was lost, has dropped it
        await lab.retry_until_known(partial(lab.client.table(book.table).drop, purge=True))
    # Whoever died half-way has left the rest to the next drop.
    with contextlib.suppress(TableNotFound):
        await lab.retry_until_known(partial(lab.client.table(book.table).drop, purge=True))
    if (await store.get(keys.table)).exists:
        problems.append(f"{book.table} was dropped, and is there")
    left = [path for path in book.location.rglob("*") if path.is_file()] if book.location.exists() else []
    return [*problems, *(f"{book.table} was purged, and has {path.name}" for path in left[:3])]


async def _at_rest(lab: Lab, table: str) -> bool:
    """Whether no operation of a table has keys any more."""
    prefix = lab.cluster.store.keyspace.active
    active = (await lab.cluster.store.scan(prefix, keys_only=True)).kvs
    return not any(lab.cluster.store.keyspace.parse_active(kv.key).table == table for kv in active)


async def foreign_append(lab: Lab) -> list[str]:
    """A pyiceberg program appends a row while a batch is ingested; it is started again until it is done."""
    book = await lab.table("appended")
    if not book.batches:
        problems = await all_ended(lab, await lab.ingest(book))
        if problems:
            return problems
    identity = lab.sources.next_id()
    started = await lab.ingest(book)
    await lab.program("chaos.foreign", book.table, str(identity))
    book.foreign.append(identity)
    book.fresh.add(identity)
    return await lab.ended(started)


async def prune(lab: Lab) -> list[str]:
    """An operation after which old history is forgotten."""
    lab.books.pop("pruned", None)
    book = await lab.table("pruned")
    store = lab.cluster.store
    keys = store.keyspace.table(book.table)
    old = encode(HistoryRecord(outcome="success", started_at=1.0, finished_at=2.0))
    count = EVERY * (KEEP // EVERY + 2) - 1  # the next instance is one at whose end is pruned
    puts = [Put(keys.history_prefix + b"noop.%d" % number, old) for number in range(1, count + 1)]
    for first in range(0, len(puts), 100):
        await store.txn(Txn(then=tuple(puts[first : first + 100])))
    await store.put(keys.next_instance("noop"), b"%d" % (count + 1))
    return await all_ended(lab, await lab.start(book, "noop", {"partitions": 1}))


async def leader_terminated(lab: Lab) -> list[str]:
    """SIGTERM for the leader while it has work; its supervisor starts another one."""
    started = await lab.ingest(await lab.table("appended"))
    await _signal_leader(lab, started, signal.SIGTERM)
    problems = await lab.ended(started)
    await lab.cluster.ready(coordinators=2)
    return problems


async def runner_terminated(lab: Lab) -> list[str]:
    """SIGTERM for a runner, in the middle of work."""
    started = await lab.ingest(await lab.table("appended"))
    runner = lab.rng.choice(lab.cluster.runners())
    runner.signal(signal.SIGTERM)
    problems = await lab.ended(started)
    await lab.cluster.ready(runners=len(lab.cluster.runners()))
    return problems


async def runner_paused(lab: Lab) -> list[str]:
    """SIGSTOP past the lease for all runners in turn: each is a new member when it wakes up, and what it ran
    waits for another one."""
    release = lab.folder / f"released-{lab.operations}"
    argument = {"partitions": 1, "release": str(release)}
    held = await lab.start(await lab.table("held"), "holding", argument)
    await _taken(lab, held)
    started = await lab.ingest(await lab.table("appended"))
    for runner in lab.cluster.runners():
        await paused(runner)
    release.touch()
    return await all_ended(lab, held, started)


async def leader_paused(lab: Lab) -> list[str]:
    """SIGSTOP past the lease for the leader."""
    started = await lab.ingest(await lab.table("appended"))
    leader = await _leader_of(lab, started)
    if leader is not None:
        await paused(leader)
    return await lab.ended(started)


async def sidecars_killed(lab: Lab) -> list[str]:
    """The sidecars are killed while jobs hold claims; tasks start others."""
    over = await lab.start(await lab.table("nothing"), "noop", {"partitions": 1})
    problems = await lab.ended(over)
    working = asyncio.create_task(stepping(lab))
    scratch = []
    for runner in lab.cluster.runners():
        if pid := runner.sidecar_pid():
            if runner.sidecar_folder is not None:
                scratch.append(runner.sidecar_folder.scratch_of(over.operation))
            kill(pid)
    problems += await working
    problems += await ingest(lab)

    async def swept() -> bool:
        # The next sidecar of a host removes what is of no use to anybody; a host without tasks starts none.
        return not all(folder.exists() for folder in scratch) or not scratch

    await lab.until(swept, f"scratch of {over.operation} is not removed")
    return problems


async def paused(service: Service, seconds: float = TTL_S + 2.0) -> None:
    """Stop a process for longer than its lease lives."""
    service.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        service.signal(signal.SIGCONT)


async def _leader_of(lab: Lab, started: Started) -> Service | None:
    """Who leads the table of an operation, as soon as somebody does; ``None`` if it is over before."""
    table, store = started.book.table, lab.cluster.store
    key = store.keyspace.table(table).history(started.operation)

    async def led() -> list[Service | None] | None:
        try:
            leader = await lab.cluster.leader(table)
            over = leader is None and (await store.get(key)).exists
        except DistopError:
            return None
        return [leader] if leader is not None or over else None

    return (await lab.until(led, f"nobody leads {table}"))[0]


async def _taken(lab: Lab, started: Started) -> None:
    """Wait until an executor runs an operation."""
    store = lab.cluster.store
    runner = store.keyspace.operation(started.operation).runner

    async def taken() -> bool:
        return (await store.get(runner)).exists

    await lab.until(taken, f"{started.operation} is not taken")


async def _signal_leader(lab: Lab, started: Started, number: signal.Signals) -> None:
    leader = await _leader_of(lab, started) or lab.rng.choice(lab.cluster.coordinators())
    leader.signal(number)


def kill(pid: int) -> None:
    """kill -9; nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


BY_STEP: dict[str, tuple[Workload, ...]] = {
    **dict.fromkeys(("start", "take", "launch", "job", "mark", "release"), (ingest,)),
    **dict.fromkeys(("seal", "snapshot", "finish", "collect", "sweep", "lead"), (ingest,)),
    **dict.fromkeys(("run.begin", "compute", "count.seal"), (dealt,)),
    **dict.fromkeys(("claim", "unclaim", "checkpoint", "try", "mark_each", "hook"), (stepping,)),
    "abort": (cancel,),
    "cancel": (cancel,),
    "enqueue": (landed, ordered),
    "ordering": (ordered,),
    "batch": (ordered,),
    "batch.part": (in_parts,),
    "batch.free": (flight_of_nothing,),
    "batch.back": (rolled_back,),
    "schedule": (scheduled,),
    "landing": (landed,),
    "job.clean": (bad_rows,),
    "pause": (held_up,),
    "resume": (held_up,),
    "drain": (drained,),
    "grant": (granted,),
    "log": (export,),
    "step": (export,),
    **{f"step.{kind}": (plain,) for kind in ("rename", "delete", "mkdir", "success", "unmark")},
    "step.hook": (notified,),
    "step.delta": (versioned,),
    "expire": (maintained,),
    "orphans": (maintained,),
    "note": (parked,),
    "resolve": (parked, parked_and_left_out),
    "act": (parked_and_aborted, parked_and_left_out),
    "undo": (parked_and_aborted,),
    "publish": (written, written_natively),
    "give_up": (given_up,),
    "watermarks": (moved_by_hand,),
    "table.alter": (changed_table,),
    "table.create": (new_table,),
    "drop": (dropped,),
    "purge": (dropped,),
    "catalog": (catalogued,),
    "catalog.swap": (foreign_append, catalogued),
    "namespace": (catalogued,),
    "prune": (prune,),
    "resign": (leader_terminated,),
    "lease": (leader_terminated, runner_terminated),
    "coordinator.register": (leader_terminated,),
    "runner.register": (runner_paused,),
    "wait": (runner_paused, runner_terminated),
    "sidecar": (sidecars_killed,),
    "scratch": (sidecars_killed,),
}
"""Which workloads reach a step, by the beginning of its name; the longest that fits is tried first."""

ORDINARY: tuple[Workload, ...] = (ingest, stepping, export, bad_rows, noop, cancel, parked, audited, landed)


def workloads_of(point: str) -> list[Workload]:
    """Those that a point is known to be reached by, the most likely first."""
    steps = [step for step in BY_STEP if point.startswith(f"{step}.")]
    return [workload for step in sorted(steps, key=len, reverse=True) for workload in BY_STEP[step]]


def workloads_for(point: str) -> list[Workload]:
    """Those to try for a point, the most likely first; then all others, in case the table above is behind."""
    others = (*ORDINARY, foreign_append, leader_terminated, sidecars_killed)
    return list(dict.fromkeys([*workloads_of(point), *others]))
