"""What a first file looks like, said where it may have been misunderstood."""

import shlex
from typing import Any

import pytest

from distop.errors import BadRow
from distop.sources.formats.conversion import MAX_SUSPICIONS, foreign_encoding
from distop.spark_jobs.ingest.plan import IngestPlan
from support.refusals import refused
from support.sources.ingesting import Ingesting


def warned(ingesting: Ingesting, text: str | bytes, **argument: Any) -> list[str]:
    """The warnings of the finished operation."""
    warnings: list[str] = ingesting.facts(paths=ingesting.write(text), **argument).get("warnings", [])
    return warnings


def test_a_usual_file_raises_no_suspicion(ingesting: Ingesting) -> None:
    assert warned(ingesting, "id,day,name\n1,2024-01-05,Ana\n2,2024-01-06,\n") == []
    # Nor do types that somebody gave.
    types = {"a": "string", "b": "string"}
    other = Ingesting(ingesting.folder / "other")
    assert warned(other, "a,b\nx,NA\n", schema=types) == []


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_a_file_of_one_column_that_holds_another_delimiter_is_suspicious(
    ingesting: Ingesting, sign: str
) -> None:
    first, *_ = warned(ingesting, f"id{sign}fare\n1{sign}2.5\n")
    assert f"give --delimiter {shlex.quote(sign)}" in first


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id,day\n", "the sample has no row, so every column became text"),
        ("1,2024-01-05,Ana\n2,2024-01-06,Bob\n", "the header names a column '1', which looks like a value"),
        ("a,b\nx,y\n", "every column became text"),
    ],
    ids=["no rows", "a row as a header", "text only"],
)
def test_odd_looking_files_raise_a_warning(ingesting: Ingesting, text: str, told: str) -> None:
    (only,) = warned(ingesting, text)
    assert only.startswith(told)


def test_a_header_with_a_name_twice_is_refused_with_what_to_do(ingesting: Ingesting) -> None:
    with pytest.raises(Exception, match="not a header"):
        ingesting.start(paths=ingesting.write("5,5,x\n5,6,y\n"))


def test_a_word_for_a_missing_value_makes_a_column_text(ingesting: Ingesting) -> None:
    """`NA` is the code of Namibia as well, so nothing is assumed."""
    (only,) = warned(ingesting, "country,n\nNA,1\nDE,NA\n")
    assert only == (
        "column 'n' became text because of 'NA': if that means a missing value, name it with --null-value"
    )
    assert ingesting.rows("country", "n") == [("DE", "NA"), ("NA", "1")]


def test_a_word_for_a_missing_value_in_a_column_of_numbers_is_called_so(ingesting: Ingesting) -> None:
    path = ingesting.write("n\nNA\n")
    with pytest.raises(BadRow, match=r"invalid value 'NA' for \w+ \(see --null-value\)"):
        ingesting.ingest(paths=path, schema={"n": "long"})
    with pytest.raises(BadRow, match=r"invalid value 'x' for \w+ \(correct"):
        ingesting.ingest(paths=ingesting.write("n\nx\n", "b.csv"), schema={"n": "long"})


def test_a_decimal_comma_is_called_so_and_read_when_told(ingesting: Ingesting) -> None:
    text = "id;fare\n1;10,50\n2;1,25\n"
    (only,) = warned(ingesting, text, delimiter=";")
    assert "'fare' became text because its numbers have a decimal comma ('10,50')" in only
    second = Ingesting(ingesting.folder / "second")
    second.ingest(paths=ingesting.write(text, "b.csv"), delimiter=";", decimal_point=",")
    assert second.rows("fare") == [1.25, 10.5]


def test_a_backslash_before_a_quote_may_be_an_escape(ingesting: Ingesting) -> None:
    """Spark's CSV has such; whatever types were given."""
    text, schema = 'id,s\n1,"a\\"b"\n', {"id": "int", "s": "string"}
    arg = ingesting.start(paths=ingesting.write(text), schema=schema)
    assert IngestPlan.of(arg).warnings == ["quoted values hold \\\": if that means \", give --escape '\\'"]
    with pytest.raises(BadRow, match=r"closing quote .*--escape"):
        ingesting.run(arg)
    other = Ingesting(ingesting.folder / "other")
    assert warned(other, text, escape="\\") == []
    assert other.rows("s") == ['a"b']
    assert warned(Ingesting(ingesting.folder / "third"), 'id,s\n1,5\\" pipe\n') == []


