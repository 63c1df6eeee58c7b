"""What can be done to a cluster: a process struck at a crash point, or a fault from outside."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from chaos.again import again_at_random
from chaos.backlogs import replaced, rolled_back, staged
from chaos.cluster import TTL_S
from chaos.commits import branched, catalogued, moved_by_hand, written, written_natively
from chaos.commits import compacted as compaction
from chaos.commits import deleted as deletion
from chaos.lab import Lab
from chaos.racing import ten_writers
from chaos.workloads import (
    Workload,
    audited,
    cancel,
    export,
    ingest,
    kill,
    leader_paused,
    paused,
    plain,
    rewritten,
    runner_paused,
    sidecars_killed,
    stepping,
)
from support.repository import points

PAUSE = f"sleep:{TTL_S + 2}"

LOST = (
    *("start", "take", "release", "claim", "unclaim", "try", "checkpoint", "sidecar.register"),
    *("run.begin", "count.seal", "mark", "mark_each", "seal", "log.chunk", "log.header", "finish"),
    *("cancel", "lead", "resign", "prune", "catalog.swap", "catalog.rename", "catalog.drop"),
    *("namespace", "drop", "drop.finish", "watermarks", "watermarks.fold", "publish", "table.alter"),
    *("table.create", "pause", "resume", "drain", "grant", "note", "resolve", "act", "enqueue"),
    *("ordering", "batch.start", "batch.note", "batch.rest", "batch.part"),
    *("batch.back", "batch.free", "runner.register"),
)
"""Steps that are one transaction of etcd, whose answer may be lost."""
STORM_S = 25.0
NOT_IN_A_STORM = ("runner.register.after", "coordinator.register.after", "lease.grant.before")
"""Who dies at birth each time does no work in between."""

LOST_TOO = ("collect.middle", "collect.after")

PAUSED = (
    *("start.before", "take.before", "take.after", "launch.middle", "claim.before"),
    *("checkpoint.before", "run.begin.before", "count.seal.before", "job.file.before"),
    *("job.file.after", "mark.before", "mark_each.before", "seal.before", "snapshot.after"),
    *("finish.before", "finish.after", "collect.before", "sweep.before", "log.chunk.before"),
    *("log.header.before", "step.before", "step.after", "note.before", "act.before"),
    *("batch.start.before", "batch.note.before", "batch.rest.before"),
)
"""Where a process that sleeps past its lease must find that it is too late, or nothing happened."""


INSIDE: dict[str, Workload] = {
    "a compaction": compaction,
    "a deletion": deletion,
    "the publication of a branch": branched,
    'format("distop")': written,
    "a native write": written_natively,
    "a rollback": rolled_back,
    "the replacement of a batch": replaced,
    "the publication of a staged batch": staged,
}
"""Commits that pass points of an ingest on a way of their own: they are struck there, too."""
OF_COMMITS = {
    "job.file.after": ("die",),
    "snapshot.before": ("die",),
    "snapshot.middle": ("die",),
    "snapshot.after": ("die", PAUSE),
    "finish.before": ("die",),
    "finish.after": ("die", "lost"),
}
"""What is done inside of them."""
WITHOUT_JOBS = (
    "the publication of a branch",
    "the publication of a staged batch",
    "a native write",
    "a rollback",
)


@dataclass(frozen=True)
class Strike:
    """A crash point and what happens there."""

    point: str
    action: str
    inside: str = ""
    """What must be under way: one of :data:`INSIDE`."""

    @property
    def name(self) -> str:
        return f"{self.point} in {self.inside}" if self.inside else self.point

    @property
    def kind(self) -> str:
        """``die``, ``lost`` or ``sleep``."""
        return self.action.partition(":")[0]


Fault = Callable[[Lab], Coroutine[Any, Any, list[str]]]
"""A fault from outside, with the work that goes on meanwhile; what is wrong with how that ended."""


def strikes(points: list[str], patterns: list[str], rng: random.Random) -> list[Strike]:
    """What is to be done at the points, in a seeded order: first each is killed once.

    Parameters
    ----------
    patterns:
        Of ``point`` or ``point=what``, with ``@inside`` behind it where there is one; a strike is chosen if
        any matches.
    """
    killed = [Strike(point, "die") for point in points]
    lost = [f"{step}.after" for step in LOST] + list(LOST_TOO)
    others = [Strike(point, "lost") for point in points if point in lost]
    others += [Strike(point, PAUSE) for point in points if point in PAUSED]
    others += [
        Strike(point, action, inside)
        for inside in INSIDE
        for point, actions in OF_COMMITS.items()
        for action in actions
        if point != "job.file.after" or inside not in WITHOUT_JOBS
    ]
    rng.shuffle(killed)
    rng.shuffle(others)

    def chosen(strike: Strike) -> bool:
        inside = strike.inside and f"@{strike.inside}"
        names = (f"{strike.point}{inside}", f"{strike.point}={strike.kind}{inside}")
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    return [strike for strike in killed + others if chosen(strike)]


async def _during(lab: Lab, fault: Callable[[], Awaitable[None]], *workloads: Workload) -> list[str]:
    """Strike at a moment of chance while work goes on."""
    working = [asyncio.create_task(workload(lab)) for workload in workloads]
    await asyncio.sleep(lab.rng.uniform(0.0, 1.5))
    await fault()
    return [problem for ended in await asyncio.gather(*working) for problem in ended]


async def etcd_killed(lab: Lab) -> list[str]:
    """kill -9 of etcd, started again on its data."""

    async def fault() -> None:
        lab.cluster.etcd.kill()
        await asyncio.sleep(lab.rng.uniform(0.1, TTL_S + 1.0))
        lab.cluster.etcd.start()

    return await _during(lab, fault, ingest, stepping, cancel)


async def compacted(lab: Lab) -> list[str]:
    """All watchers are cut off while history is forgotten that they have not seen."""

    async def fault() -> None:
        services = lab.cluster.services
        await asyncio.gather(*(service.proxy.refuse() for service in services))
        store = lab.cluster.store
        for _ in range(5):
            await store.put(store.keyspace.prefix + b"_namespaces.chaos", b"{}")
        await store.compact(await store.revision())
        await asyncio.gather(*(service.proxy.accept() for service in services))

    return await _during(lab, fault, ingest, stepping)


async def cut(lab: Lab) -> list[str]:
    """Connections to etcd break, of all services, again and again."""

    async def fault() -> None:
        for _ in range(4):
            for service in lab.cluster.services:
                service.proxy.cut()
            await asyncio.sleep(lab.rng.uniform(0.05, 0.4))

    return await _during(lab, fault, ingest, stepping)


async def replies_lost(lab: Lab) -> list[str]:
    """What etcd answers is held back, then lost; what was sent has happened."""

    async def fault() -> None:
        for _ in range(2):
            proxies = [service.proxy for service in lab.cluster.services]
            for proxy in proxies:
                proxy.hold_replies()
            await asyncio.sleep(lab.rng.uniform(0.2, 0.8))
            for proxy in proxies:
                proxy.cut()
                proxy.flow()

    return await _during(lab, fault, ingest, stepping)


async def cut_off(lab: Lab) -> list[str]:
    """One coordinator and one runner are without etcd for longer than their leases live."""

    async def fault() -> None:
        cluster = lab.cluster
        pair = [lab.rng.choice(cluster.coordinators()), lab.rng.choice(cluster.runners())]
        await asyncio.gather(*(service.proxy.refuse() for service in pair))
        await asyncio.sleep(TTL_S + 1.5)
        await asyncio.gather(*(service.proxy.accept() for service in pair))

    return await _during(lab, fault, ingest, stepping)


async def everybody_paused(lab: Lab) -> list[str]:
    """SIGSTOP past the lease for all coordinators and runners at once: nobody is there."""

    async def fault() -> None:
        await asyncio.gather(*(paused(service) for service in lab.cluster.services))

    return await _during(lab, fault, ingest, stepping)


async def killed_at_random(lab: Lab) -> list[str]:
    """kill -9 of one coordinator and one runner, whatever they are at."""

    async def fault() -> None:
        for service in (lab.rng.choice(lab.cluster.coordinators()), lab.rng.choice(lab.cluster.runners())):
            if service.process is not None and service.running:
                service.process.kill()

    return await _during(lab, fault, ingest, stepping, cancel)


async def etcd_paused(lab: Lab) -> list[str]:
    """SIGSTOP of etcd for longer than leases live; it counts them anew from when it wakes up."""

    async def fault() -> None:
        lab.cluster.etcd.suspend()
        await asyncio.sleep(TTL_S + 1.0)
        lab.cluster.etcd.resume()

    return await _during(lab, fault, ingest, stepping)


async def storm(lab: Lab) -> list[str]:
    """For a while everything at once: points struck at random, processes killed, connections cut."""
    loop = asyncio.get_running_loop()
    over = loop.time() + STORM_S
    known = [point for point in points() if point not in NOT_IN_A_STORM]

    async def again_and_again(workload: Workload) -> list[str]:
        problems = []
        while loop.time() < over:
            problems += await workload(lab)
        return problems

    async def thunder() -> None:
        while loop.time() < over:
            kind = lab.rng.choice(("point", "point", "lost", "kill", "sidecar", "cut"))
            service = lab.rng.choice(lab.cluster.services)
            if kind == "point":
                lab.cluster.arm(lab.rng.choice(known), "die", lab.rng.randint(1, 3))
            elif kind == "lost":
                lab.cluster.arm(f"{lab.rng.choice(LOST)}.after", "lost")
            elif kind == "kill" and service.process is not None and service.running:
                service.process.kill()
            elif kind == "sidecar" and (pid := service.sidecar_pid()):
                kill(pid)
            else:
                service.proxy.cut()
            await asyncio.sleep(lab.rng.uniform(0.3, 1.5))
        lab.cluster.disarm()

    kinds = (
        *(ingest, audited, rewritten, stepping, export, plain, cancel),
        *(branched, catalogued, moved_by_hand, written),
    )
    working = [again_and_again(workload) for workload in kinds]
    ended = await asyncio.gather(*working, thunder())
    return [problem for problems in ended[:-1] if problems is not None for problem in problems]


FAULTS: dict[str, Fault] = {
    "storm": storm,
    "leader paused": leader_paused,
    "runners paused": runner_paused,
    "everybody paused": everybody_paused,
    "sidecars killed": sidecars_killed,
    "killed at random": killed_at_random,
    "etcd killed": etcd_killed,
    "etcd paused": etcd_paused,
    "history compacted": compacted,
    "connections cut": cut,
    "replies lost": replies_lost,
    "cut off past the lease": cut_off,
    "ten writers": ten_writers,
    "again at random": again_at_random,
}

__all__ = ["FAULTS", "Fault", "Strike", "strikes"]
