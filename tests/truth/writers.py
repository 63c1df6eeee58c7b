"""The writers that need no Spark. Each writes all values of a type in one operation."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distop.client import Operation
from distop.errors import DistopError
from support.sources.kafka import Brokers
from truth.inputs import Cases, avro_file, by_source, csv_text, json_lines, parquet_file
from truth.installation import PATIENCE_S, Installation, table_of
from truth.values import AVRO, CSV, FILES, JSON, KAFKA, PARQUET, Kind

Refusals = dict[int, str]
"""Why rows are not in the table, by the ids of the rows."""


@dataclass(frozen=True)
class Started:
    """The values of one operation, with its name, or with the refusal of its start."""

    cases: Cases
    operation: str = ""
    refusal: str = ""


Writer = Callable[[Kind, Cases], Iterator[Started]]


class FileWriters:
    """Files, and a topic. Bad rows go to the quarantine; the refusal of a row is its entry there."""

    names = FILES

    def __init__(self, installation: Installation, brokers: Brokers) -> None:
        self._installation, self._brokers = installation, brokers
        self._writers: dict[str, Writer] = {
            CSV: self._csv,
            JSON: self._json,
            KAFKA: self._kafka,
            PARQUET: self._parquet,
            AVRO: self._avro,
        }

    def send(self, kind: Kind, writer: str, cases: Cases) -> Iterator[Started]:
        """Start an operation, or one for each type that a file has."""
        return self._writers[writer](kind, cases)

    def _csv(self, kind: Kind, cases: Cases) -> Iterator[Started]:
        path = self._file(kind, cases, "csv")
        path.write_bytes(csv_text(kind, cases))
        yield self._start(kind, cases, {"paths": str(path), "multiline": True})

    def _json(self, kind: Kind, cases: Cases) -> Iterator[Started]:
        path = self._file(kind, cases, "jsonl")
        path.write_bytes(b"\n".join(json_lines(kind, cases)))
        yield self._start(kind, cases, {"paths": str(path)})

    def _kafka(self, kind: Kind, cases: Cases) -> Iterator[Started]:
        topic = self._brokers.topic(1)
        topic.produce(json_lines(kind, cases))
        yield self._start(kind, cases, {"kafka": topic.argument()})

    def _parquet(self, kind: Kind, cases: Cases) -> Iterator[Started]:
        for source, some in by_source(cases):
            path = self._file(kind, some, "parquet")
            parquet_file(path, source or kind.arrow, some)
            yield self._start(kind, some, {"paths": str(path)})

    def _avro(self, kind: Kind, cases: Cases) -> Iterator[Started]:
        for source, some in by_source(cases):
            path = self._file(kind, some, "avro")
            path.write_bytes(avro_file(source or kind.arrow, some))
            yield self._start(kind, some, {"paths": str(path)})

    def _file(self, kind: Kind, cases: Cases, suffix: str) -> Path:
        folder = self._installation.folder / "sources" / table_of(kind)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{min(cases)}-{len(cases)}.{suffix}"

    def _start(self, kind: Kind, cases: Cases, argument: dict[str, Any]) -> Started:
        given, name = (
            {**argument, "on_bad_rows": "quarantine", "max_bad_share": 1},
            f"o{min(cases)}-{len(cases)}",
        )
        if not kind.nested:
            # Otherwise all is refused if the sample has a value that the column cannot hold.
            given["schema"] = {"id": "long", "v": kind.name}
        try:
            started = self._installation.client.start(table_of(kind), "ingest", given, object=name)
        except DistopError as error:
            return Started(cases, refusal=described(error))
        return Started(cases, started.name)

    def ended(self, started: Started) -> Refusals:
        """Wait for its end; the rows that it has refused."""
        if not started.operation:
            return dict.fromkeys(started.cases, started.refusal)
        ended = self._installation.client.operation(started.operation).wait(timeout_s=PATIENCE_S)
        if ended.error is not None:
            return dict.fromkeys(started.cases, f"{ended.error.code}: {ended.error.message}")
        return dict(self._quarantined(ended))

    def _quarantined(self, ended: Operation) -> Iterator[tuple[int, str]]:
        if "quarantine" not in ended.facts:
            return
        folder = self._installation.folder / "tables" / ended.table / str(ended.facts["quarantine"])
        for path in folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                match = re.search(r"\d+", entry["raw"])
                assert match, entry
                yield int(match[0]), f"BAD_ROW: {entry['reason']}; raw: {entry['raw']}"


def described(error: BaseException) -> str:
    """An error with its code, as a program sees it."""
    return f"{getattr(error, 'code', type(error).__name__)}: {getattr(error, 'message', error)}"
