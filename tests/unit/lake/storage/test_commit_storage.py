"""One set of storage options for everybody who opens files."""

import pytest

from distop.errors import InvalidArgument
from distop.lake.storage.storage import file_system, io_properties, without_secrets

ODD = ["a b", "a%20b", "a#b", "a?b=c", "a::b", "new\nline", "🦆 飞", "q\"u'o", "~x", "{a}", "[a]*"]


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ODD)
def test_names_are_taken_as_they_are(name: str) -> None:
    """C12: no query, no escape, no chain, no home folder."""
    assert file_system(f"/x/{name}")[1] == f"/x/{name}"
    assert file_system(f"file:///x/{name}")[1] == f"/x/{name}"
    assert file_system(f"s3://x/{name}", {"key": "k", "secret": "s"})[1] == f"x/{name}"


def test_the_same_options_serve_pyiceberg() -> None:
    storage = {
        "key": "k",
        "secret": "s",
        "token": "t",
        "endpoint_url": "http://minio:9000",
        "client_kwargs": {"region_name": "eu-1", "endpoint_url": "http://not:1"},
    }
    assert io_properties("s3://b/x", storage) == {
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.session-token": "t",
        "s3.endpoint": "http://minio:9000",
        "s3.region": "eu-1",
    }
    assert io_properties("file:///x", storage) == {}
    assert io_properties("s3://b/x") == {}


def test_what_the_options_leave_open_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://env:1")
    assert io_properties("s3a://b/x") == {"s3.endpoint": "http://env:1", "s3.region": "us-east-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
    monkeypatch.setenv("AWS_REGION", "eu-1")
    assert io_properties("s3://b/x") == {"s3.endpoint": "http://s3:1", "s3.region": "eu-1"}
    assert io_properties("s3://b/x", {"endpoint_url": "http://mine:1"})["s3.endpoint"] == "http://mine:1"


def test_a_file_system_that_is_not_installed_is_named() -> None:
    """U3"""
    with pytest.raises(InvalidArgument, match="nowhere://x"):
        file_system("nowhere://x")


def test_keys_are_not_shown() -> None:
    """U5"""

    def options(secret: str) -> dict[str, object]:
        client = {"aws_secret_access_key": secret, "region_name": "eu-1"}
        storage = {"key": secret, "anon": False, "client_kwargs": client}
        sources = [{"storage": {"secret": secret}}]
        return {"storage": storage, "partitionBy": ["day"], "sources": sources, "keys": ["id"]}

    assert without_secrets(options("s")) == options("***")


def test_names_and_types_of_columns_are_no_secrets() -> None:
    """U5: the keys of a merge, written as one name, and whatever columns are called."""
    argument = {"keys": "id", "schema": {"token": "string"}, "epoch_units": {"sort_key": "ms"}}
    assert without_secrets({"argument": argument}) == {"argument": argument}
