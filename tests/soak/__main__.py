"""``make soak``: the same load for an hour, and whether anything grows under it.

    make soak
    make soak ARGS="--minutes 3"

Runs etcd, coordinators and executors without Spark as processes. Callers start operations at an even rate and
wait for their ends; some tables are fed from their backlogs. Memory, threads, descriptors, keys, and what an
operation costs etcd and the services of processor time are sampled; after a warm-up they must stay where they
are. Ends with a table and one JSON object with the slopes; the exit code is 0 only if nothing grows and
nothing has failed. See docs/scaling.md.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from distop.metastore.etcd.embedded import FREQUENT_COMPACTION, find_etcd
from soak.run import Settings, Soak
from soak.samples import Trend, growing, trends

MOST_WARM_UP_S = 1_200.0
"""Longer than requests without an id of their caller's are remembered, and twice as long as etcd keeps
history."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, metavar="SECONDS", help="default: a third, at most 20 min")
    parser.add_argument("--rate", type=float, default=10.0, help="operations per second, over all tables")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=4, help="of each operation")
    parser.add_argument("--coordinators", type=int, default=1)
    parser.add_argument("--executors", type=int, default=1)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument(
        "--etcd-option", action="append", metavar="FLAG", help=f"default: {' '.join(FREQUENT_COMPACTION)}"
    )
    parser.add_argument("--series", type=Path, metavar="FILE", help="write all samples there, as JSON")
    return parser.parse_args(given)


async def soaked(settings: Settings) -> Soak:
    async with Soak(settings) as soak:
        await soak.run()
    return soak


def text(measured: dict[str, Trend], grown: list[str]) -> str:
    """A table for people."""
    lines = [f"{'':36}{'middle':>12}{'per hour':>14}"]
    for name, line in measured.items():
        mark = "  GROWS" if name in grown else ""
        lines.append(f"{name:36}{line.middle:>12.2f}{line.per_hour:>+14.2f}{mark}")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    folder = Path(tempfile.mkdtemp(prefix="distop-soak-"))
    warm_up_s = min(chosen.minutes * 20, MOST_WARM_UP_S) if chosen.warm_up is None else chosen.warm_up
    settings = Settings(
        minutes=chosen.minutes,
        warm_up_s=warm_up_s,
        rate=chosen.rate,
        tables=chosen.tables,
        jobs=chosen.jobs,
        coordinators=chosen.coordinators,
        executors=chosen.executors,
        samples=chosen.samples,
        options=FREQUENT_COMPACTION if chosen.etcd_option is None else tuple(chosen.etcd_option),
        folder=folder,
    )
    soak = asyncio.run(soaked(settings))
    if chosen.series:
        chosen.series.write_text(json.dumps(soak.samples))
    measured = trends(soak.samples, warm_up_s)
    grown = growing(measured)
    print(text(measured, grown))
    for failure in soak.failures[:10]:
        print(failure)
    good = not grown and not soak.failures and soak.operations > 0
    if good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder}")
    figures = {name: round(line.middle, 3) for name, line in measured.items()}
    slopes = {f"{name}_per_hour": round(line.per_hour, 3) for name, line in measured.items()}
    counts = {"operations": soak.operations, "failed": len(soak.failures), "grows": grown}
    print(json.dumps({"etcd": find_etcd().version, "minutes": chosen.minutes, **counts, **figures, **slopes}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
