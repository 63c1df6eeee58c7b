"""``make simulate``: whole coordinators and executors on a virtual clock, with faults. See docs/simulate.md.

Each seed decides what is done, and which faults happen when. Ends with one JSON object; the exit code is 0
only if no law was broken. A seed with ``--seed`` happens again exactly, and is printed line by line.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from simulate.world import Report, simulate

KNOWN = Path(__file__).with_name("seeds.txt")
"""Seeds that broke a law once, each with what it was."""

MOST_SHOWN = 5
"""Violations of one seed that are shown."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="try seeds for so long (of machine time)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="begin with this seed")
    parser.add_argument("--seed", type=int, nargs="+", help="only these; of a single one, tell what happens")
    parser.add_argument("--known", action="store_true", help=f"only the seeds of {KNOWN.name}")
    return parser.parse_args(given)


def known() -> list[int]:
    """The seeds of the file: the first word of each line that is no comment."""
    lines = KNOWN.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def seeds(chosen: argparse.Namespace) -> Iterator[int]:
    """Which seeds to try."""
    if chosen.seed is not None:
        yield from chosen.seed
    elif chosen.known:
        yield from known()
    else:
        end = time.perf_counter() + 60.0 * chosen.minutes
        for seed in count(chosen.first):
            if time.perf_counter() >= end:
                return
            yield seed


def summary(reports: list[Report]) -> str:
    """The JSON object that the last line of the output is."""
    broken = [report for report in reports if report.violations]
    return json.dumps(
        {
            "seeds": len(reports),
            "virtual_hours": round(sum(report.virtual_s for report in reports) / 3600, 2),
            "steps": sum(report.steps for report in reports),
            "violations": len(broken),
            "broken": {str(report.seed): report.violations[0].partition(":")[0] for report in broken},
            "traces": {str(report.seed): report.trace_hash[:16] for report in reports[-20:]},
        }
    )


def main(given: list[str] | None = None) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of names is part of what happens.
        command = [sys.executable, "-m", "simulate", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None  # what was killed is collected in the middle of what it did
    chosen = arguments(given)
    reports: list[Report] = []
    for seed in seeds(chosen):
        report = simulate(seed, trace=chosen.seed == [seed])
        for line in report.trace:
            print(line)
        for violation in report.violations[:MOST_SHOWN]:
            print(f"seed {seed}: {violation}", flush=True)
        reports.append(report)
        report.trace.clear()
    print(summary(reports))
    return 1 if any(report.violations for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
