"""Commit steps under kill -9: the log is whole or absent, and whatever was begun is brought to its end."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from distop.lake.plain.steps import FolderArgument, SuccessArgument
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.steplog import CommitStepStore
from distop.metastore.records.operation import StepRecord
from support.etcd.leading import Committing
from support.etcd.lossy import LossyClient
from support.etcd.starts import make_table
from support.forks import Forks
from support.sources.s3 import S3
from support.types.step_worlds import World, across, delete, rename, replacing

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills a hundred writers of a log, and a process at each point of its steps"),
]

KILLS = 100


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as started:
        yield started


@pytest_asyncio.fixture
async def session(client: LossyClient) -> AsyncIterator[LeaseSession]:
    await make_table(client)
    async with LeaseSession(client, 10) as held:
        yield held


async def test_a_log_whose_writer_is_killed_is_whole_or_absent(
    client: LossyClient, session: LeaseSession, forks: Forks, prefix: str
) -> None:
    """C2: a hundred kills, at every point of it and at any moment; the next writer's log may be another."""
    dice = random.Random(20)
    op = await Committing.of(client, session)
    ends = {"whole": 0, "absent": 0, "half": 0}
    killed, found = 0, ""
    tried: list[list[str]] = []
    for round_number in itertools.count():
        notes = [f"{round_number}/{n} 🦆" for n in range(dice.randint(1, 60))]
        tried.append(notes)
        crash, after_s = "", 0.0
        if round_number % 2:
            point = dice.choice(["chunk.before", "chunk.after", "header.before", "header.after"])
            nth = dice.randint(1, 1 + len(notes) // 15) if "chunk" in point else 1
            if found == "whole" and dice.random() < 0.3:  # what was half before would stay half
                point, nth = "chunk.before", 1
            crash = f"log.{point}=die@{nth}"
        else:
            after_s = dice.uniform(0.005, 0.06)
        epoch = [op.epoch.key.decode(), op.epoch.revision]
        arguments = (client.endpoint, prefix, str(op.arg.id), epoch, op.arg.uuid, notes)
        killed += forks.run("write_log", *arguments, crash=crash, after_s=after_s) < 0
        logged = await CommitStepStore().load(client, op.keys)
        if logged is None:
            found = "half" if await op.log_keys() else "absent"
        else:
            # All of one, and nothing of the others. The last request of one that was killed may come late.
            assert [step.argument["note"] for step in logged.steps] in tried
            found, tried = "whole", []
            op = await op.another()
        ends[found] += 1
        if killed >= KILLS:
            break
    assert min(ends.values()) > 3, ends


def renames(world: World, count: int) -> list[StepRecord]:
    """Staged files, and the steps that publish them."""
    return [rename(world, b"rows %d" % n, source=f"staged/{n}", target=f"final/{n}") for n in range(count)]


def sequence(world: World) -> list[StepRecord]:
    """Steps of every kind on files, in stages; the first renames from another disk, where there is one."""
    return [
        *([across(world)] if world.aside else ()),
        FolderArgument(path=f"{world.url}/made").record(),
        *(msgspec.structs.replace(step, stage=1) for step in renames(world, 4)),
        msgspec.structs.replace(replacing(world), stage=1),
        msgspec.structs.replace(delete(world), stage=2),
        SuccessArgument(path=f"{world.url}/final/_SUCCESS").record(stage=3),
    ]


def points(world: World) -> list[str]:
    """Steps of each kind, killed at each of their points; on S3, where it takes longer, some of them."""
    if not world.stored("x").is_local:
        return ["step.rename.middle=die@3", "step.rename.after=die@5", "step.delete.after=die@1"]
    if world.aside:
        return [f"step.rename.{part}=die@1" for part in ("before", "middle", "after")]
    renamed = [f"step.rename.{part}=die@{nth}" for nth in (1, 3, 5) for part in ("before", "middle", "after")]
    others = [
        f"step.{kind}.{part}=die" for kind in ("mkdir", "delete", "success") for part in ("before", "after")
    ]
    return [*renamed, *others]


@pytest.fixture(params=["disk", "two disks", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    shm = Path("/dev/shm")
    if request.param == "disk":
        yield World(str(tmp_path))
    elif request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        yield World(f"{s3.url}/a folder", s3.storage)
    elif not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one disk")
    else:
        with TemporaryDirectory(dir=shm) as aside:
            yield World(str(tmp_path), aside=f"file://{aside}")


def run(forks: Forks, world: World, records: list[StepRecord], **options: Any) -> int:
    return forks.run("execute_steps", world.url, world.storage, msgspec.to_builtins(records), 1, **options)


def test_killed_in_any_step_the_next_process_finishes_and_the_end_is_the_same(
    world: World, forks: Forks
) -> None:
    """C4, C7, C13, C15: after every step k, and within it; at any time a file is whole, or is not there."""

    def apart(name: str) -> World:
        return replace(world, url=f"{world.url}/{name}", aside=world.aside and f"{world.aside}/{name}")

    undisturbed = apart("undisturbed")
    assert run(forks, undisturbed, sequence(undisturbed)) == 0
    expected = undisturbed.files()
    assert len([name for name in expected if name.startswith("/final/")]) == (8 if world.aside else 6)
    for number, point in enumerate(points(world)):
        there = apart(str(number))
        records = sequence(there)
        assert run(forks, there, records, crash=point) == -9, point
        found = there.contents()
        assert all(found.get(name, held) in (held, b"old rows") for name, held in expected.items()), point
        assert run(forks, there, records) == 0, point
        assert there.files() == expected, point


def test_a_process_killed_at_any_moment_with_many_steps_under_way(forks: Forks, tmp_path: Path) -> None:
    """C4, C16: again and again, until one comes to the end; every file is there once, and whole."""
    world, dice, count = World(str(tmp_path)), random.Random(7), 100
    steps = msgspec.to_builtins(renames(world, count))
    kills = 0
    while kills < 10:
        kills += forks.run("execute_steps", world.url, {}, steps, 16, after_s=dice.uniform(0.002, 0.01)) < 0
        found = {path.name: path.read_text() for path in (tmp_path / "final").glob("*")}
        assert all(text == f"rows {name}" for name, text in found.items())
        left = {path.name for path in (tmp_path / "staged").glob("*")}
        assert left | set(found) == {str(n) for n in range(count)}, "a file is at its old or its new place"
        if not left:
            for path in (tmp_path / "final").glob("*"):
                path.rename(tmp_path / "staged" / path.name)
    assert forks.run("execute_steps", world.url, {}, steps, 16) == 0
    assert sorted(path.name for path in (tmp_path / "final").iterdir()) == sorted(map(str, range(count)))
    assert list((tmp_path / "staged").iterdir()) == []
