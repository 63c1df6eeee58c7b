"""``access_logs``: the access logs of web servers into a table, a job a file, each file once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import fsspec
import pyarrow as pa

from distop import Effect, JobContext, JobFailed, Plan, PlanRequest, WatermarkMove, operation

LINE = re.compile(
    r'(?P<host>\S+) \S+ \S+ \[(?P<at>[^]]+)\] "(?P<request>[^"]*)" (?P<status>\d+) (?P<bytes>\S+).*'
)
COLUMNS = pa.schema([(name, pa.string()) for name in LINE.groupindex])


@dataclass
class Logs:
    folder: str


def new_files(request: PlanRequest[Logs]) -> Plan:
    folder = request.argument.folder
    read = request.watermarks.get(folder, {})
    new = [f.full_name for f in fsspec.open_files(f"{folder}/*.log*") if f.full_name not in read]
    return Plan.rows(new, COLUMNS, watermarks={folder: {path: WatermarkMove(after="read") for path in new}})


@operation(new_files, argument=Logs, effect=Effect.APPENDS)  # so it may run beside an ingest
def access_logs(job: JobContext[Logs]) -> Iterator[pa.RecordBatch]:
    with fsspec.open(job.input, "rt", compression="infer") as file:
        while lines := file.readlines(1 << 20):
            rows = []
            for line in lines:
                if (match := LINE.fullmatch(line.rstrip("\n"))) is None:
                    raise JobFailed(f"no line of an access log in {job.input}: {line!r}")
                rows.append(match.groupdict())
            yield pa.RecordBatch.from_pylist(rows, COLUMNS)
