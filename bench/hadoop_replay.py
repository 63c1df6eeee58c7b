"""What the FileOutputCommitter does on an object store: ``hadoop_replay.py URL ENDPOINT VERSION F``.

Spark's pip package has no S3 file system, so the algorithm is replayed. The requests are those that it
cannot do without, where a rename is a copy and a delete, over the client that our steps use:

version 1: tasks write F objects; the driver's job commit copies and deletes one after the other.
version 2: each task copies and deletes its own object once it has written it; all slots at once.

Then both remove ``_temporary`` and write ``_SUCCESS``. Left out, in their favour: the checks around each
rename, and the first rename of version 1, from the attempt's folder to the task's.

Prints one JSON object {"whole_s", "job_commit_s", "task_commit_s"}; the last is that of the busiest slot.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from io import BytesIO

import frame
import pyarrow as pa
import pyarrow.parquet as pq
import s3fs
from common import sized

SLOTS = sized(2, 1)
ROWS = 50


def filesystem(endpoint: str) -> s3fs.S3FileSystem:
    """The client; credentials come from the environment."""
    return s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True)


def rename(client: s3fs.S3FileSystem, source: str, target: str) -> None:
    """Rename an object: two requests."""
    (bucket, key), (to, new) = source.split("/", 1), target.split("/", 1)
    client.call_s3("copy_object", Bucket=to, Key=new, CopySource={"Bucket": bucket, "Key": key})
    client.rm_file(source)


def task_path(table: str, number: int) -> str:
    return f"{table}/_temporary/0/task_{number:06}/part-{number:05}.parquet"


def final_path(table: str, number: int) -> str:
    return f"{table}/part-{number:05}.parquet"


def tasks(endpoint: str, table: str, version: int, numbers: range) -> float:
    """The tasks of one slot; seconds of their commits."""
    client = filesystem(endpoint)
    committing = 0.0
    for number in numbers:
        content = BytesIO()
        pq.write_table(pa.Table.from_batches([frame.rows(number * ROWS, ROWS)]), content)
        client.pipe_file(task_path(table, number), content.getvalue())
        if version == 2:
            began = time.perf_counter()
            rename(client, task_path(table, number), final_path(table, number))
            committing += time.perf_counter() - began
    return committing


def job_commit(client: s3fs.S3FileSystem, table: str, version: int) -> None:
    """What the driver does at the end."""
    if version == 1:
        for path in client.find(f"{table}/_temporary/0"):
            rename(client, path, f"{table}/{path.rpartition('/')[2]}")
    if left := client.find(f"{table}/_temporary"):
        client.rm(left)
    client.pipe_file(f"{table}/_SUCCESS", b"")


def main(table: str, endpoint: str, version: str, files: str) -> None:
    client = filesystem(endpoint)
    with multiprocessing.get_context("spawn").Pool(SLOTS) as pool:
        pool.starmap(tasks, [(endpoint, f"{table}-warm", 1, range(n, n + 1)) for n in range(SLOTS)])
        began = time.perf_counter()
        shares = [(endpoint, table, int(version), range(n, int(files), SLOTS)) for n in range(SLOTS)]
        task_commit = max(pool.starmap(tasks, shares))
    sealed = time.perf_counter()
    job_commit(client, table, int(version))
    ended = time.perf_counter()
    if len(client.find(table)) != int(files) + 1:
        raise SystemExit(f"{table} holds {len(client.find(table))} objects instead of {files} and _SUCCESS")
    taken = {"whole_s": ended - began, "job_commit_s": ended - sealed, "task_commit_s": task_commit}
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
