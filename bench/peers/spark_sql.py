"""SQL in Spark with Iceberg's runtime: ``spark_sql.py URL RUNTIME``; the catalog at ``URL`` is ``distop``.

Statements come on standard input, a JSON text on each line; the rows of each go to standard output the same
way.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

from distop.spark import configure

MEMORY = "4g"


def main(url: str, runtime: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where Java and Ivy talk, too
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", MEMORY)
    builder = builder.config("spark.jars.packages", runtime).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = configure(builder, url).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        rows = spark.sql(json.loads(line)).collect()
        print(json.dumps([list(row) for row in rows], default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
