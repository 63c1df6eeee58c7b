"""Publishing what a Spark job has written: Hadoop's FileOutputCommitter against distop's outputs.

    make bench-commit               100, 1,000 and 4,000 files
    make bench-commit ARGS="1000 --outputs iceberg --where s3"

The same frame, in F files, is written by Spark's own FileOutputCommitter (algorithms 1 and 2) and by an
operation on ``distop executor --master local[2]``; on local disk, and on an S3 API (moto's server on
loopback). Two durations are measured, in seconds:

*whole*: from the call to the end.
*publish*: what makes the files visible once they are written. With distop: from the moment when the last job
is marked in etcd until a watch shows the operation's history record. With Hadoop: the job commit, and with
algorithm 2, which publishes in its tasks, what the task commits add to the job. On S3 Hadoop is replayed, see
``hadoop_replay.py``: Spark's pip package has no S3 file system.

And the 10th against the 1,000th commit of one table, see ``commits.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import s3fs
from common import Processes, print_json, print_table, sized, until_collected, until_executors

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.etcd.watch import watch
from distop.metastore.records.names import prefix_end
from distop.process.loop import event_loop

SIZES = sized((100, 1_000, 4_000), (4,))
WARM_UP = sized(20, 2)
"""Files written before the clock runs."""
ROWS = 50
MASTER = sized("local[2]", "none")
"""Without Spark jobs run in threads."""
OUTPUTS = ("files", "iceberg")
PLACES = ("local", "s3")
HERE = Path(__file__).parent
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True)
class Taken:
    """Seconds of one write, as the module's docstring defines them."""

    whole: float
    publish: float


@dataclass(frozen=True)
class Options:
    """What is to be measured: each output and size on each storage."""

    sizes: Sequence[int]
    outputs: Sequence[str]
    places: Sequence[str]

    @classmethod
    def parsed(cls) -> Options:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("sizes", type=int, nargs="*", default=list(SIZES), help="numbers of files")
        parser.add_argument("--outputs", nargs="+", choices=OUTPUTS, default=list(OUTPUTS))
        parser.add_argument("--where", nargs="+", choices=PLACES, default=list(PLACES))
        given = parser.parse_args()
        return cls(sorted(given.sizes or SIZES), given.outputs, given.where)


Results = dict[tuple[str, str, int], Taken]
"""By storage, committer and number of files."""


def reported(where: str, committer: str, size: int, taken: Taken) -> Taken:
    """Print a result as soon as it is known, since all of them take minutes; the same result."""
    text = f"{where} {committer} {size}: whole {taken.whole:.2f} s, publish {taken.publish:.3f} s"
    print(text, file=sys.stderr, flush=True)
    return taken


def script(name: str, *arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    """Run a script of this folder; the JSON on the last line that it prints."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    taken: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout.splitlines()[-1])
    return taken


def committed(times: dict[str, float]) -> Taken:
    return Taken(times["whole_s"], times["job_commit_s"] + times["task_commit_s"])


def hadoop_local(folder: Path, sizes: Sequence[int]) -> Results:
    """Spark's own write on local disk."""
    folder.mkdir()
    taken = script("hadoop_commit.py", str(folder), str(ROWS), *map(str, sizes))
    return {
        ("local", f"v{version}", int(size)): committed(
            # The task commits of version 1 publish nothing.
            {**times, "task_commit_s": times["task_commit_s"] if version == "2" else 0.0}
        )
        for version, by_size in taken.items()
        for size, times in by_size.items()
    }


def hadoop_s3(endpoint: str, sizes: Sequence[int]) -> Results:
    """The algorithm of Spark's own write, replayed on the S3 API."""
    results: Results = {}
    for version in ("1", "2"):
        for size in sizes:
            where = (f"bench/hadoop-{version}-{size}", endpoint, version, str(size))
            times: dict[str, float] = script("hadoop_replay.py", *where)  # type: ignore[assignment]
            results["s3", f"v{version}", size] = reported("s3", f"v{version}", size, committed(times))
    return results


async def published(etcd: EtcdClient, table: str, files: int, ready: asyncio.Event) -> float:
    """Seconds from the last job's mark to the history record of an operation that is yet to be started."""
    keys = etcd.keyspace.table(table)
    marks, last_mark = 0, 0.0
    async with aclosing(watch(etcd, keys.prefix, prefix_end(keys.prefix), deletes=False)) as changes:
        await anext(changes)
        ready.set()
        async for batch in changes:
            now = time.perf_counter()
            for event in batch.events:
                if event.kv.key.startswith(keys.history_prefix):
                    if marks != files:
                        raise SystemExit(f"{marks} of {files} jobs were marked when it had ended")
                    return now - last_mark
                if event.kv.key.endswith(b".state") and event.kv.value.startswith(b"{"):
                    marks, last_mark = marks + 1, now
    raise SystemExit("the watch has ended")


class Tables:
    """Tables of a running coordinator and executor, one for each operation."""

    def __init__(self, client: AsyncClient, etcd: EtcdClient, location: str) -> None:
        self._client, self._etcd, self._location = client, etcd, location

    async def write(self, table: str, output: str, files: int) -> Taken:
        """Run one operation that writes so many files into a new table; how long it took."""
        location = f"{self._location}/{table}"
        await self._client.create_table(table, location, format=output)
        ready = asyncio.Event()
        publishing = asyncio.create_task(published(self._etcd, table, files, ready))
        await ready.wait()
        began = time.perf_counter()
        operation = await self._client.start(table, "write_frame", {"files": files, "rows": ROWS})
        ended = await operation.wait(timeout_s=900)
        whole = time.perf_counter() - began
        facts = ended.raise_for_outcome().facts
        if (facts["files"], facts["rows"]) != (files, files * ROWS):
            raise SystemExit(f"{operation.name} published {facts}")
        return Taken(whole, await publishing)


async def operations(
    options: Options,
    where: str,
    location: str,
    processes: Processes,
    config: EtcdConfig,
) -> Results:
    """Operations of each output and size, by a coordinator and an executor of their own."""
    address = f"127.0.0.1:{free_port()}"
    processes.start(f"coordinator-{where}", "coordinator", "--listen", address)
    processes.start(f"executor-{where}", "executor", "--master", MASTER)
    etcd = EtcdClient(config)
    results: Results = {}
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=60) as client:
        await until_executors(client, "write_frame", timeout_s=120)
        tables = Tables(client, etcd, location)
        for output in options.outputs:
            await tables.write(f"{where}-{output}-warm", output, WARM_UP)
            for size in options.sizes:
                taken = await tables.write(f"{where}-{output}-{size}", output, size)
                results[where, output, size] = reported(where, output, size, taken)
                await until_collected(etcd, 300)
    await etcd.close()
    return results


