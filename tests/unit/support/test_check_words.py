"""`make lint` finds private words, and says where."""

from check_words import in_text, problems

MODULE = '''"""It is told what has changed."""

HEAR_S = 1.0  # the door

class Follower:
    """The same."""

    def heed(self, one: str) -> None:
        raise ValueError(f"nobody heard of {one}")
'''


def test_words_are_found_with_their_line_in_names_docstrings_messages_and_comments() -> None:
    found = sorted((line, problem.partition(":")[0]) for line, problem in problems(MODULE))
    assert found == [
        (1, "'told'"),
        (3, "'door'"),
        (3, "name 'HEAR_S'"),
        (6, "docstring 'The same.'"),
        (8, "name 'heed'"),
        (8, "name 'one'"),
        (9, "'heard'"),
    ]


def test_a_word_counts_where_it_is_one() -> None:
    assert not list(problems("restored_ones = 1\n"))
    assert [line for line, _ in in_text("a shoulder,\nand an outdoor\nStranger", 1)] == [3]
