"""docs/truth.md: the values that the program sends, with what is expected of them. Needs no run."""

from collections import defaultdict
from collections.abc import Iterator

from support.repository import ROOT
from truth.inferred import GUESSES, NAME
from truth.readers import READERS
from truth.values import KINDS, WRITERS, Case, Kind
from truth.verdicts import Cell, known

PAGE = ROOT / "docs" / "truth.md"
MOST_SHOWN = 40
"""Characters of a value's name."""

HEAD = """\
# Truth: the same value everywhere

<!-- Made by `make truth ARGS=--page` from tests/truth: change it there. -->

    make truth                         # all cells, and predicates: some minutes
    make truth ARGS=--without-spark    # the ways in and the readers that need no Spark, as in `make test`
    make truth ARGS="--types date"     # the cells of one type
    make truth ARGS=--page             # writes this page

What goes into a table comes out of it, or its row is refused by name. `make truth` shows that: it sends each
value below into a table in each way that can carry it, and reads the table with each reader. Each of these
is a cell.

- The *ways in* are an ingest of CSV, of JSON lines, of a Kafka topic (of JSON), of Parquet and of Avro;
  `ingest_dataframe` (*DataFrame*); `format("distop")` for a DataFrame (*data source*) and for a *stream*; and
  `distop.spark.write` (*write()*).
- The *readers* are pyiceberg; pyarrow, DuckDB and Spark, which read the Parquet files that pyiceberg plans;
  distop's *jobs*, as they merge, delete and compact; `distop.spark.read` (*read()*); and
  `spark.read.format("distop")`.
- All sessions are in the time zone Europe/Berlin: on 2024-03-31 it has no 02:30, on 2024-10-27 it has two.

There is one table for each type, made with its columns. All values of a type that come in the same way are
one operation; with files and topics it has `on_bad_rows=quarantine`. In a DataFrame a bad row fails all rows,
so such a value is written alone. What is expected stands in `tests/truth/values.py`, after
[the rule of ingest](ingest.md#columns-and-types); DuckDB agrees with it about every text that is not refused.

The program prints a line for each cell that is not as expected: type, way in, value, readers, what was
expected and what was seen. Its last line is one JSON object: the number of `cells`, how many are `wrong`, how
many `predicates` were tried, and how many `differences` there were between their answers.

In the tables `=` is the same value for every reader. *refused* is a refusal that names the column, and the
value; or the types, if no value of that type can come in this way. A dot is a value that this way cannot
carry: text files are UTF-8, Avro and Spark have no unsigned integers. JSON has no NaN and no infinity: a text
that says so is refused as other texts are, and without quotes it is no JSON. Spark's own reader cannot read
`uuid`.
"""

INFERRED = """\
A file of CSV and one of JSON lines, each with one row, go into tables without columns. Each value is then
text, or of a type that has exactly this value ([how types are inferred](ingest.md#columns-and-types)).
"""

NONE_KNOWN = "No cell is known to be wrong.\n"
SOME_KNOWN = """\
These cells are wrong in this version. `tests/truth/known.txt` lists them: the program fails if another cell
is wrong, and if one of these is right.
"""


def page() -> str:
    """All of it."""
    parts = [HEAD, *(f"## `{kind.name}`\n\n{_table(kind)}" for kind in KINDS)]
    parts += [f"## Without a schema\n\n{INFERRED}\n{_inferred()}", f"## Known\n\n{_known()}"]
    return "\n".join(parts)


def _table(kind: Kind) -> str:
    return "".join(f"{line}\n" for line in _lines(kind))


def _lines(kind: Kind) -> Iterator[str]:
    wrong = {(cell.writer, cell.case) for cell in known() if cell.kind == kind.name}
    yield f"| value | {' | '.join(WRITERS)} |"
    yield f"|---|{'---|' * len(WRITERS)}"
    for case in kind.cases:
        cells = (
            "**wrong**" if (writer, case.name) in wrong else _cell(kind, case, writer) for writer in WRITERS
        )
        yield f"| {_named(case.name)} | {' | '.join(cells)} |"


def _named(name: str) -> str:
    return name if len(name) <= MOST_SHOWN else f"{name[:12]}... ({len(name)} characters)"


def _cell(kind: Kind, case: Case, writer: str) -> str:
    if writer not in kind.writers(case):
        return "·"
    return "*refused*" if kind.is_refused(case, writer) else "="


def _inferred() -> str:
    wrong = {(cell.writer, cell.case) for cell in known() if cell.kind == NAME}
    lines = ["| written | in | becomes |", "|---|---|---|"]
    for guess in GUESSES:
        kind = "**wrong**" if (guess.writer, guess.text) in wrong else f"`{guess.kind}`"
        lines.append(f"| `{guess.text}` | {guess.writer} | {kind} |")
    return "".join(f"{line}\n" for line in lines)


def _known() -> str:
    cells_by_reason: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell, reason in known().items():
        cells_by_reason[cell.kind, cell.writer, cell.case, reason].append(cell)
    if not cells_by_reason:
        return NONE_KNOWN
    lines = ["| type | way in | value | readers | why |", "|---|---|---|---|---|"]
    for (kind, writer, case, reason), cells in cells_by_reason.items():
        readers = "all" if len(cells) == len(READERS) else ", ".join(cell.reader for cell in cells)
        lines.append(f"| {kind} | {writer} | {_named(case)} | {readers} | {reason} |")
    return SOME_KNOWN + "\n" + "".join(f"{line}\n" for line in lines)
