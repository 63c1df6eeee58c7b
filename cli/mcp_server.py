"""``distop mcp``: a server of the Model Context Protocol over stdio, by which an assistant reads an
installation and previews operations.

Its tools are calls of the SDK that change nothing. Answers are JSON, in the form of ``--output json``, and
bounded: whatever is left out of one is counted in it.
"""

from __future__ import annotations

import functools
import inspect
import json
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, create_model

from distop.cli.options.session import Session, page_size
from distop.client.operations import OperationState
from distop.errors import DistopError, shortened
from distop.proto.identity import own_version
from distop.proto.messages import plain

if TYPE_CHECKING:
    from distop.client import Client

P = ParamSpec("P")

ITEMS = 50
"""Items of each list in an answer, unless the caller wants more or fewer."""
MOST_ITEMS = 500
MOST_COUNTED = 2_000
"""Items of a list that are read, to count what is left out of the answer."""
MOST_ANSWER = 100_000
"""Characters of an answer."""

_SHORTER = ((MOST_ITEMS, 4_000), (20, 1_000), (5, 200), (1, 50))
"""Items of each list and characters of each text, until the answer is short enough."""

_FIELDS = 50
"""Entries of each object; the models of the SDK have fewer."""

INSTRUCTIONS = """Reads a distop installation: operations over partitioned tables, exactly once. Nothing here
changes anything. Begin with `tables` and `why`. An operation is named table/type/instance. An error has a
code and a hint. Hints and remedies name commands of the command line: a person runs those. What a list
leaves out is counted by its last item, "N more"."""

Limit = Annotated[
    int,
    Field(
        ge=1, le=MOST_ITEMS, description="The most items of each list. Those within an item have 50 or more."
    ),
]
State = Literal["running", "committing", "aborting", "succeeded", "failed", "cancelled"]


