"""The options of every command, and what they lead to: an output and a connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.options.bundles import Bundle
from distop.cli.output import Format, Output, make_output
from distop.cli.output.base import Listing

if TYPE_CHECKING:
    from distop.client import Client

DEFAULT_ADDRESS = "127.0.0.1:7070"
"""As in ``distop.client``, which is not imported for that: it takes gRPC along."""

DEFAULT_TIMEOUT_S = 10.0

ADDRESS_HELP = "A coordinator, or several: HOST:PORT[,HOST:PORT...]."
OUTPUT_HELP = "For people (table) or for programs (json)."
TIMEOUT_HELP = "Seconds that one call may take."


@dataclass
class Settings:
    """What was said before the name of the command; ``None``: nothing."""

    address: str | None = None
    output: Format | None = None
    timeout_s: float | None = None


class Session:
    """One run of a command that talks to the service."""

    def __init__(self, address: str, timeout_s: float, output: Output) -> None:
        self.out = output
        self._address = address
        self._timeout_s = timeout_s

    @cached_property
    def client(self) -> Client:
        """Connected when it is first used."""
        from distop.client import Client

        return Client(self._address, timeout_s=self._timeout_s)

    def listed(self, what: Listing, items: Iterator[Any], limit: int) -> None:
        """Show the first ``limit`` items; 0: all."""
        found = list(islice(items, limit + 1 if limit else None))
        more = bool(limit) and len(found) > limit
        self.out.listed(what, found[:limit] if limit else found, more)

    def close(self) -> None:
        if "client" in vars(self):
            self.client.close()


def _settings(ctx: typer.Context) -> Settings:
    return ctx.obj if isinstance(ctx.obj, Settings) else Settings()


def open_output(
    ctx: typer.Context,
    output: Annotated[Format | None, typer.Option("--output", "-o", help=OUTPUT_HELP)] = None,
) -> Output:
    """The output that was asked for, before or behind the name of the command."""
    return make_output(output or _settings(ctx).output or "table")


def open_session(
    ctx: typer.Context,
    address: Annotated[
        str | None, typer.Option("--address", "-a", metavar="HOST:PORT", help=ADDRESS_HELP)
    ] = None,
    output: Annotated[Format | None, typer.Option("--output", "-o", help=OUTPUT_HELP)] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help=TIMEOUT_HELP)] = None,
) -> Session:
    """A session that ends with the command."""
    settings = _settings(ctx)
    session = Session(
        address or settings.address or DEFAULT_ADDRESS,
        next((s for s in (timeout, settings.timeout_s) if s is not None), DEFAULT_TIMEOUT_S),
        open_output(ctx, output),
    )
    ctx.call_on_close(session.close)
    return session


Connected = Annotated[Session, Bundle(open_session)]
WithOutput = Annotated[Output, Bundle(open_output)]


def remember(ctx: typer.Context, **given: Any) -> None:
    """Keep what was said before the name of the command."""
    ctx.obj = Settings(**given)
