"""The options that commands share, and the output and connection that they configure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.options.bundles import Bundle
from distop.cli.options.parsing import parse_assignments, parse_object
from distop.cli.output import Format, Output, make_output
from distop.cli.output.base import COUNTED, Listing
from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.client import Client


DEFAULT_ADDRESS = "127.0.0.1:7070"
"""The same as in ``distop.client``, which would load gRPC, so it is not imported here."""

DEFAULT_TIMEOUT_S = 10.0

COMPLETION_S = 0.5
"""How long shell completion looks for names: more is felt at a key press."""

MOST_COMPLETED = 100
"""How many names shell completion offers."""

PAGE_SIZE = 200
"""The same as in ``distop.client``: items of one request."""

MOST_NAMES = 500
"""How many names are searched for a similar one."""

ADDRESS_HELP = "A coordinator, or several: HOST:PORT[,HOST:PORT...]."
OUTPUT_HELP = "For people (table, or wide: all columns) or for programs (json, yaml)."
TIMEOUT_HELP = "Timeout of one call in seconds."


@dataclass
class Settings:
    """The options before the name of the command; ``None``: not given."""

    address: str | None = None
    output: Format | None = None
    timeout_s: float | None = None


def page_size(limit: int) -> int:
    """Items of one request of a list of ``limit`` (0: all), and of those behind its end that are counted."""
    return min(limit + COUNTED, PAGE_SIZE) if limit else PAGE_SIZE


def _client(address: str, timeout_s: float) -> Client:
    from distop.client import Client  # loads gRPC, which services and the help do without

    return Client(address, timeout_s=timeout_s)


class Session:
    """One run of a command that calls the service."""

    def __init__(self, address: str, timeout_s: float, output: Output) -> None:
        self.out = output
        self._address = address
        self._timeout_s = timeout_s

    @cached_property
    def client(self) -> Client:
        """Connects on first use."""
        return _client(self._address, self._timeout_s)

    def listed(self, listing: Listing, items: Iterator[Any], limit: int) -> None:
        """Show the first ``limit`` items; 0: all."""
        read = list(islice(items, limit + COUNTED if limit else None))
        shown = read[:limit] if limit else read
        self.out.listed(listing, shown, len(read) - len(shown))

    def suggest(self, error: DistopError) -> None:
        """Add a suggestion with a similar name to an error about an unknown name."""
        try:
            if close := get_close_matches(*self._names(error)):
                error.hint = f"did you mean {' or '.join(close)}?"
        except DistopError:
            return  # the original error says more

    def _names(self, error: DistopError) -> tuple[str, list[str]]:
        """The name that an error is about, and the names that exist."""
        match error.code:
            case "TABLE_NOT_FOUND" if "table" in error.details:
                listed_tables = islice(self.client.tables(), MOST_NAMES)
                return error.details["table"], [table.name for table in listed_tables]
            case "OPERATION_NOT_FOUND" if "operation" in error.details:
                table, _, rest = (name := error.details["operation"]).partition("/")
                tables = [known.name for known in islice(self.client.tables(), MOST_NAMES)]
                if table not in tables:
                    return name, [f"{known}/{rest}" for known in tables]
                number = name.rpartition("/")[2]
                listed = islice(self.client.operations(table), MOST_NAMES)
                known = {f"{operation.name.rpartition('/')[0]}/{number}" for operation in listed}
                return name, [] if name in known else sorted(known)
        return "", []

    def close(self) -> None:
        if "client" in vars(self):
            self.client.close()


def _settings(ctx: typer.Context) -> Settings:
    return ctx.obj if isinstance(ctx.obj, Settings) else Settings()


def open_output(
    ctx: typer.Context,
    output: Annotated[Format | None, typer.Option("--output", "-o", help=OUTPUT_HELP)] = None,
) -> Output:
    """The output that the user chose, before or after the name of the command."""
    return make_output(output or _settings(ctx).output or "table")


def open_session(
    ctx: typer.Context,
    address: Annotated[
        str | None, typer.Option("--address", "-a", metavar="HOST:PORT", help=ADDRESS_HELP)
    ] = None,
    output: Annotated[Format | None, typer.Option("--output", "-o", help=OUTPUT_HELP)] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help=TIMEOUT_HELP)] = None,
) -> Session:
    """A session that is closed when the command ends."""
    settings = _settings(ctx)
    session = Session(
        address or settings.address or DEFAULT_ADDRESS,
        next((s for s in (timeout, settings.timeout_s) if s is not None), DEFAULT_TIMEOUT_S),
        open_output(ctx, output),
    )
    ctx.call_on_close(session.close)
    return session


Completion = Callable[[typer.Context, str], list[str]]
"""What a shell offers for a name that is being typed."""


def _completion(names: Callable[[Client, str], Iterable[str]]) -> Completion:
    """The completion of ``names``: a function of a client, and of the table that was named before."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        address = ctx.params.get("address") or ctx.find_root().params.get("address") or DEFAULT_ADDRESS
        until = time.monotonic() + COMPLETION_S
        try:
            with _client(address, COMPLETION_S) as client:
                known = names(client, ctx.params.get("table") or "")
                in_time = takewhile(lambda _: time.monotonic() < until, known)
                return list(islice((name for name in in_time if name.startswith(incomplete)), MOST_COMPLETED))
        except Exception:
            return []  # whatever it is, it would be printed into the line that is being typed

    return complete


