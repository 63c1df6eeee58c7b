"""A user's Spark program that writes to tables: ``python -m chaos.spark_writer MASTER ADDRESSES``.

Reads what to write from its input, a JSON object a line, and answers each with one, behind ``answer``.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from chaos.service_main import end_with_parent
from distop.spark import write
from support.spark.spark_driver import session_of

COLUMNS = "id long, batch string, kind string"


def main(master: str, addresses: str) -> None:
    end_with_parent()
    session = session_of(master)
    for line in sys.stdin:
        print("answer", json.dumps(answered(session, addresses, json.loads(line))), flush=True)


def answered(session: SparkSession, addresses: str, asked: dict[str, Any]) -> dict[str, Any]:
    frame = session.read.csv(asked["folder"], header=True, schema=COLUMNS)
    if asked["bad"]:
        frame = frame.withColumn("batch", expr(f"if(id = {asked['bad']}, raise_error('bad'), batch)"))
    try:
        if asked["native"]:
            write(frame, asked["table"], coordinator=addresses, run=asked["request"])
        else:
            options = {"table": asked["table"], "coordinator": addresses, "run": asked["request"]}
            frame.write.format("distop").options(**options).mode("append").save()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
