"""Texts that Arrow would read as hexadecimal numbers are found, wherever they are."""

import pyarrow as pa
import pytest

from distop.lake.writing.casts import _PIECE_BYTES, may_be_hexadecimal, unlike_integers

TEXTS = pa.array(["0x1F", None, "12", "", "0X2"], pa.large_string())


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (TEXTS, "'0x1F'"),
        (TEXTS.slice(1), "'0X2'"),
        (pa.chunked_array([TEXTS.slice(1, 3), TEXTS.slice(4)]), "'0X2'"),
        (TEXTS.slice(1, 3), ""),
        (TEXTS.slice(1, 1), ""),
        (TEXTS.slice(5), ""),
        (pa.chunked_array([], pa.large_string()), ""),
        (pa.nulls(3, pa.large_string()), ""),
    ],
)
def test_the_first_hexadecimal_text_of_a_column_is_named(
    texts: pa.Array | pa.ChunkedArray, named: str
) -> None:
    assert unlike_integers(texts, pa.int64()) == (named and f"invalid value {named} for int64")


@pytest.mark.parametrize("number", [b"0x1", b"0X1", b'0"x1'])
@pytest.mark.parametrize("place", [0, *range(_PIECE_BYTES - 4, _PIECE_BYTES + 2), 2 * _PIECE_BYTES])
def test_a_hexadecimal_number_is_seen_wherever_a_text_is_cut(number: bytes, place: int) -> None:
    text = b"x" + b"1" * place + number + b",2\n"
    assert may_be_hexadecimal(text, b'"')
    assert may_be_hexadecimal(text, b"") == (b'"' not in number)


@pytest.mark.parametrize("text", [b"", b"0", b"x", b"1x0,10", b"hex,0,x\n"])
def test_a_text_without_hexadecimal_numbers_is_not_taken_for_one(text: bytes) -> None:
    assert not may_be_hexadecimal(text, b'"')