complete_table = _completion(lambda client, _: (table.name for table in client.tables()))
complete_schedule = _completion(
    lambda client, table: (schedule.name for schedule in client.table(table).schedules())
)
complete_branch = _completion(lambda client, table: client.table(table).branches())
complete_source = _completion(lambda client, table: client.table(table).watermarks())
complete_snapshot = _completion(
    lambda client, table: (str(snapshot.snapshot_id) for snapshot in client.table(table).snapshots())
)
complete_column = _completion(
    lambda client, table: (column.name for column in client.table(table).describe().columns)
)
complete_type = _completion(
    lambda client, _: sorted({kind for member in client.members() for kind in member.types})
)
complete_coordinator = _completion(
    lambda client, _: (member.id for member in client.members() if member.role == "coordinator")
)
complete_batch = _completion(
    lambda client, table: (
        batch.name
        for applied, ordered in ((False, True), (False, False), (True, True))
        for batch in client.table(table).backlog(applied=applied, ordered=ordered)
    )
)


def complete_operation(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of operations; names of tables until a table is complete."""
    table, slash, _ = incomplete.partition("/")
    if not slash:
        return [f"{name}/" for name in complete_table(ctx, incomplete)]
    of_table = _completion(lambda client, _: (operation.name for operation in client.operations(table)))
    return of_table(ctx, incomplete)


Connected = Annotated[Session, Bundle(open_session)]
WithOutput = Annotated[Output, Bundle(open_output)]


def remember(ctx: typer.Context, **given: Any) -> None:
    """Store the options before the name of the command."""
    ctx.obj = Settings(**given)


TableName = Annotated[str, typer.Argument(metavar="TABLE", autocompletion=complete_table)]
TypeName = Annotated[
    str, typer.Argument(metavar="TYPE", help="Such as ingest or noop.", autocompletion=complete_type)
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Show at most this many; 0: all.")]
Reason = Annotated[str, typer.Option(help="The reason, shown to users and in the audit trail.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end and show progress.")]


def json_argument(
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", metavar="KEY=VALUE", help="Part of the argument; JSON, or else text. Repeatable."
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-|JSON", help="The argument as a JSON object.")
    ] = None,
) -> dict[str, Any]:
    """The argument of an operation."""
    return (parse_object(json, "json") if json is not None else {}) | parse_assignments(arg or ())


JsonArgument = Annotated[dict[str, Any], Bundle(json_argument)]
