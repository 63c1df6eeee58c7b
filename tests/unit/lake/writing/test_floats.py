"""Numbers that are proven to be the texts that they are made of are so."""

import random

import pyarrow as pa
import pytest

from distop.lake.writing.casts import _doubtful, doubtful_lines, has_large, is_number, may_round, unlike_wider

TYPES = {32: pa.float32(), 64: pa.float64()}
UNUSUAL = [
    *(
        "0",
        "-0.0",
        "1e400",
        "-1e400",
        "1e-400",
        "5e-324",
        "4.9e-324",
        "1.5e-310",
        "1e-45",
        "1.4e-45",
        "3.5e38",
    ),
    *("9007199254740993", "9007199254740992", "9007199254740993.0", "16777217", "16777217.00", "1677721.7e1"),
    *("40160930", "153248580", "4.016093e7"),
    *("0.30000000000000004", "0.30000000000000005", "0.3000000000000000444", "0.10000000000000000000000"),
    *("763.77459716796875", "763.7745971679688", "763.7745971679687", "0.100000001490116119384765625"),
    *(
        "12345678901234567.5",
        "1234567890123456.75",
        "99999999999999999",
        "123456789012345678",
        "1e22",
        "1e23",
    ),
    *("8.5e-05", "1.2345678901234567e-05", "12.345678901234567e2", "1234567890123456e5", "123456789012345e5"),
    *("00012.5", "0.1e0", "0.5e-03", "0.0300000000000001e-02", "5.", "123456789012345678.", "1e0000000001"),
]


def texts_of(bits: int) -> list[str]:
    """Texts near numbers of a type, with some digits less or more, and other last digits."""
    chance = random.Random(bits)
    texts = list(UNUSUAL)
    for _ in range(3_000):
        number = chance.choice([chance.random(), chance.uniform(-1e3, 1e3), 10 ** chance.uniform(-30, 30)])
        number = pa.scalar(number, TYPES[bits]).as_py()
        digits = chance.randrange(2, bits // 3)
        text = chance.choice(
            [repr(number), f"{number:.{digits}f}", f"{number:.{digits}e}", f"{number:.{digits}g}"]
        )
        place = max(at for at, sign in enumerate(text.partition("e")[0]) if sign.isdecimal())
        other = chance.choice([text[place], *"0123456789"])
        texts.append(text[:place] + other + text[place + 1 :])
    return texts


@pytest.mark.parametrize("bits", TYPES)
def test_a_proof_about_a_column_of_floats_holds_for_each_value(bits: int) -> None:
    texts = pa.array([None, *texts_of(bits)], pa.large_string()).slice(1)
    made = texts.cast(TYPES[bits])

    places = set(_doubtful(texts, made).to_pylist())

    proven = [at for at in range(len(texts)) if at not in places]
    assert len(proven) > len(texts) / 5
    wrong = [texts[at].as_py() for at in proven if not is_number(texts[at].as_py(), made[at].as_py())]
    assert not wrong


def test_a_double_becomes_a_float_if_that_is_what_is_printed() -> None:
    given = pa.array(texts_of(32), pa.large_string()).cast(pa.float64())
    made = given.cast(pa.float32())
    rows = [column.to_pylist() for column in (given, made, *(c.cast(pa.string()) for c in (given, made)))]

    for at, (double, number, text, printed) in enumerate(zip(*rows, strict=True)):
        as_printed = text == printed and abs(number) < 2**24
        is_printed = double == number or as_printed or is_number(text, number)
        assert is_printed == (not unlike_wider(given.slice(at, 1), made.slice(at, 1))), text


@pytest.mark.parametrize("bits", TYPES)
@pytest.mark.parametrize("form", ["{},1\n", '"{}",1\n', "1, {} \n"])
def test_a_line_that_cannot_have_a_rounded_number_has_none(bits: int, form: str) -> None:
    passed = 0
    for text in texts_of(bits):
        made = pa.array([text], pa.large_string()).cast(TYPES[bits])
        if not may_round(form.format(text).encode(), bits, b'"') and not has_large(made):
            passed += 1
            assert is_number(text, made[0].as_py()), text
    assert passed > 50


def test_a_number_that_quotes_take_apart_is_looked_at_as_one() -> None:
    assert may_round(b'"12345678"9.123456789,1\n', 64, b'"')
    assert may_round(b'"1"e400\n', 64, b'"')
    assert may_round(b'"1e"400\n', 64, b'"')
    assert may_round(b'"1e-"400\n', 64, b'"')


@pytest.mark.parametrize("integers", [False, True])
def test_a_line_of_json_that_is_not_doubtful_has_doubles_only(integers: bool) -> None:
    lines = [f'{{"id": 1234567890123456789, "x": {text}}}\n' for text in texts_of(64)]
    lines[-1] = lines[-1].rstrip()

    doubtful = set(doubtful_lines("".join(lines).encode(), integers=integers))

    passed = 0
    for line, text in zip(lines, texts_of(64), strict=True):
        if line.encode() not in doubtful and (integers or abs(float(text)) < 2**53):
            passed += 1
            assert is_number(text, float(text)), text
    assert integers or passed > 500
    assert integers or len(doubtful) < len(lines) * 3 / 4


def test_numbers_within_texts_of_json_are_not_looked_at() -> None:
    lines = b'{"id": "3f2504e0-4f89-1e123-9a0c-0305e82c3301", "at": "1e400", "x": 1.5}\n'

    assert not list(doubtful_lines(lines, integers=False))
