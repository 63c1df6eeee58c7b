"""Finding records of CSV text whose quoted values hold newlines."""

import csv
from io import BytesIO, StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.sources.formats.options import Quoting
from distop.sources.formats.text_file import whole_lines

QUOTING = Quoting(b",", b'"')

values = st.text(alphabet='ab,"\n é', max_size=8)
tables = st.lists(st.lists(values, min_size=2, max_size=3), max_size=12)


def written(rows: list[list[str]]) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@given(tables)
def test_records_are_those_that_a_csv_writer_wrote(rows: list[list[str]]) -> None:
    text = written(rows)
    records = list(QUOTING.records(text))
    assert records == [written([row]) for row in rows]
    assert not QUOTING.unclosed(text)


@given(tables, st.integers(1, 40))
def test_blocks_end_where_records_end(rows: list[list[str]], block: int) -> None:
    text = written(rows)
    blocks = whole_lines(BytesIO(text), 0, block_bytes=block, last_end=QUOTING.end_of_last_record)
    found = [record for piece in blocks for record in QUOTING.records(piece.data)]
    assert found == [written([row]) for row in rows]


def test_a_quote_within_a_value_opens_nothing() -> None:
    text = b'5" pipe,x\n6" pipe,y\n'
    assert list(QUOTING.records(text)) == [b'5" pipe,x\n', b'6" pipe,y\n']
    assert not QUOTING.unclosed(text)


def test_a_value_that_is_never_closed_goes_on_to_the_end() -> None:
    text = b'1,a\n2,"b\n3,c\n'
    assert QUOTING.unclosed(text)
    assert list(QUOTING.records(text)) == [b"1,a\n", b'2,"b\n3,c\n']
    assert QUOTING.end_of_last_record(text) == 4
    assert QUOTING.unclosed(b'1,"a""\n')


def test_only_newlines_inside_closed_quotes_count_as_such() -> None:
    assert QUOTING.holds_newline(b'1,"a\nb"\n')
    assert not QUOTING.holds_newline(b'1,"a"\n2,"b"\n')
    assert not QUOTING.holds_newline(b'1,"a\n2,b\n')


def test_nothing_is_quoted_if_there_is_no_quote() -> None:
    plain = Quoting(b",", b"")
    assert list(plain.records(b'1,"a\n2,b"\n')) == [b'1,"a\n', b'2,b"\n']
    assert not plain.unclosed(b'1,"a\n')


@pytest.mark.parametrize("row", ['1,"x"y', '""y,1', '"x""y"z', '1,"" ', '"x" ,1', '5" pipe,"x"y'])
def test_text_behind_a_closing_quote_is_found(row: str) -> None:
    assert QUOTING.text_follows(row.encode())
    assert QUOTING.text_follows(f"1,a\n{row}\r\n".encode())


@pytest.mark.parametrize("row", ['1,"x"', '"x""y",1', '5" pipe,1', '"",""', 'a"",1', '"""x""y"""', '1,"a'])
def test_values_as_they_are_written_have_no_text_behind_them(row: str) -> None:
    assert not QUOTING.text_follows(row.encode())
    assert not QUOTING.text_follows(f"1,a\n{row}\r\n".encode())


@given(st.binary(max_size=40).map(lambda noise: bytes(b'a,"\n\\"'[sign % 6] for sign in noise)))
def test_text_behind_quotes_is_found_as_by_looking_for_each_value(text: bytes) -> None:
    for quoting in (QUOTING, ESCAPING):
        found = quoting.text_follows(text)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Quoting, "_are_plain", lambda self, text: False)
            assert found == quoting.text_follows(text)


ESCAPING = Quoting(b",", b'"', b"\\")


@given(st.lists(st.lists(st.text(alphabet='ab,"\\\n', max_size=8), min_size=2, max_size=3), max_size=12))
def test_escapes_mean_what_their_writer_meant(rows: list[list[str]]) -> None:
    """They become doubled quotes, and records end where they did."""

    def field(value: str) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    records = [(",".join(map(field, row)) + "\n").encode() for row in rows]
    text = b"".join(records)
    assert list(ESCAPING.records(text)) == records
    assert not ESCAPING.unclosed(text)
    assert list(csv.reader(StringIO(ESCAPING.unescaped(text).decode()))) == rows


def test_an_escape_elsewhere_is_a_character() -> None:
    text = b'c:\\d,"c:\\e\n",\\"\n'
    assert ESCAPING.unescaped(text) == text
    assert ESCAPING.unclosed(b'1,"a\\"\n')
    assert not QUOTING.unclosed(b'1,"a\\"\n')
