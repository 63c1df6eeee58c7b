"""The connection of Dagster to coordinators of distop."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from dagster import ConfigurableResource
from pydantic import Field

from distop.client import Client, Credentials


class DistopResource(ConfigurableResource):  # type: ignore[type-arg]
    """Makes clients. What is not given comes from the environment, as for any client of distop."""

    address: str | None = Field(default=None, description="host:port of a coordinator, or of several: a,b")
    token: str | None = Field(default=None, description="The token; better an EnvVar, or token_file")
    token_file: str | None = Field(default=None, description="File with the token")
    ca: str | None = Field(default=None, description="CA certificates of the coordinators: enables TLS")
    cert: str | None = Field(default=None, description="Client certificate (file)")
    key: str | None = Field(default=None, description="Its key (file)")
    insecure: bool | None = Field(default=None, description="Send the token in plain text")
    page: str | None = Field(default=None, description="Address of the web page, for links")
    timeout_s: float = Field(
        default=60.0, description="How long a call does without any coordinator, in seconds"
    )

    def client(self) -> Client:
        """A client, to be closed."""
        names = ("token", "token_file", "ca", "cert", "key", "insecure")
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, "")}
        if (
            "token" in given or "token_file" in given
        ):  # in place of that of the environment, however it is given
            given = {"token": "", "token_file": "", **given}
        credentials = replace(Credentials.from_env(), **given)
        return Client(
            self.address, timeout_s=self.timeout_s, connect_timeout_s=self.timeout_s, credentials=credentials
        )

    def page_of(self, operation: str) -> str:
        """The page of an operation; empty: without ``page``."""
        return f"{self.page.rstrip('/')}/operation?name={quote(operation, safe='')}" if self.page else ""
