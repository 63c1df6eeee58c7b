"""The preview of an ingest: nothing is started."""

from typing import Any

import pytest

from distop.errors import AlreadyIngested
from support.sources.ingesting import Ingesting, staged_files


def preview(ingesting: Ingesting, **argument: Any) -> dict[str, Any]:
    return dict(ingesting.operation.preview(ingesting.request(**argument)))


def test_columns_types_rows_files_and_size(ingesting: Ingesting) -> None:
    text = "id,fare\n" + "".join(f"{number},{number}.50\n" for number in range(10))
    shown = preview(ingesting, paths=ingesting.write(text), schema={"id": "int", "fare": "decimal(9,2)"})
    assert shown == {
        "format": "csv",
        "files": 1,
        "bytes": len(text),
        "jobs": 1,
        "columns": [
            {"name": "id", "type": "int", "from": "schema"},
            {"name": "fare", "type": "decimal(9, 2)", "from": "schema"},
        ],
        "rows": [{"id": number, "fare": f"{number}.50"} for number in range(5)],
        "badRows": [],
        "warnings": [],
    }
    assert staged_files(ingesting) == []


def test_a_preview_warns_of_what_looks_wrong(ingesting: Ingesting) -> None:
    shown = preview(ingesting, paths=ingesting.write("id;n\n1;2\n"))
    assert "give --delimiter ';'" in shown["warnings"][0]


def test_bad_rows_are_told_and_only_so_many_are_looked_for(ingesting: Ingesting) -> None:
    path = ingesting.write("id\n" + "x\n" * 100)
    shown = preview(ingesting, paths=path, schema={"id": "int"})
    assert len(shown["badRows"]) == 5
    assert shown["badRows"][0].startswith(f"file://{path}, line 2: column 'id'")


def test_rows_are_those_that_the_table_would_have(ingesting: Ingesting) -> None:
    ingesting.write("id,n\n1,2\n")
    ingesting.ingest(paths=f"{ingesting.folder}/source/a.csv")
    path = ingesting.write("n,id,more\n20,10,x\n40,30,y\n", "b.csv")
    shown = preview(ingesting, paths=path, columns=["id"], filter="n > 30")
    assert shown["rows"] == [{"id": 30, "n": None}]
    assert {column["from"] for column in shown["columns"]} == {"table"}


def test_columns_that_the_table_lacks_come_from_elsewhere(ingesting: Ingesting) -> None:
    ingesting.write("id\n1\n")
    ingesting.ingest(paths=f"{ingesting.folder}/source/a.csv")
    path = ingesting.write("id,n,fare\n1,2,3\n", "b.csv")
    schema = {"fare": "decimal(9,2)"}
    shown = preview(ingesting, paths=path, schema=schema, on_new_columns="add")
    assert [(column["name"], column["from"]) for column in shown["columns"]] == [
        ("id", "table"),
        ("n", "files"),
        ("fare", "schema"),
    ]


def test_a_preview_says_that_a_query_is_not_checked(ingesting: Ingesting) -> None:
    ingesting.write("id\n1\n")
    ingesting.ingest(paths=f"{ingesting.folder}/source/a.csv")
    path = ingesting.write("id\n2\n", "b.csv")
    shown = preview(ingesting, paths=path, transform="SELECT nothing FROM nowhere")
    assert "rows" not in shown
    assert shown["warnings"][-1].startswith("the query of transform is not checked")


def test_a_preview_is_planned_as_a_start_is(ingesting: Ingesting) -> None:
    path = ingesting.write("id\n1\n")
    ingesting.ingest(paths=path, new_only=True)
    with pytest.raises(AlreadyIngested):
        preview(ingesting, paths=path)
    assert preview(ingesting, paths=path, new_only=True) == {"jobs": 0, "filesSkipped": 1}


def test_a_long_value_is_cut(ingesting: Ingesting) -> None:
    (row,) = preview(ingesting, paths=ingesting.write("a,b\n" + "x" * 5_000 + ",1\n"))["rows"]
    assert row == {"a": "x" * 200, "b": 1}
