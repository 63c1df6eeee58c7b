"""How a type of operation is tested: without etcd, without Spark, in this process."""

import gzip

import pyarrow.dataset as ds
import pytest
from access_logs import access_logs

from distop import Cancelled, InvalidArgument, JobFailed, Trial

GET = '192.0.2.7 - - [10/Oct/2013:13:55:36 -0700] "GET /{} HTTP/1.1" 200 2326\n'


def trial(folder, **more):
    return Trial(access_logs(), {"folder": f"{folder}/logs"}, location=f"{folder}/table", **more)


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(GET.format("a") * 3)
    (tmp_path / "logs" / "b.log.gz").write_bytes(gzip.compress(GET.format("b").encode()))
    return tmp_path


def test_every_line_becomes_a_row(logs):
    operation = trial(logs)
    assert [result["rows"] for result in operation.run_all()] == [3, 1]
    rows = ds.dataset(f"{logs}/table/data").to_table().to_pylist()
    assert sorted(row["request"][5] for row in rows) == ["a", "a", "a", "b"]
    assert [step.step for step in operation.steps()] == ["iceberg.append"]


def test_what_was_read_is_not_read_again(logs):
    moves = trial(logs).plan.watermarks
    read = {source: {path: move.after for path, move in files.items()} for source, files in moves.items()}
    assert trial(logs, watermarks=read).names == []


def test_a_bad_line_fails_the_job_and_leaves_nothing(logs):
    (logs / "logs" / "a.log").write_text(GET.format("a") + "what?\n")
    with pytest.raises(JobFailed, match=r"a\.log: 'what\?"):
        trial(logs).run("0")
    assert not list((logs / "table").rglob("*.parquet"))


def test_it_stops_when_it_is_cancelled_and_says_what_it_lacks(logs):
    operation = trial(logs)
    with pytest.raises(Cancelled):
        operation.run(operation.job("0", cancel_after=0))
    with pytest.raises(InvalidArgument, match="missing required field `folder`"):
        Trial(access_logs())
