"""``make truth``: each value through each way into a table, read back by each reader; and predicates.

Prints a line for each cell that is not as expected, and one JSON object at the end. The exit code is 0 only
if the wrong cells are exactly those of tests/truth/known.txt, and no two answers to a predicate differ. See
docs/truth.md.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.sources.kafka import Brokers, running_brokers
from support.spark import jvm
from truth import inferred, page
from truth.installation import Installation, installed
from truth.matrix import Results, fill, read
from truth.readers import PLAIN, READERS, WITHOUT_SPARK
from truth.values import FILES, KINDS, WRITERS, ZONE, Kind
from truth.verdicts import Cell, cells, faults, unexpected
from truth.writers import FileWriters

EXAMPLES = 20_000


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make truth ARGS=...", description=__doc__)
    parser.add_argument("--without-spark", action="store_true", help="only what needs no Spark")
    parser.add_argument("--types", nargs="+", metavar="TYPE", help="only these")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="predicates to try")
    parser.add_argument("--seed", type=int, default=1, help="of the predicates")
    parser.add_argument("--page", action="store_true", help="write docs/truth.md, and do nothing else")
    return parser.parse_args(given)


@dataclass(frozen=True)
class Measured:
    """What a run has measured."""

    cells: list[Cell]
    wrong: dict[Cell, str]

    def unexpected(self) -> list[str]:
        return unexpected(self.wrong, self.cells)


def measure(
    installation: Installation, brokers: Brokers, kinds: Sequence[Kind], *, with_spark: bool, guesses: bool
) -> Measured:
    """Fill the tables of some types, with ``guesses`` those of inferred types, too; read and compare them."""
    writers, names = (WRITERS, READERS) if with_spark else (FILES, PLAIN)
    results, readers = Results(), dict(WITHOUT_SPARK)
    with ExitStack() as stack:
        for kind in kinds:
            installation.create(kind)
        fill(FileWriters(installation, brokers), kinds, results)
        if with_spark:
            from support.spark.spark_driver import session_of
            from truth.spark_readers import readers_of
            from truth.spark_writers import SparkWriters

            session = session_of("local[2]", **{"spark.sql.session.timeZone": ZONE})
            session.sparkContext.setLogLevel("OFF")  # many writes are to fail
            stack.callback(session.stop)
            fill(SparkWriters(installation, session), kinds, results)
            readers |= readers_of(installation, session)
        read(installation, readers, kinds, results)
        guessed = inferred.faults(installation, readers) if guesses else {}
    measured = list(cells(writers, names, kinds))
    of_guesses = inferred.cells(names) if guesses else []
    return Measured([*measured, *of_guesses], {**faults(results, measured), **guessed})


def predicates(examples: int, seed: int) -> dict[str, Any]:
    """How many were tried, and to how many there are two answers."""
    if importlib.util.find_spec("truth.predicates") is None:
        return {"predicates": 0, "differences": 0}
    figures: dict[str, Any] = importlib.import_module("truth.predicates").predicates(examples, seed)
    return figures


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.page:
        page.PAGE.write_text(page.page())
        return 0
    os.environ.update(ALL)
    jvm.hurry()
    kinds = [kind for kind in KINDS if chosen.types is None or kind.name in chosen.types]
    with tempfile.TemporaryDirectory(prefix="truth-") as name, running_brokers() as brokers:
        folder = Path(name)
        with EtcdProcess(folder / "etcd", options=["--unsafe-no-fsync"]) as etcd:
            config = EtcdConfig(endpoints=(etcd.endpoint,), prefix="truth")
            with installed(config, folder) as installation:
                with_spark = not chosen.without_spark
                measured = measure(installation, brokers, kinds, with_spark=with_spark, guesses=True)
    lines = measured.unexpected()
    for line in lines:
        print(line)
    tried = predicates(chosen.examples, chosen.seed)
    print(json.dumps({"cells": len(measured.cells), "wrong": len(measured.wrong), **tried}))
    return 1 if lines or tried["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
