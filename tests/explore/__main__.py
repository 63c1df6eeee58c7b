"""``make explore``: everything the actors of one table can do, in every order. See docs/explore.md.

Runs the product's own transactions, and the code that builds and settles them, on a model of etcd in this one
process. Ends with a table and one JSON object; the exit code is 0 only if no law was broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from fnmatch import fnmatchcase

from explore.plants import PLANTS
from explore.scenarios import SCENARIOS, exploring
from explore.search import Report


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make explore ARGS=...", description=__doc__)
    parser.add_argument("--scenarios", default="*", metavar="GLOB", help="only these")
    parser.add_argument("--depth", type=int, default=10_000, help="visit states up to so many steps away")
    parser.add_argument("--states", type=int, default=2_000_000, help="visit at most so many of a scenario")
    parser.add_argument("--seconds", type=float, default=100.0, help="visit states of a scenario so long")
    parser.add_argument(
        "--walks", type=float, default=20.0, metavar="SECONDS", help="where not all was visited: walk so long"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the walks")
    parser.add_argument("--plant", metavar="WORDS", help="with this fault in the code: it is to be found")
    parser.add_argument("--list", action="store_true", help="show scenarios and faults, and do nothing")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:12} {scenario.what}")
        for words, planted in PLANTS.items():
            print(f"--plant {words!r} (in {planted.scenario})")
        return 0
    plant = None if chosen.plant is None else PLANTS[chosen.plant]
    names = [name for name in SCENARIOS if fnmatchcase(name, chosen.scenarios)]
    reports: dict[str, Report] = {}
    print(f"{'scenario':12} {'states':>9} {'steps':>9} {'depth':>6}  {'all':4} {'ends':>7} {'walks':>7}  s")
    for name in [plant.scenario] if plant is not None else names:
        with exploring(name, plant) as search:
            report = reports[name] = search.run(
                max_depth=chosen.depth, max_states=chosen.states, seconds=chosen.seconds
            )
            if not report.complete and not report.violations:
                search.walk(chosen.seed, seconds=chosen.walks, report=report)
            every = "yes" if report.complete else "no"
            counts = f"{report.states:9,} {report.steps:9,} {report.depth:6}  {every:4} {report.ends:7,}"
            print(f"{name:12} {counts} {report.walks:7,}  {report.seconds:.0f}", flush=True)
            for violation in report.violations:
                print(f"\n{name}: {violation.what}\n")
                for number, line in enumerate(search.explained(violation.schedule), 1):
                    print(f"{number:4} {line}")
                print()
    violations = sum(len(report.violations) for report in reports.values())
    figures = {
        "states": sum(report.states for report in reports.values()),
        "steps": sum(report.steps for report in reports.values()),
        "depth": min(report.depth for report in reports.values()),
        "scenarios": len(reports),
        "complete": sum(report.complete for report in reports.values()),
        "walks": sum(report.walks for report in reports.values()),
        "violations": violations,
    }
    print(json.dumps(figures))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