class Tools:
    """The tools: the name, parameters and docstring of each method are what the assistant sees."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def tables(self, limit: Limit = ITEMS) -> Any:
        """The tables, by name: location, format, running operations, leader, pause."""
        return self._client.tables(page_size=page_size(limit))

    def table(self, table: str, limit: Limit = ITEMS) -> Any:
        """One table: its definition, columns, rows and files, indexes, schedules, and how its batches are
        applied."""
        handle = self._client.table(table)
        return {
            "table": handle.get(),
            "content": handle.describe(),
            "indexes": handle.indexes(),
            "schedules": handle.schedules(),
            "ordering": handle.ordering(),
        }

    def why(self, table: str, limit: Limit = ITEMS) -> Any:
        """Why a table makes progress or does not, in one sentence."""
        return self._client.table(table).why()

    def snapshots(self, table: str, limit: Limit = ITEMS) -> Any:
        """The snapshots of a table, newest first: the operation that made each, its rows and files."""
        return self._client.table(table).snapshots(page_size=page_size(limit))

    def watermarks(self, table: str, source: str = "", limit: Limit = ITEMS) -> Any:
        """How far each source of a table was ingested, by partition: files by path, topics by offset."""
        marks = self._client.table(table).watermarks(source)
        return [
            {"source": name, "partition": partition, "value": value}
            for name, partitions in marks.items()
            for partition, value in partitions.items()
        ]

    def batches(
        self, table: str, applied: bool = False, unordered: bool = False, limit: Limit = ITEMS
    ) -> Any:
        """The batches that wait in a table's backlog, in their order; or those that were applied.

        unordered: those that wait for no other, also the ones that have failed.
        """
        handle = self._client.table(table)
        return handle.backlog(applied=applied, ordered=not unordered, page_size=page_size(limit))

    def operations(
        self, table: str = "", type: str = "", states: list[State] | None = None, limit: Limit = ITEMS
    ) -> Any:
        """Operations, running and finished, newest first; of one table or of all."""
        wanted = [OperationState(state) for state in states or ()]
        return self._client.operations(table, type=type, states=wanted, page_size=page_size(limit))

    def operation(self, operation: str, limit: Limit = ITEMS) -> Any:
        """One operation: state, jobs, argument, error, facts, its events with times, what jobs have printed
        and logged, and stack traces of user code."""
        handle = self._client.operation(operation)
        return {"operation": handle.get(events=True), "traces": handle.logs()}

    def members(self, limit: Limit = ITEMS) -> Any:
        """The live coordinators and executors, and which coordinator leads which table."""
        return {"members": self._client.members(), "leaders": self._client.leaders()}

    def doctor(self, table: str = "", deep: bool = False, limit: Limit = ITEMS) -> Any:
        """What is wrong with one table or the whole installation, and the remedy of each; repairs nothing.

        deep: also read manifests and check that files exist, which takes longer.
        """
        return self._client.diagnose(table, deep=deep)

    def audit(self, table: str = "", limit: Limit = ITEMS) -> Any:
        """Who did what, newest first: starts, cancellations, decisions; of one table or of all."""
        return self._client.audit(table, page_size=page_size(limit))

    def preview(
        self,
        table: str,
        argument: dict[str, Any],
        type: str = "ingest",
        object: str = "",
        limit: Limit = ITEMS,
    ) -> Any:
        """A dry run: what an operation with this argument would do, or why it is refused; starts nothing.

        For an ingest, `{"paths": ["/data/2024-01-02"]}`: the columns, some rows, and warnings.
        """
        return self._client.preview(table, type, argument, object=object)


TOOLS = tuple(name for name in vars(Tools) if not name.startswith("_"))


def serve(session: Session) -> None:
    """Serve the tools on stdin and stdout until stdin ends. Logs go to stderr."""
    calls = Tools(session.client)
    server: MCPServer[Any] = MCPServer(
        "distop",
        instructions=INSTRUCTIONS,
        version=own_version(),
        log_level="WARNING",
        tools=[_tool(getattr(calls, name), session.suggest) for name in TOOLS],
    )
    # The thread that reads stdin would keep an interrupted process until the next line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.run("stdio")


def _tool(call: Callable[..., Any], suggest: Callable[[DistopError], None]) -> Tool:
    """A call as a tool. It refuses unknown parameters: a misspelt filter would filter nothing."""
    tool = Tool.from_function(
        _answering(call, suggest),
        description=inspect.getdoc(call),
        annotations=ToolAnnotations(read_only_hint=True),
        structured_output=False,
    )
    model = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = create_model(
        model.__name__, __base__=model, __cls_kwargs__={"extra": "forbid"}
    )
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema()
    return tool


def _answering(call: Callable[P, Any], suggest: Callable[[DistopError], None]) -> Callable[P, CallToolResult]:
    """The same call with its result, or its error, as an answer of the protocol."""

    @functools.wraps(call)
    def answer(*args: P.args, **given: P.kwargs) -> CallToolResult:
        try:
            text, failed = answer_text(call(*args, **given), int(str(given.get("limit", ITEMS)))), False
        except DistopError as error:
            suggest(error)
            text, failed = json.dumps({"error": error.fields()}), True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    return answer


def answer_text(result: Any, limit: int) -> str:
    """A result as JSON of at most :data:`MOST_ANSWER` characters and ``limit`` items of each list.

    A list within an item has :data:`ITEMS` or more, if they fit: with fewer keys a merge would be another.
    """
    if isinstance(result, Iterator):
        result = list(islice(result, MOST_COUNTED + 1))
    value = plain(result)
    for items, characters in _SHORTER:
        text = json.dumps(_cut(value, min(limit, items), min(max(limit, ITEMS), items), characters))
        if len(text) <= MOST_ANSWER:
            break
    return text[:MOST_ANSWER]


def _cut(value: Any, items: int, inside: int, characters: int) -> Any:
    """A value with ``items`` of each list, and ``inside`` of each list within an item of one."""
    match value:
        case str():
            return shortened(value, characters)
        case list():
            left = len(value) - items
            more = [_more(left, len(value))] if left > 0 else []
            return [_cut(item, inside, inside, characters) for item in value[:items]] + more
        case dict():
            entries = islice(value.items(), _FIELDS)
            left = len(value) - _FIELDS
            rest = {"...": _more(left, len(value))} if left > 0 else {}
            return {name: _cut(item, items, inside, characters) for name, item in entries} | rest
    return value


def _more(left: int, read: int) -> str:
    return f"{'at least ' if read > MOST_COUNTED else ''}{left} more"
