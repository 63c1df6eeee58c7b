"""The writers of a Spark program. Its DataFrames are Parquet files, as Spark itself reads them:
they hold any value exactly.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distop.spark import ingest_dataframe, write
from truth.inputs import Cases, by_source, parquet_file
from truth.installation import Installation, table_of
from truth.values import DATAFRAME, SOURCE, SPARK, STREAM, WRITE, Kind
from truth.writers import Refusals, Started, described


class SparkWriters:
    """The writers of one session. A bad row fails the whole write, so such values are sent alone."""

    names = SPARK

    def __init__(self, installation: Installation, session: SparkSession) -> None:
        self._installation, self._session = installation, session
        self._folders = count(1)
        self._writers: dict[str, Callable[[Path, str, str], Any]] = {
            DATAFRAME: self._dataframe,
            SOURCE: self._source,
            WRITE: self._write,
            STREAM: self._stream,
        }

    def send(self, kind: Kind, writer: str, cases: Cases) -> Iterator[Started]:
        """Written at once: there is one session."""
        good = {number: case for number, case in cases.items() if not kind.is_refused(case, writer)}
        whole = cases if writer in kind.refused else good
        parts = [some for _, some in by_source(whole)]
        parts += [{number: case} for number, case in cases.items() if number not in whole]
        for some in parts:
            yield Started(some, refusal=self._sent(kind, writer, some))

    def ended(self, started: Started) -> Refusals:
        return dict.fromkeys(started.cases, started.refusal) if started.refusal else {}

    def _sent(self, kind: Kind, writer: str, cases: Cases) -> str:
        """Why the rows were refused; empty: they are in the table."""
        (case, *_) = cases.values()
        folder = self._installation.folder / "frames" / str(next(self._folders))
        of_bytes = kind.spark == "binary"
        parquet_file(folder / "rows.parquet", case.source or (pa.binary() if of_bytes else kind.arrow), cases)
        try:
            self._writers[writer](folder, f"id long, v {case.spark or kind.spark}", table_of(kind))
        except Exception as error:
            return _shortened(described(error))
        return ""

    def _frame(self, folder: Path, columns: str) -> DataFrame:
        return self._session.read.schema(columns).parquet(str(folder))

    def _dataframe(self, folder: Path, columns: str, table: str) -> None:
        frame, service = self._frame(folder, columns), self._installation
        ingest_dataframe(self._session, frame, table=table, client=service.client, etcd=service.etcd)

    def _source(self, folder: Path, columns: str, table: str) -> None:
        frame = self._frame(folder, columns)
        frame.write.format("distop").options(**self._options(table)).mode("append").save()

    def _write(self, folder: Path, columns: str, table: str) -> None:
        write(self._frame(folder, columns), table, coordinator=self._installation.address)

    def _stream(self, folder: Path, columns: str, table: str) -> None:
        frame = self._session.readStream.schema(columns).parquet(str(folder))
        checkpoint = str(folder.parent / f"{folder.name}-checkpoint")
        query = (
            frame.writeStream.format("distop")
            .options(**self._options(table), checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _options(self, table: str) -> dict[str, str]:
        return {"table": table, "coordinator": self._installation.address}


def _shortened(text: str) -> str:
    """The message of distop in an error of Spark, if there is one; else the first line of the error."""
    lines = [line for line in text.splitlines() if line.startswith("distop.errors.")]
    return lines[-1] if lines else text.partition("\n")[0]
