"""How cost grows with executors, tables, watchers, watermarks and history: every part in turn, one JSON.

    make bench-scale
    make bench-scale ARGS="watermarks tables"

A part is a module beside this one with a function ``measure`` that prints its table and gives its figures.
Each has its baseline in the same run: the same thing small, or etcd alone.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from common import print_json

PARTS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "run")


def main() -> int:
    parser = argparse.ArgumentParser(description="how cost grows, part by part")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parts = parser.parse_args().parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: dict[str, float] = {}
    for part in parts:
        print(f"\n{part}", flush=True)
        figures |= importlib.import_module(part).measure()
    print_json(**figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
