"""Texts that are too long for their place."""

from hypothesis import given
from hypothesis import strategies as st

from distop.errors import shortened


def test_a_text_is_cut_between_words() -> None:
    """U3: one that is all of one word, such as a path, where it must be."""
    assert shortened("the disk is full", 16) == "the disk is full"
    assert shortened("the disk is full", 15) == "the disk is…"
    assert shortened("the disk is full", 13) == "the disk is…"
    assert shortened("/data/flights/2013-01", 10) == "/data/fli…"


@given(st.text(st.sampled_from("ab "), max_size=40), st.integers(2, 40))
def test_a_shortened_text_fits_and_is_the_beginning(text: str, limit: int) -> None:
    """U3"""
    short = shortened(text, limit)
    assert len(short) <= limit
    assert text.startswith(short.removesuffix("…"))
    assert (short == text) == (len(text) <= limit)
