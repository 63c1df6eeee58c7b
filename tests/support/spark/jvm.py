"""JVMs that start fast. Tests start dozens, each for seconds, most of which would go into loading
classes and into compiling code that hardly runs.

So only the quick one of Java's two compilers is used, and Spark's classes are mapped from an archive that the
first run of the tests leaves in the environment. Without it, or where it does not fit, all works as well.
Their Python workers take Spark's Python code from where it is compiled (see link_spark in deploy/setup.sh).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.repository import TESTS

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
PATIENCE_S = 300


def archive() -> Path | None:
    """Where the archive for this Java and this Spark is, or will be; ``None`` without Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    release = Path(java).resolve().parents[1] / "release"
    made_of = [
        release.read_bytes() if release.exists() else b"",
        version("pyspark").encode(),
        QUICK.encode(),
        os.environ.get("SPARK_HOME", "").encode(),
    ]
    return Path(sys.prefix) / f"spark-{hashlib.sha256(b'/'.join(made_of)).hexdigest()[:12]}.jsa"


def hurry() -> None:
    """From here on, all JVMs that this process and its children start."""
    compiled = Path(sys.prefix) / "spark"
    if compiled.exists():
        os.environ["SPARK_HOME"] = str(compiled)
    options = f"{QUICK} -XX:SharedArchiveFile={archive()}"  # whose name depends on SPARK_HOME
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = options
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf 'spark.executor.extraJavaOptions={options}' pyspark-shell"


def making() -> subprocess.Popen[bytes] | None:
    """A process that makes the archive, if there is none."""
    target = archive()
    if target is None or target.exists():
        return None
    command = [sys.executable, "-m", "support.spark.jvm", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)


def make(target: Path) -> None:
    """Have a JVM run a little of everything, and keep the classes that this took."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        new = Path(folder) / "new.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={new}"
        from support.spark.spark_driver import numbers, session_of

        session = session_of("local[2]")
        gateway: Any = session.sparkContext._gateway
        numbers(session, 100).write.partitionBy("kind").parquet(f"{folder}/parquet")
        session.read.parquet(f"{folder}/parquet").groupBy("kind").count().collect()
        session.sparkContext.parallelize(range(10), 2).map(str).collect()
        session.range(10).mapInArrow(lambda batches: batches, "id long").collect()
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE_S)
        new.rename(target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
