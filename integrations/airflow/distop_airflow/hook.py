"""The connection of Airflow to coordinators of distop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from ipaddress import AddressValueError, IPv6Address
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook, Connection

from distop.client import AsyncClient, Client, Credentials
from distop.errors import DistopError, InvalidArgument

TIMEOUT_S = 60.0
"""How long a call, or a task that waits, does without any coordinator."""


class DistopHook(BaseHook):
    """Makes clients from a connection of the type ``distop``.

    Its host and port are those of a coordinator; several are a host such as ``a:7070,b:7070``. Its password
    is a token. Its extra may have ``token_file``, ``ca``, ``cert``, ``key``, ``insecure`` (send the token in
    plain text) and ``page`` (the address of the web page, for links).
    """

    conn_name_attr = "distop_conn_id"
    default_conn_name = "distop_default"
    conn_type = "distop"
    hook_name = "distop"

    def __init__(self, distop_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self._id = distop_conn_id

    @cached_property
    def _fetched(self) -> tuple[dict[str, Any], str]:
        """What a client is made with, and the address of the page.

        Airflow is asked once: a kill that comes while the task waits for another answer of it would wait for
        ever. Reading the extra asks, too: Airflow then masks its secrets.
        """
        connection = self.get_connection(self._id)
        return self._options(connection), str(connection.extra_dejson.get("page") or "")

    def get_conn(self) -> Client:
        """A client, to be closed."""
        return Client(**self._fetched[0])

    async def aget_conn(self) -> AsyncClient:
        """A client for an event loop, to be closed."""
        return AsyncClient(**self._options(await self.aget_connection(self._id)))

    def page_of(self, operation: str) -> str:
        """The page of an operation; empty: the connection names none."""
        page = self._fetched[1].rstrip("/")
        return f"{page}/operation?name={quote(operation, safe='')}" if page else ""

    def test_connection(self) -> tuple[bool, str]:
        """Whether a coordinator answers; and what it says."""
        try:
            with self.get_conn() as client:
                return True, f"{len(client.members())} members"
        except DistopError as error:
            return False, f"{error.code}: {error}"

    @staticmethod
    def get_ui_field_behaviour() -> dict[str, Any]:
        """The form of the connection: without what it does not use."""
        return {"hidden_fields": ["schema", "login"], "relabeling": {"password": "Token"}}

    def _options(self, connection: Connection) -> dict[str, Any]:
        extra: Mapping[str, Any] = connection.extra_dejson
        if not (address := connection.host or ""):
            raise InvalidArgument(f"connection {self._id} has no host", hint="name a coordinator: host:port")
        with suppress(AddressValueError):
            address = f"[{IPv6Address(address)}]"
        if connection.port and (":" not in address or address.endswith("]")):
            address = f"{address}:{connection.port}"
        files = {name: str(extra[name]) for name in ("token_file", "ca", "cert", "key") if extra.get(name)}
        insecure = extra.get("insecure") in (True, "true", "1")  # in an address all are texts
        credentials = Credentials(token=connection.password or "", insecure=insecure, **files)
        # A task may be the first that needs a service which starts beside it.
        return {
            "address": address,
            "timeout_s": TIMEOUT_S,
            "connect_timeout_s": TIMEOUT_S,
            "credentials": credentials,
        }
