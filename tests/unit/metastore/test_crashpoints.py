"""Crash points: what they do when armed, and that they are nothing when not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distop.errors import InvalidArgument
from distop.metastore.crashpoints import Armed, parse, points, reached
from support.processes import captured
from support.repository import product_sources

COME_BY = """
from distop.errors import OutcomeUnknown
from distop.metastore.crashpoints import reached
for number in range(3):
    try:
        reached("seal.after")
        print(number, flush=True)
    except OutcomeUnknown:
        print("lost", flush=True)
"""


# All of them, so that none is lost when code moves: `make chaos` kills only what it finds.
POINTS = """
abort.after abort.before act.after act.before batch.free.after batch.free.before batch.note.after
batch.note.before batch.part.after batch.part.before batch.rest.after batch.rest.before
batch.start.after batch.start.before cancel.after cancel.before catalog.drop.after
catalog.drop.before catalog.rename.after catalog.rename.before catalog.swap.after
catalog.swap.before checkpoint.after
checkpoint.before claim.after claim.before collect.after collect.before collect.middle compute.after
compute.before coordinator.register.after count.seal.after count.seal.before drain.after
drain.before drop.after drop.before drop.finish.after drop.finish.before drop.middle enqueue.after
enqueue.before expire.after expire.before expire.middle finish.after finish.before give_up.after
give_up.before grant.after grant.before hook.after hook.before job.after job.before job.clean.after
job.clean.before job.file.after job.file.before job.file.middle landing.approve.after landing.approve.before
landing.approve.middle landing.gate.after landing.gate.before landing.publish.after
landing.publish.before launch.after launch.before launch.middle lead.after lead.before
lease.grant.after lease.grant.before lease.revoke.after lease.revoke.before log.chunk.after
log.chunk.before log.header.after log.header.before mark.after mark.before mark_each.after
mark_each.before namespace.after namespace.before note.after note.before ordering.after
ordering.before orphans.after orphans.before orphans.middle pause.after pause.before prune.after
prune.before publish.after publish.before publish.middle purge.middle release.after release.before
resign.after resign.before resolve.after resolve.before resume.after resume.before run.begin.after
run.begin.before runner.register.after schedule.rest.after
schedule.rest.before schedule.set.after schedule.set.before schedule.skip.after schedule.skip.before
schedule.start.after schedule.start.before scratch.after scratch.before seal.after seal.before
sidecar.middle sidecar.register.after snapshot.after snapshot.before snapshot.middle start.after
start.before step.after step.before step.delete.after step.delete.before step.delta.after
step.delta.before step.hook.after step.hook.before step.middle step.mkdir.after step.mkdir.before
step.rename.after step.rename.before step.rename.middle step.success.after step.success.before
step.unmark.after step.unmark.before sweep.after sweep.before sweep.middle table.alter.after
table.alter.before table.create.after table.create.before take.after take.before try.after
try.before unclaim.after unclaim.before undo.after undo.before wait.after wait.before
watermarks.after watermarks.before
watermarks.fold.after watermarks.fold.before
"""


def come_by(plan: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that comes by ``seal.after`` three times."""
    env = {**os.environ, "DISTOP_CRASH_POINTS": plan, **environment}
    return captured([sys.executable, "-c", COME_BY], env=env, timeout=60)


def test_nothing_happens_unless_armed() -> None:
    reached("seal.after")
    assert come_by("finish.after=die").stdout.split() == ["0", "1", "2"]


def test_a_point_kills_the_process_the_time_it_is_told_to() -> None:
    done = come_by("seal.after=die@2")
    assert (done.stdout.split(), done.returncode) == (["0"], -signal.SIGKILL)


def test_a_point_loses_one_answer_altogether_and_leaves_a_record(tmp_path: Path) -> None:
    for expected in (["lost", "1", "2"], ["0", "1", "2"]):
        done = come_by("seal.after=lost", DISTOP_CRASH_ONCE=str(tmp_path))
        assert done.stdout.split() == expected, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["seal.after=lost"]


def test_a_plan_in_a_file_arms_processes_that_run_already(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    assert come_by(f"@{plan}").stdout.split() == ["0", "1", "2"]
    plan.write_text("seal.after=die\n")
    assert come_by(f"@{plan}").returncode == -signal.SIGKILL


def test_a_pause_stops_the_whole_process(tmp_path: Path) -> None:
    began = time.monotonic()
    done = come_by("seal.after=sleep:0.5", DISTOP_CRASH_ONCE=str(tmp_path))
    assert done.stdout.split() == ["0", "1", "2"]
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("plan", ["seal.after", "seal.after=explode", "=die", "seal.after=die@0"])
def test_a_plan_that_is_none_is_refused(plan: str) -> None:
    with pytest.raises(InvalidArgument, match="crash point"):
        parse(plan)


def test_a_plan_names_several_points() -> None:
    plan = "seal.after=die, mark.before=sleep:2.5@3,"
    assert parse(plan) == {"seal.after": Armed("die"), "mark.before": Armed("sleep:2.5", 3)}


def test_every_point_is_found_in_the_source() -> None:
    """Also those in lambdas; and none is reached by another name than a literal, which nobody would find."""
    called = 0
    for path in product_sources():
        if path.stem != "crashpoints":
            called += len(re.findall(r"\breached\(\s*\"[a-z_.]+\"\s*\)", path.read_text()))
            assert not re.findall(r"\breached\((?!\s*\")", path.read_text()), path
    found = points()
    assert found["seal.after"] == "distop.metastore.operations.ending"
    assert sorted(found) == POINTS.split()
    assert len(found) <= called
    assert all(re.search(r"\.(before|middle|after)$", name) for name in found)
