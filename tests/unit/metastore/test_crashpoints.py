"""Crash points: what they do when armed, and that they are nothing when not."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distop.errors import InvalidArgument
from distop.metastore.crashpoints import Armed, parse, reached
from support.processes import captured
from support.repository import points, product_sources

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
BEFORE_AND_AFTER = """
abort act batch.back batch.free batch.note batch.part batch.rest batch.start cancel catalog.drop
catalog.rename catalog.swap checkpoint claim collect compute count.seal drain drop drop.finish
enqueue expire finish give_up grant hook job job.clean job.file landing.approve landing.gate
landing.publish launch lead
lease.grant lease.revoke log.chunk log.header mark mark_each namespace note ordering orphans pause prune
publish release resign resolve resume run.begin schedule.rest schedule.set schedule.skip schedule.start
scratch seal snapshot start step step.delete step.delta step.hook step.mkdir step.rename step.success
step.unmark sweep table.alter table.create take try unclaim undo wait watermarks watermarks.fold
"""
IN_THE_MIDDLE = """
collect drop expire job.file landing.approve launch orphans publish purge sidecar snapshot step step.rename
sweep
"""
AFTER_ONLY = "coordinator.register runner.register sidecar.register"


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
    steps = {"before": BEFORE_AND_AFTER, "middle": IN_THE_MIDDLE, "after": f"{BEFORE_AND_AFTER} {AFTER_ONLY}"}
    assert found.keys() == {f"{step}.{where}" for where, named in steps.items() for step in named.split()}
    assert len(found) <= called
    assert all(re.search(r"\.(before|middle|after)$", name) for name in found)
