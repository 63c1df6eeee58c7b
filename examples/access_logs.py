"""``access_logs``: the access logs of web servers into a table, a job a file, each file once."""

import re

import fsspec
import pyarrow as pa

from distop.errors import InvalidArgument, JobFailed
from distop.lake.rows import rows_plan, rows_steps, rows_writer
from distop.operations import DistributedOperation, Effect, Plan, WatermarkMove

LINE = re.compile(
    r'(?P<host>\S+) \S+ \S+ \[(?P<at>[^]]+)\] "(?P<request>[^"]*)" (?P<status>\d+) (?P<bytes>\S+).*'
)
COLUMNS = pa.schema([(name, pa.string()) for name in LINE.groupindex])


class AccessLogs(DistributedOperation):
    type = "access_logs"
    effect = Effect.APPENDS  # so it may run beside an ingest
    stages_files = True  # what attempts leave behind is swept after the end

    def plan(self, request):
        if not isinstance(folder := request.argument.get("folder"), str):
            raise InvalidArgument("say where the logs are", details={"field": "folder"})
        read = request.watermarks.get(folder, {})
        new = [f.full_name for f in fsspec.open_files(f"{folder}/*.log*") if f.full_name not in read]
        moves = {folder: {path: WatermarkMove(after="read") for path in new}}
        argument = {"paths": new, **rows_plan(request, COLUMNS)}
        return Plan(argument=argument, partition_count=len(new), watermarks=moves)

    def run_job(self, job):
        path = job.operation.argument["paths"][int(job.partition)]
        with fsspec.open(path, "rt", compression="infer") as file, rows_writer(job) as writer:
            while lines := file.readlines(1 << 20):
                job.raise_if_cancelled()
                rows = []
                for line in lines:
                    if (match := LINE.fullmatch(line.rstrip("\n"))) is None:
                        raise JobFailed(f"no line of an access log in {path}: {line!r}")
                    rows.append(match.groupdict())
                writer.write(pa.RecordBatch.from_pylist(rows, COLUMNS))
            return writer.finish()

    def commit_steps(self, operation):
        return rows_steps(operation)
