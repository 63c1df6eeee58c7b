"""An S3 of a test's own: moto's server on loopback, spoken to over real HTTP."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pytest

from support.sources.servers import served_by

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class S3:
    """A running server, and one empty bucket in it.

    Names of objects may hold anything but line breaks: the server's router refuses those. S3 does not.
    """

    endpoint: str
    bucket: str = field(default_factory=lambda: f"b{secrets.token_hex(6)}")

    @property
    def url(self) -> str:
        """Of the bucket."""
        return f"s3://{self.bucket}"

    @property
    def storage(self) -> dict[str, Any]:
        """Storage options that reach it without help of the environment, for fsspec and for a table."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let any process reach it."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}

    @property
    def fs(self) -> Any:
        """A file system of fsspec that sees what is there now."""
        return fsspec.filesystem("s3", use_listings_cache=False, **self.storage)

    def names(self) -> list[str]:
        """Names of all objects in the bucket."""
        return sorted(str(name).partition("/")[2] for name in self.fs.find(self.bucket))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """One server for the whole run; it keeps everything in memory."""
    with served_by("s3_main.py") as (endpoint, _):
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str) -> S3:
    """An empty bucket. Nothing in the environment says where it is."""
    made = S3(s3_endpoint)
    made.fs.call_s3("create_bucket", Bucket=made.bucket)
    return made


@pytest.fixture
def s3_in_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An empty bucket that the environment of this process, and of those it starts, leads to."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    # One that an earlier test has made without this environment stays without its credentials.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    return s3