def on_local_disk(options: Options, folder: Path, processes: Processes, config: EtcdConfig) -> Results:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(operations(options, "local", f"file://{folder}/tables", processes, config))


def on_s3(options: Options, folder: Path, config: EtcdConfig) -> Results:
    """All measurements again, on an S3 server of this benchmark's own."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=endpoint)
    with Processes(folder, environment(config)) as processes:
        processes.start_script("s3", HERE / "s3_server.py", str(port))
        _make_bucket(endpoint)
        hadoop = hadoop_s3(endpoint, options.sizes)
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return hadoop | runner.run(operations(options, "s3", "s3://bench/tables", processes, config))


def _make_bucket(endpoint: str) -> None:
    for _ in range(300):
        try:
            s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True).mkdir("bench")
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the S3 server does not answer")


def environment(config: EtcdConfig) -> dict[str, str]:
    """Environment variables of coordinators and executors: etcd's address, and this benchmark's type."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {
        **config.to_env(),
        "DISTOP_OPERATIONS": "write_frame:WriteFrame",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def thousand_commits() -> dict[int, float]:
    """Seconds of the 10th and of the 1,000th commit of one table: those of ``commits.py``."""
    if importlib.util.find_spec("commits") is None:
        return {}
    from commits import thousand_commits as measured

    return dict(measured())


def lines(results: Results) -> Iterator[tuple[str, ...]]:
    """The rows of the table for people."""
    names = {
        "v1": "FileOutputCommitter 1",
        "v2": "FileOutputCommitter 2",
        "files": "distop, files",
        "iceberg": "distop, iceberg",
    }
    for (where, committer, size), taken in sorted(results.items(), key=lambda item: item[0]):
        name = names[committer] + (" (replayed)" if where == "s3" and committer in ("v1", "v2") else "")
        per_file = taken.publish / size * 1e3
        yield where, name, f"{size:,}", f"{taken.whole:.2f}", f"{taken.publish:.3f}", f"{per_file:.2f}"


def measured(options: Options) -> Results:
    """All measurements, one after the other, so that none slows another."""
    results: Results = {}
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as name,
        EtcdProcess(Path(name) / "etcd") as etcd,
    ):
        folder = Path(name)
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        if "local" in options.places:
            with Processes(folder, environment(config)) as processes:
                results |= on_local_disk(options, folder, processes, config)
        if "s3" in options.places:
            results |= on_s3(options, folder, config)
    if "local" in options.places:
        with tempfile.TemporaryDirectory(prefix="distop-bench-") as name:
            results |= hadoop_local(Path(name) / "hadoop", options.sizes)
    return results


def main() -> None:
    options = Options.parsed()
    began = time.perf_counter()
    results = measured(options)
    headings = ("where", "written by", "files", "whole s", "publish s", "publish ms/file")
    title = f"F files of {ROWS} rows, 2 slots; {time.perf_counter() - began:.0f} s"
    print_table(title, headings, lines(results))
    largest = options.sizes[-1]
    figures = {
        f"{output}_over_{version}_{where}_{largest}": round(
            results[where, output, largest].publish / results[where, version, largest].publish, 4
        )
        for output in reversed(options.outputs)
        for where in reversed(options.places)
        for version in ("v1", "v2")
    }
    if commits := thousand_commits():
        figures["commit_1000_over_10"] = round(commits[1000] / commits[10], 3)
    print_json(**figures)


if __name__ == "__main__":
    main()
