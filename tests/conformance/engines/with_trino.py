"""Trino writes and reads back: ``with_trino.py URL FOLDER JAVA``, with its server in ``FOLDER``."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import documented

URL, FOLDER, JAVA = sys.argv[1:]
START_S = 300
MERGE = """
MERGE INTO lake.trino.t t USING (VALUES (2, 'm'), (9, 'n')) n (id, kind) ON t.id = n.id
WHEN MATCHED THEN UPDATE SET kind = n.kind WHEN NOT MATCHED THEN INSERT VALUES (n.id, n.kind)
"""
JVM = ("-Xmx1G", "-Djdk.attach.allowAttachSelf=true", "--add-modules=jdk.incubator.vector")


def settings(folder: Path, port: int) -> None:
    etc = folder / "etc"
    (etc / "catalog").mkdir(parents=True)
    node = {"node.environment": "conformance", "node.data-dir": f"{folder}/data"}
    node |= {"node.bind-ip": "127.0.0.1", "node.internal-address": "127.0.0.1"}
    config = {"coordinator": "true", "node-scheduler.include-coordinator": "true"}
    config |= {"http-server.http.port": str(port), "discovery.uri": f"http://127.0.0.1:{port}"}
    lake = {"connector.name": "iceberg", "iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": URL}
    # Hadoop's file systems: Trino's own one for local disks takes local:/ in place of file:/.
    lake["fs.hadoop.enabled"] = "true"
    for name, values in (("node", node), ("config", config), ("catalog/lake", lake)):
        lines = [f"{key}={value}\n" for key, value in values.items()]
        (etc / f"{name}.properties").write_text("".join(lines))
    (etc / "jvm.config").write_text("\n".join(JVM) + "\n")


class Trino:
    def __init__(self, address: str) -> None:
        self._address = address

    def sql(self, statement: str) -> list[list[Any]]:
        deadline = time.monotonic() + START_S
        while True:
            answer = self._call(f"{self._address}/v1/statement", statement.encode())
            rows = answer.get("data", [])
            while following := answer.get("nextUri"):
                answer = self._call(following)
                rows += answer.get("data", [])
            if "error" not in answer:
                return list(rows)
            # A server that has just started is not yet among the nodes that may update: nothing has begun.
            if answer["error"]["errorName"] != "NO_NODES_AVAILABLE" or time.monotonic() > deadline:
                raise RuntimeError(f"{statement}: {answer['error']['message']}")
            time.sleep(0.5)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if not self._call(f"{self._address}/v1/info")["starting"]:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise RuntimeError("the server does not start")

    def _call(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(url, body, {"X-Trino-User": "conformance"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            page: dict[str, Any] = json.load(reply)
        return page


def write_and_read(trino: Trino, warehouse: Path) -> None:
    for statement in documented.statements("trino", {}):
        trino.sql(statement)
    assert trino.sql("SELECT * FROM lake.ours.ids ORDER BY id") == [[1], [2], [3]]
    for statement in ("DROP VIEW lake.ours.ids", "DROP TABLE lake.ours.kinds", "DROP SCHEMA lake.ours"):
        trino.sql(statement)
    for statement in (
        "CREATE SCHEMA lake.trino",
        "CREATE TABLE lake.trino.t (id BIGINT, kind VARCHAR) WITH (partitioning = ARRAY['kind'])",
        "INSERT INTO lake.trino.t VALUES (1, 'a'), (2, 'b'), (3, 'b')",
        "UPDATE lake.trino.t SET kind = 'z' WHERE id = 3",
        "DELETE FROM lake.trino.t WHERE id = 1",
        MERGE,
        "ALTER TABLE lake.trino.t ADD COLUMN more INTEGER",
        "ALTER TABLE lake.trino.t EXECUTE optimize",
        "CREATE TABLE lake.trino.u AS SELECT id FROM lake.trino.t",
        "CREATE OR REPLACE TABLE lake.trino.u AS SELECT max(id) AS id FROM lake.trino.t",
        "ALTER TABLE lake.trino.u RENAME TO lake.trino.w",
        "CREATE VIEW lake.trino.v AS SELECT id FROM lake.trino.t",
    ):
        trino.sql(statement)
    rows = trino.sql("SELECT id, kind FROM lake.trino.t ORDER BY id")
    assert rows == [[2, "m"], [3, "z"], [9, "n"]], rows
    assert trino.sql("SELECT sum(id) FROM lake.trino.v") == [[14]]
    assert trino.sql("SELECT * FROM lake.trino.w") == [[9]]
    [_, [filled], *_] = trino.sql('SELECT snapshot_id FROM lake.trino."t$snapshots" ORDER BY committed_at')
    assert len(trino.sql(f"SELECT * FROM lake.trino.t FOR VERSION AS OF {filled}")) == 3
    for statement in ("DROP VIEW lake.trino.v", "DROP TABLE lake.trino.w", "DROP TABLE lake.trino.t"):
        trino.sql(statement)
    assert trino.sql("SHOW TABLES FROM lake.trino") == []
    for statement in (
        "DROP SCHEMA lake.trino",
        f"CREATE SCHEMA lake.trino WITH (location = 'file://{warehouse}/trino')",
        "CREATE TABLE lake.trino.t AS SELECT 1 AS id",
    ):
        trino.sql(statement)
    [[path]] = trino.sql('SELECT "$path" FROM lake.trino.t')
    assert f"{warehouse}/trino/t-" in path, path
    for statement in ("DROP TABLE lake.trino.t", "DROP SCHEMA lake.trino"):
        trino.sql(statement)


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="conformance-trino-") as made:
        folder = Path(made)
        settings(folder, port)
        launcher = [f"{FOLDER}/bin/launcher", "run", f"--etc-dir={folder}/etc"]
        environment = {**os.environ, "JAVA_HOME": JAVA, "PATH": f"{JAVA}/bin:{os.environ['PATH']}"}
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(launcher, env=environment, stdout=out, stderr=out)
        try:
            trino = Trino(f"http://127.0.0.1:{port}")
            trino.wait(process)
            write_and_read(trino, folder / "warehouse")
        except Exception:
            print(log.read_text()[-3000:])
            raise
        finally:
            process.terminate()  # the launcher has become Java
            process.wait(60)


if __name__ == "__main__":
    main()
