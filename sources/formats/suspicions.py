"""Signs in a sample of text that it was misinterpreted. Pure; sentences for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

MAX_SUSPICIONS = 20
"""Most sentences for one sample: there may be very many suspicious columns."""
MAX_QUOTED = 60
"""Characters of a value quoted in a sentence."""

_OTHER_DELIMITERS = ";\t|,"
_NO_VALUE = ("NA", "N/A", "n/a", "NaN", "nan", "None", "none", "NIL", "nil", "-", "--", "?", ".")
"""Common texts for missing values in columns of numbers and times."""
_VALUE = re.compile(r"[+-]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*")
_DECIMAL_COMMA = r"^\s*[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+\s*$"


def suspicions(
    names: Sequence[str],
    texts: Mapping[str, pa.Array],
    delimiter: str,
    readable: Iterable[str],
    reasons: Mapping[str, str],
) -> list[str]:
    """The suspicions of CSV.

    Parameters
    ----------
    names:
        Columns as in the header.
    texts:
        Columns guessed to be text -> their values as text, without NULL.
    readable:
        Which of these would be numbers or times if :func:`no_values` meant NULL.
    reasons:
        Columns that look like numbers or times -> why they are text nevertheless.
    """
    return _most([*_of_names(names, delimiter), *_of_values(names, texts, set(readable), reasons)])


def suspicions_of_strings(
    texts: Mapping[str, pa.Array], readable: Iterable[str], reasons: Mapping[str, str]
) -> list[str]:
    """As :func:`suspicions`, of columns of JSON that are ``readable`` or have ``reasons``."""
    return _most(list(_of_columns(texts, set(readable), reasons, "write null for it")))


def _most(found: list[str]) -> list[str]:
    more = len(found) - MAX_SUSPICIONS
    return found if more <= 0 else [*found[:MAX_SUSPICIONS], f"and {more} more of this kind"]


def no_values() -> list[str]:
    """Texts that may mean NULL without being declared."""
    return list(_NO_VALUE)


def foreign_encoding(text: bytes) -> str:
    """The probable encoding of a text that is not UTF-8, with an example; empty if it is UTF-8.

    A text with only one such line, or with some non-ASCII lines in UTF-8, is UTF-8 with bad rows.
    """
    try:
        text.decode()
        return ""
    except UnicodeDecodeError as error:
        at = error.start
    strange = [line for line in text.splitlines() if not line.isascii()]
    if len(strange) == 1 or any(map(_is_utf_8, strange)):
        return ""
    begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
    line = text[begin : end if end >= 0 else len(text)]
    word = next((part for part in re.split(rb"[\s,;|]", line) if not part.isascii()), line)
    return f"Latin-1 or Windows-1252 ({_quoted(word.decode('latin-1'))})"


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_names(names: Sequence[str], delimiter: str) -> Iterator[str]:
    if len(names) == 1:
        other = next((sign for sign in _OTHER_DELIMITERS if sign != delimiter and sign in names[0]), None)
        if other is not None:
            yield (
                f"there is one column, {_quoted(names[0])}, and its name contains {other!r}: "
                f"if that separates columns, give --arg 'delimiter={json.dumps(other)}'"
            )
    like_values = [name for name in names if _VALUE.fullmatch(name.strip())]
    if like_values:
        yield (
            f"the header names a column {_quoted(like_values[0])}, which looks like a value: if the files "
            "have no header, give the columns' names as a list with --arg header"
        )


def _of_values(
    names: Sequence[str],
    texts: Mapping[str, pa.Array],
    readable: set[str],
    reasons: Mapping[str, str],
) -> list[str]:
    all_text = len(texts) == len(names)
    if not any(len(values) for values in texts.values()):
        nothing = "the sample has no row, so every column became text: give --schema, or ingest rows first"
        return [nothing] if texts and all_text else []
    found = list(_of_columns(texts, readable, reasons, "name it with --null-value"))
    if all_text and len(names) > 1 and not found:
        found.append("every column became text: is the first line a header, and is the delimiter right?")
    return found


def _of_columns(
    texts: Mapping[str, pa.Array], readable: set[str], reasons: Mapping[str, str], advice: str
) -> Iterator[str]:
    for name, values in texts.items():
        became = f"column {_quoted(name)} became text"
        if not len(values):
            continue
        if name in readable:
            sign = values.filter(pc.is_in(values, pa.array(_NO_VALUE, values.type)))[0].as_py()
            yield f"{became} because of {_quoted(sign)}: if that means a missing value, {advice}"
        elif name in reasons:
            yield f"{became}: {_shortened(reasons[name])}"
        elif pc.all(pc.match_substring_regex(values, _DECIMAL_COMMA)).as_py():
            example = _quoted(values[0].as_py())
            yield f"{became} because its numbers have a decimal comma ({example}): give --arg decimal_point=,"


def _quoted(text: str) -> str:
    return repr(_shortened(text, MAX_QUOTED))


def _shortened(text: str, limit: int = 4 * MAX_QUOTED) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
