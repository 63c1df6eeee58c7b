"""One spelling for each place: which locations there are, and which lie in which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import InvalidArgument
from distop.metastore.tables.locations import MAX_DEPTH, canonical, place_of, places_above

SPELLINGS = {
    "file:///a/b": [
        "/a/b",
        "/a/b/",
        "//a//b//",
        "/./a/./b/.",
        "file:/a/b",
        "file:///a/b/",
        "FILE://localhost/a/b",
    ],
    "file:///a b": ["/a b", "local:///a b"],
    "file:///größe/日本": ["/größe/日本"],
    "s3://bucket/a/b": ["s3://bucket/a/b", "s3://bucket/a/b/", "S3://bucket/a/b"],
    "s3://bucket": ["s3://bucket", "s3://bucket/"],
    "hdfs://name:8020/a": ["hdfs://name:8020/a"],
    "abfss://box@account.dfs/a": ["abfss://box@account.dfs/a"],
}
REFUSED = [
    "",
    "a/b",
    "./a",
    "~/a",
    "/",
    "//",
    "/.",
    "file:///",
    "file:a",
    "file://host/a",
    "s3:",
    "s3://",
    "s3:///",
    "s3:bucket/a",
    "s3://..",
    "http://[half",
    "/a/../b",
    "/a/..",
    "s3://bucket/../a",
    "s3://bucket//a",
    "s3://bucket/a//b",
    "s3://bucket/./a",
    "s3://bucket/a?b",
    "/a#b",
    "/a%2Fb",
    "/a\nb",
    "/a\0b",
    "/a\x1bb",
    "/a\u202eb",
    "/a\ud800",
    "simplecache::s3://bucket/a",
    "/" + "x" * 1024,
    "/x" * (MAX_DEPTH + 1),
]


@pytest.mark.parametrize(("wanted", "spelled"), [(to, one) for to, ones in SPELLINGS.items() for one in ones])
def test_a_folder_has_one_spelling(wanted: str, spelled: str) -> None:
    """S2."""
    assert canonical(spelled) == wanted == canonical(wanted)


@pytest.mark.parametrize("text", REFUSED)
def test_a_location_without_a_canonical_spelling_is_refused_by_field(text: str) -> None:
    """S2, U3."""
    with pytest.raises(InvalidArgument) as caught:
        canonical(text, "here")
    assert caught.value.details["field"] == "here"


@given(st.text(max_size=40), st.sampled_from(["", "/", "file:", "file://", "s3://b/", "s3a://b/"]))
def test_a_spelling_is_its_own(text: str, start: str) -> None:
    """S2: and leads nowhere else."""
    try:
        found = canonical(start + text)
    except InvalidArgument:
        return
    assert canonical(found) == found
    assert not {"", ".", ".."} & set(found.partition("://")[2].split("/")[1:])


def test_schemes_of_one_store_are_one_place() -> None:
    """S2."""
    assert place_of("s3a://bucket/a") == place_of("s3://bucket/a") == place_of("s3n://bucket/a")
    assert place_of("s3://bucket/A") != place_of("s3://bucket/a")


def test_the_folders_above_a_location_are_listed_without_the_root() -> None:
    """S2: of a local path without the root, which is no table's."""
    assert places_above("s3://bucket/a/b") == ["s3://bucket", "s3://bucket/a"]
    assert places_above("s3://bucket") == []
    assert places_above("file:///a/b/c") == ["file:///a", "file:///a/b"]
    assert places_above("file:///a") == []
