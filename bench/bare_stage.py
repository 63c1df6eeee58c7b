"""One Spark stage of N trivial Python tasks: ``bare_stage.py MASTER tuned|default ROUNDS N...``.

Prints one JSON object: N -> seconds, the median of the rounds.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator

from common import sized
from pyspark.sql import SparkSession

from distop.executor.launch import SETTINGS
from distop.executor.launch.settings import with_retries

_settled: set[int] = set()


def trivial(numbers: Iterable[int]) -> Iterator[int]:
    """A task: it counts its numbers."""
    yield sum(1 for _ in numbers)


def trivial_tuned(numbers: Iterable[int]) -> Iterator[int]:
    """A task as distop's runner prepares it: garbage collection is frozen once per worker."""
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()
    yield from trivial(numbers)


def main(master: str, mode: str, rounds: str, *sizes: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    tuned = mode == "tuned"
    builder = SparkSession.builder.master(with_retries(master))
    for name, value in (SETTINGS if tuned else {"spark.ui.enabled": "false"}).items():
        builder = builder.config(name, value)
    context = builder.getOrCreate().sparkContext
    task = trivial_tuned if tuned else trivial

    def stage(size: int) -> float:
        began = time.perf_counter()
        if sum(context.parallelize(range(size), size).mapPartitions(task).collect()) != size:
            raise SystemExit("the stage lost tasks")
        return time.perf_counter() - began

    stage(sized(100, 2))
    taken = {size: statistics.median([stage(int(size)) for _ in range(int(rounds))]) for size in sizes}
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
