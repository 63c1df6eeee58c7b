"""First act: 365 daily batches land in no order, and are applied strictly in order, with processes killed."""

from __future__ import annotations

import time

from flights import FILE, OPTIONS, spoil
from lost_reply import LossyProxy

from distop.cli.demo.crew import until
from distop.cli.demo.days import LandingDays
from distop.cli.demo.stage import TABLE, Stage
from distop.client import Client
from distop.errors import Unavailable

TOGETHER = 10
"""Days that one operation may apply."""

KILL_COORDINATOR, KILL_RUNNER, BAD_DAY = "2013-03-01", "2013-06-01", "2013-09-11"


def feed(stage: Stage) -> None:
    """Everything lands, the gate opens, the table fills."""
    client, source = stage.client, stage.folder / "source"
    good = spoil(source / BAD_DAY / FILE)
    landing = LandingDays(stage.folder / "landing", source, OPTIONS)
    client.table(TABLE).set_ordering(gate="closed", together=TOGETHER)

    landing.drop(0.5)
    pid = stage.start_feed(landing.folder)
    until(lambda: _queued(client) >= 20 or None, "the first batches")
    stage.crew.kill(pid)
    days = landing.drop(1.0)
    stage.start_feed(landing.folder)
    stage.say(
        f"{days} days dropped into a landing folder, in no order; its feed killed -9, and started again"
    )
    stage.say(_publish_with_a_lost_reply(stage, landing))
    until(lambda: _queued(client) == days or None, f"{days} queued batches")
    stage.say(f"{_queued(client)} batches are queued; {client.table(TABLE).why().sentence}")

    began = time.monotonic()
    landing.history_done()
    stage.say("_HISTORYDONE opens the gate")
    stage.say(stage.strike(KILL_COORDINATOR, lambda operation: stage.kill_the_leader()))
    stage.say(stage.strike(KILL_RUNNER, stage.kill_the_runner))

    block = until(lambda: client.table(TABLE).ordering().blocked, "the bad batch", 120)
    if block.batch != BAD_DAY:
        raise SystemExit(f"{block.batch} blocks the table, not {BAD_DAY}: {block.error}")
    stage.say(f"[yellow]blocked[/]: {client.table(TABLE).why().sentence}")
    (landing.folder / BAD_DAY / FILE).write_bytes(good)
    client.table(TABLE).retry_batch(BAD_DAY, "the file was put right")
    stage.say("the file is put right, and the batch tried again: distop batch retry")
    until(lambda: _queued(client) == 0 or None, "an empty backlog", 120)
    done = [
        operation.facts
        for operation in client.operations(TABLE)
        if operation.type == "ingest" and operation.done
    ]
    # Those that failed have lines of their own; the others are counted in the last one's.
    counted = max((facts["series"]["operations"] for facts in done if "series" in facts), default=0)
    operations = counted + sum("series" not in facts for facts in done)
    took = time.monotonic() - began
    stage.say(f"{days} batches applied by {operations} operations, {days / took:.1f} batches/s")


def _queued(client: Client) -> int:
    return sum(1 for _ in client.table(TABLE).backlog())


def _publish_with_a_lost_reply(stage: Stage, landing: LandingDays) -> str:
    """Publish a day by hand, get no reply, and do it again."""
    day = "2013-12-31"
    argument = {"paths": [str(landing.folder / day)], **OPTIONS}
    with LossyProxy(stage.addresses[0]) as proxy, stage.connect(proxy.address, timeout_s=3) as client:
        client.table(TABLE).get()
        proxy.lose_replies()
        try:
            client.table(TABLE).enqueue(day, "ingest", argument)
        except (Unavailable, TimeoutError):
            pass
        except Exception as error:
            if getattr(error, "code", "") != "DEADLINE_EXCEEDED":
                raise
        else:
            raise SystemExit("the reply was not lost")
    again = stage.client.table(TABLE).enqueue(day, "ingest", argument)
    if again.became != "already queued":
        raise SystemExit(f"the repeated publish of {day}: {again.became}")
    return f"reply of publishing {day} lost; published again: {again.became}"