def test_a_value_that_is_no_date_of_the_format_is_called_so(ingesting: Ingesting) -> None:
    (first, *_) = warned(ingesting, "n,d\n1,31/12/2023\n2,2024-01-01\n", date_format="%d/%m/%Y")
    assert first == "column 'd' became text: '2024-01-01' is not of the form '%d/%m/%Y'"


def test_a_quote_is_not_the_delimiter(ingesting: Ingesting) -> None:
    """Neither the one that is given nor the usual one; nor is the sign of decimals."""
    with refused("decimal_point"):
        ingesting.start(paths=ingesting.write("a,b\n1,2\n"), decimal_point=",")
    with refused("escape"):
        ingesting.start(paths=ingesting.write("a,b\n1,2\n"), escape=",")
    for argument in ({"quote": ","}, {"quote": ";", "delimiter": ";"}):
        with refused("quote", "the delimiter"):
            ingesting.start(paths=ingesting.write("a,b\n1,2\n"), **argument)


def test_latin_1_is_called_so(ingesting: Ingesting) -> None:
    path = ingesting.write("id,name\n1,Müller\n2,Weiß\n3,Ana\n".encode("latin-1"))
    with refused("encoding", r"not UTF-8, but Latin-1 or Windows-1252 \('Müller'\)"):
        ingesting.start(paths=path)
    facts = ingesting.facts(paths=path, on_bad_rows="quarantine")
    assert facts["badRows"] == 2
    assert facts["warnings"][0].startswith("the files are not UTF-8, but Latin-1")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ['{"d": "2024-01-05", "s": "a"}', '{"d": "NA", "s": "NA"}'],
            "column 'd' became text because of 'NA': if that means a missing value, write null for it",
        ),
        (
            ['{"d": "2024-02-29"}', '{"d": null}', '{"d": "2023-02-29"}'],
            "column 'd' became text: invalid value '2023-02-29' for date32[day]",
        ),
    ],
)
def test_times_of_json_that_became_text_are_called_so(
    ingesting: Ingesting, lines: list[str], told: str
) -> None:
    """As those of CSV."""
    path = ingesting.write("\n".join(lines), "a.jsonl")
    given = ingesting.start(paths=path, schema={"d": "string", "s": "string"}).argument
    assert given.get("warnings", []) == []
    assert ingesting.facts(paths=path)["warnings"] == [told]
    usual = Ingesting(ingesting.folder / "usual")
    assert "warnings" not in usual.facts(paths=usual.write('{"d": "2024-01-05", "s": "NA"}', "a.jsonl"))


def test_json_in_latin_1_is_called_so(ingesting: Ingesting) -> None:
    lines = '{"id": 1, "name": "Müller"}\n{"id": 2, "name": "Weiß"}\n{"id": 3, "name": "Ana"}\n'
    path = ingesting.write(lines.encode("latin-1"), "a.jsonl")
    with refused("paths", r"not UTF-8, but Latin-1 or Windows-1252 .*iconv"):
        ingesting.start(paths=path)
    facts = ingesting.facts(paths=path, on_bad_rows="quarantine")
    assert facts["badRows"] == 2
    assert facts["warnings"][0].startswith("the files are not UTF-8, but Latin-1")


def test_utf_8_with_some_bad_rows_is_still_utf_8() -> None:
    assert foreign_encoding("Müller\n".encode() + b"caf\xe9\n") == ""
    assert foreign_encoding(b"plain\n") == ""


def test_warnings_about_a_file_stay_short(ingesting: Ingesting) -> None:
    names = [f"c{number}" for number in range(100)]
    found = warned(ingesting, ",".join(["id", *names]) + "\n1" + ",NA" * 100 + "\n2" + ",3" * 100 + "\n")
    assert len(found) == MAX_SUSPICIONS + 1
    assert found[-1] == f"and {100 - MAX_SUSPICIONS} more of this kind"
