"""Files that are one JSON array: the same rows as from lines, in memory that does not grow with the file."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.errors import BadRow, JobFailed, SourceUnreadable
from distop.sources.formats.files import OpenFile
from distop.sources.formats.jsonl import element_blocks
from support.sources.ingesting import Ingesting, quarantined

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": 'q"],{'}, {"b": "é\n", "a": None}]
EXPECTED = [(1, "x"), (2, 'q"],{'), (None, "é\n")]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        json.dumps(ROWS, indent="\t", ensure_ascii=False).replace("\n", "\r\n"),
        "\ufeff\n  " + json.dumps(ROWS) + "\n\n",
    ],
    ids=["one line", "indented", "windows", "byte order mark"],
)
@pytest.mark.parametrize("split_bytes", [1 << 20, 1024])
def test_every_element_is_a_row(ingesting: Ingesting, text: str, split_bytes: int) -> None:
    text = text.replace("[", "[" + " " * 3000, 1)
    ingesting.ingest(paths=ingesting.write(text, "a.json"), split_bytes=split_bytes)
    assert ingesting.rows("a", "b") == sorted(EXPECTED, key=repr)


def test_compressed_and_beside_lines(ingesting: Ingesting) -> None:
    ingesting.write(gzip.compress(json.dumps(ROWS).encode()), "a.json.gz")
    ingesting.write('{"a": 4, "b": "y"}\n', "b.json")
    ingesting.ingest(paths=f"{ingesting.folder}/source")
    assert ingesting.rows("a", "b") == sorted([*EXPECTED, (4, "y")], key=repr)


def test_an_empty_array_has_no_rows(ingesting: Ingesting) -> None:
    ingesting.ingest(paths=ingesting.write("[ ]\n", "a.json"), schema={"a": "int"})
    ingesting.write('[{"a": 1}]', "b.json")
    ingesting.ingest(paths=f"{ingesting.folder}/source/b.json")
    assert ingesting.rows("a") == [1]


def test_bad_elements_are_named_by_their_number(ingesting: Ingesting) -> None:
    text = '[{"a": 1}, 7,\n {"a": "x"}, {"a": 2}, , {"a": 3} {"a": 4}, {"a": 5}]'
    schema = {"a": "int"}
    with pytest.raises(BadRow, match=r"a\.json, element 2: "):
        ingesting.ingest(paths=ingesting.write(text, "a.json"), schema=schema)
    jobs = ingesting.ingest(paths=ingesting.write(text, "a.json"), schema=schema, on_bad_rows="quarantine")
    assert [entry["element"] for entry in quarantined(ingesting, jobs)] == [2, 3, 5, 6]
    assert ingesting.rows("a") == [1, 2, 5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"a": 1}', "not closed after 0 elements"),
        ('[{"a": 1}, {"a": "', "not closed after 1 elements"),
        ('[{"a": 1}] {"a": 2}', "followed by something else"),
    ],
)
def test_a_damaged_array_fails_and_its_file_is_named(ingesting: Ingesting, text: str, reason: str) -> None:
    path = ingesting.write('[{"a": 1}]', "a.json")
    arg = ingesting.start(paths=path, schema={"a": "int"})
    again = ingesting.start(paths=ingesting.write('[{"a": 1}]', "b.json"), schema={"a": "int"})
    assert arg.argument["files"] != again.argument["files"]
    with pytest.raises((JobFailed, SourceUnreadable), match=reason):
        ingesting.ingest(paths=ingesting.write(text, "c.json"), schema={"a": "int"})


values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(-9, 9), st.text('a"\\[]{},: \n', max_size=6), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("k]}", max_size=2), inner)),
    max_leaves=8,
)


@settings(max_examples=40)
@given(
    st.lists(st.dictionaries(st.text("ab{", max_size=3), values, max_size=3), max_size=6),
    st.sampled_from([None, 1]),
    st.integers(1, 40),
)
def test_elements_are_found_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], indent: int | None, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "array.json"
    # The first reads are larger than the array: room at its begin pushes it over their ends.
    path.write_text(" " * (64 * 1024 - 7) + json.dumps(rows, indent=indent))
    blocks = list(element_blocks(OpenFile.at(f"file://{path.parent}", path.name), block))
    assert [json.loads(line) for found in blocks for line in found.data.splitlines()] == rows
    assert [found.offset for found in blocks] == [
        sum(len(before.data.splitlines()) for before in blocks[:number]) for number in range(len(blocks))
    ]


def test_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    """A process that may not take more than 96 MiB besides what it has reads an array of 128 MiB."""
    element = json.dumps({"n": 1, "text": "x" * 1000, "list": [{"m": 2}]}) + ",\n"
    path = tmp_path / "large.json"
    with path.open("w") as file:
        file.write("[")
        for _ in range(128):
            file.write(element * ((1 << 20) // len(element)))
        file.write('{"n": 1}]')
    program = (
        "import resource, sys\n"
        "from distop.sources.formats.files import OpenFile\n"
        "from distop.sources.formats.jsonl import element_blocks\n"
        "file = OpenFile.at(sys.argv[1], 'large.json')\n"
        "file.identity()  # what has to be loaded is\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))\n"
        "print(sum(block.data.count(b'\\n') for block in element_blocks(file)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, f"file://{tmp_path}"], check=True, capture_output=True, text=True
    )
    assert int(told.stdout) == 128 * ((1 << 20) // len(element)) + 1
