"""``make chaos``: kill everything, everywhere, and look whether anything was lost. See docs/chaos.md.

Runs etcd, two coordinators and two runners with Spark as processes, strikes them at every crash point in the
source and with faults from outside, and checks the invariants of the design after each. The order follows
from the seed. Ends with a table and one JSON object; the exit code is 0 only if everything was struck and
nothing was lost, doubled, left over, stuck or wrong.
"""

import argparse
import asyncio
import logging
import random
import shutil
import signal
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from chaos.faults import FAULTS, strikes
from chaos.report import Report
from chaos.run import Run, Settings
from distop.metastore.etcd.embedded import find_etcd
from support.repository import points


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2400.0, help="begin nothing new after so long")
    parser.add_argument(
        "--points",
        default="*",
        metavar="GLOB,...",
        help="only these crash points; also 'finish.*=die', with what is done there: die, lost or sleep",
    )
    parser.add_argument("--faults", default="*", metavar="GLOB", help="only these faults from outside")
    parser.add_argument("--master", default="local[1]", help="Spark master; none: threads")
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to work; kept. Default: a temporary one")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, between marks")
    parser.add_argument("--list", action="store_true", help="show the points and faults, and do nothing")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    logging.basicConfig(level=logging.ERROR)
    known = points()
    if chosen.list:
        for name, module in known.items():
            print(f"{name:28} {module}")
        for name, fault in FAULTS.items():
            print(f"{name:28} {(fault.__doc__ or '').strip()}")
        return 0
    etcd = find_etcd()
    if etcd.lossy:
        print(f"etcd {etcd.version} ({etcd.path}) can lose data when killed: a run with it shows nothing.")
        print("Put another one on PATH, or set DISTOP_ETCD_BINARY (docs/operating.md, etcd).")
        return 2
    rng = random.Random(chosen.seed)
    folder = Path(chosen.folder or tempfile.mkdtemp(prefix="distop-chaos-")).absolute()
    settings = Settings(
        seed=chosen.seed,
        seconds=chosen.seconds,
        points=known,
        strikes=strikes(list(known), chosen.points.split(","), rng),
        faults=[name for name in FAULTS if fnmatchcase(name, chosen.faults)],
        master=chosen.master,
        runners=chosen.runners,
        folder=folder,
    )
    report = asyncio.run(ended(Run(settings, rng)))
    print(f"\n{report.text()}\n")
    for problem in report.problems():
        print(problem)
    if chosen.markdown:
        report.write_markdown(chosen.markdown)
    if report.good and not chosen.folder:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder / 'logs'}")
    print(report.json())
    return 0 if report.good else 1


async def ended(run: Run) -> Report:
    """The run. It ends all its processes when it is interrupted."""
    task = asyncio.create_task(run.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        run.report.untried += 1
        return run.report


if __name__ == "__main__":
    sys.exit(main())
