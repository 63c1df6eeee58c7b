"""The commit step of Delta tables: staged files become one version of the table.

The commit carries an application transaction (application id and version, see the Delta protocol): the id
names the table and the kind of operation, the version is the operation's instance number. A table with this
version, or a later one, has the commit; so a commit whose reply was lost is not repeated, and a stale process
commits nothing.

Jobs write the files, and the library only commits them. So what it checks, computes or renames when it
writes rows itself does not happen: a table that needs that would get wrong rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec

from distop.commit.contract import ExternalStep, StepArgument, StepContext, StepState, argument_of
from distop.errors import (
    PermanentStepError,
    PreconditionFailed,
    StepConflict,
    StepSourceMissing,
    Unavailable,
    library,
)
from distop.lake.storage.storage import StorageOptions, delta_options
from distop.lake.storage.stored_file import StoredFile
from distop.metastore.crashpoints import reached
from distop.metastore.records.record import ready

MAX_VERSION = 7
"""The newest version of writers; it lists the features of a table by name."""

_IN_USE_BY = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "generated numbers",
    "CURRENT_DEFAULT": "a default value",
}
"""Fields of a column's metadata that ask for something of writers."""

_BY_USE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
"""Features that delta-rs commits to, and that by themselves ask nothing of the writers of files: only
settings and columns of the table do."""


def refuse_unwritable(table: Any, mode: str = "append") -> None:
    """Raise :class:`~distop.errors.PreconditionFailed`, which names what the table asks of its writers, if
    rows in this mode may not be written as distop does.

    Parameters
    ----------
    table:
        A ``deltalake.DeltaTable``.
    """
    location = table.table_uri
    if mode == "overwrite" and table.metadata().configuration.get("delta.appendOnly") == "true":
        raise PreconditionFailed(
            f"the Delta table at {location} has delta.appendOnly: its rows may not be replaced",
            hint="append to it, or have its owner set delta.appendOnly to false",
            details={"field": "mode"},
        )
    asked = next(_asked(table), None)
    if asked is not None:
        raise PreconditionFailed(
            f"the Delta table at {location} has {asked}, which distop does not apply to the rows it writes",
            hint="write to it with Spark or delta-rs, or remove that from the table",
            details={"field": "table"},
        )


def _asked(table: Any) -> Iterator[str]:
    """What the table asks of writers that distop does not do."""
    settings = table.metadata().configuration
    for name in sorted(settings):
        if name.startswith("delta.constraints."):
            yield f"the CHECK constraint {name.removeprefix('delta.constraints.')!r}"
    if (mapping := settings.get("delta.columnMapping.mode", "none")) != "none":
        yield f"column mapping by {mapping}"
    for column, metadata in _metadata(json.loads(table.schema().to_json())):
        for name, label in _IN_USE_BY.items():
            if name in metadata:
                yield f"{label} for column {column!r}"
    protocol = table.protocol()
    if protocol.min_writer_version > MAX_VERSION:
        yield f"version {protocol.min_writer_version} of Delta's protocol for writers"
    for feature in protocol.writer_features or ():
        if feature not in _BY_USE:
            yield f"the feature {feature}"


def _metadata(kind: Any, column: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The columns of a type in Delta's JSON, nested ones included, with their metadata."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        name = f"{column}.{field['name']}" if column else field["name"]
        yield name, field.get("metadata") or {}
        yield from _metadata(field["type"], name)
    for inner in ("elementType", "keyType", "valueType"):
        yield from _metadata(kind.get(inner), column)


def types_of(schema: Any) -> dict[str, str]:
    """Column -> its type as Delta writes it, without comments and other metadata.

    Parameters
    ----------
    schema:
        A ``deltalake.Schema``.
    """
    fields = json.loads(schema.to_json())["fields"]
    return {field["name"]: _shown(field["type"]) for field in fields}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(_plain(kind), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if name != "metadata"}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


MAX_TRIES = 20
"""Most attempts at a commit when others commit to the table all the time."""


class DeltaFile(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """A Parquet file that becomes part of the table."""

    path: str
    """Relative to the table's folder, the literal path on disk, without escapes."""
    size: int
    modified: int
    """Milliseconds since the Unix epoch."""
    partition: dict[str, str | None] = {}
    """Values of the partition columns, as Delta writes them."""
    stats: dict[str, Any] = {}
    """``numRecords``, ``minValues`` and so on, see the Delta protocol."""


class DeltaArgument(StepArgument):
    """The argument of a :class:`DeltaCommit`."""

    STEP: ClassVar[str] = "delta.commit"

    table: str
    """URL of the table's folder; the first commit creates the table."""
    schema: str
    """Delta's own JSON of the table's schema."""
    mode: Literal["append", "overwrite"] = "append"
    adds: list[str] = msgspec.field(default_factory=list)
    """Columns of the schema to add to the table if they are missing."""
    partition_by: list[str] = msgspec.field(default_factory=list)
    files: list[DeltaFile] = msgspec.field(default_factory=list)
    lists: list[str] = msgspec.field(default_factory=list)
    """Further files: URLs of lists with one :class:`DeltaFile` per line, as JSON, if there are many. Relative
    ones are below ``folder``."""
    folder: str = ""
    expected_version: int | None = None
    """If given, the version that the table must have: -1 if it must not exist yet. A table without files may
    have another one: nothing that others wrote is in the way."""


class DeltaCommit(ExternalStep):
    """Commits files to a Delta table, exactly once."""

    def verify(self, context: StepContext) -> StepState:
        """Whether the table has the version of this operation."""
        argument = argument_of(self, DeltaArgument)
        table = delta_table(argument.table, context.arg.storage)
        return StepState.DONE if _has_it(table, context) else StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`.

        Raises
        ------
        StepConflict
            The table is not at the required version, or has another schema or partitioning.
        StepSourceMissing
            A list of files is gone.
        """
        argument = argument_of(self, DeltaArgument)
        files = list(_files_of(argument, context))
        reached("step.delta.before")
        for _ in range(MAX_TRIES):
            # Delta checks the application transaction only against the state that this handle has loaded: so
            # the step reads and commits on the same handle, and any commit in between makes the attempt fail.
            table = delta_table(argument.table, context.arg.storage)
            if _has_it(table, context):
                break
            _check_version(argument, table)
            context.check()
            if _commit(table, argument, files, context):
                break
        else:
            raise Unavailable(f"{argument.table} changes all the time: {MAX_TRIES} attempts lost a race")
        reached("step.delta.after")

    def undo(self, context: StepContext) -> bool:
        """A commit stays: others may have built on it."""
        return self.verify(context) is StepState.NOT_DONE


def application_of(context: StepContext) -> tuple[str, int]:
    """The application transaction of an operation: id and version. Versions of an id only grow."""
    arg = context.arg
    # By the uuid of distop's record: a table that is dropped and created again counts instances from 1 again.
    names = ["distop", context.table.uuid or arg.table, arg.type, *([arg.object] if arg.object else [])]
    return "/".join(names), arg.instance


def delta_library() -> Any:
    """The library; raises :class:`~distop.errors.ExtraMissing` if it is not installed."""
    return library("deltalake", "delta", "a Delta table")


def delta_table(location: str, storage: StorageOptions | None = None) -> Any:
    """The present table; ``None`` if it does not exist.

    Raises :class:`~distop.errors.ExtraMissing` if ``deltalake`` is not installed.
    """
    library = delta_library()
    try:
        return library.DeltaTable(location, storage_options=delta_options(location, storage))
    except library.exceptions.TableNotFoundError:
        return None


def _has_it(table: Any, context: StepContext) -> bool:
    application, version = application_of(context)
    committed = table.transaction_version(application) if table is not None else None
    return committed is not None and committed >= version


def _check_version(argument: DeltaArgument, table: Any) -> None:
    version = table.version() if table is not None else -1
    if argument.expected_version in (None, version):
        return
    # Adding columns, as this step does before it adds files, makes a version as well.
    if table is None or table.file_uris():
        raise StepConflict(
            f"{argument.table} is at version {version}, the operation began on {argument.expected_version}",
            details={"planned": str(argument.expected_version), "found": str(version)},
        )


def _commit(table: Any, argument: DeltaArgument, files: list[DeltaFile], context: StepContext) -> bool:
    """One attempt; ``False`` if another commit was faster."""
    library = delta_library()
    application, version = application_of(context)
    properties = library.CommitProperties(
        app_transactions=[library.Transaction(application, version)],
        custom_metadata={"distop.operation": str(context.arg.id), "distop.token": context.token},
        max_commit_retries=0,
    )
    actions = [
        library.transaction.AddAction(
            file.path, file.size, file.partition, file.modified, True, json.dumps(file.stats)
        )
        for file in files
    ]
    schema = _schema_of(argument)
    try:
        if table is None:
            library.transaction.create_table_with_add_actions(
                argument.table,
                schema,
                actions,
                mode="error",
                partition_by=argument.partition_by or None,
                storage_options=delta_options(argument.table, context.arg.storage),
                commit_properties=properties,
            )
        else:
            if new := _missing(table, argument, schema):
                # A version of its own, without rows: repeating it finds the columns.
                table.alter.add_columns(new)
                return False
            # With its own schema, which has more than the files know: comments, and columns added meanwhile.
            table.create_write_transaction(
                actions,
                argument.mode,
                table.schema(),
                argument.partition_by or None,
                commit_properties=properties,
            )
    except library.exceptions.CommitFailedError:
        return False
    except library.exceptions.DeltaError:
        if table is None and delta_table(argument.table, context.arg.storage) is not None:
            return False
        raise
    return True


def _missing(table: Any, argument: DeltaArgument, schema: Any) -> list[Any]:
    """Columns to add to the table first.

    Raises :class:`StepConflict` if the files do not fit the table, or it asks for more than distop does.
    """
    try:
        refuse_unwritable(table, argument.mode)
    except PreconditionFailed as error:
        raise StepConflict(error.message, hint=error.hint) from None
    columns = table.metadata().partition_columns
    if list(columns) != argument.partition_by:
        raise StepConflict(
            f"{argument.table} is partitioned by {columns}, the files by {argument.partition_by}"
        )
    known, written = types_of(table.schema()), types_of(schema)
    missing = [field for field in schema.fields if field.name in argument.adds and field.name not in known]
    fitting = [field.name for field in missing]
    odd = [name for name in written if name not in fitting and known.get(name) != written[name]]
    if odd:
        raise StepConflict(f"{argument.table} has other columns than the files: {', '.join(odd)}")
    return missing


def _schema_of(argument: DeltaArgument) -> Any:
    try:
        return delta_library().Schema.from_json(argument.schema)
    except ValueError as error:
        raise PermanentStepError(f"the schema for {argument.table} is invalid: {error}") from error


def _files_of(argument: DeltaArgument, context: StepContext) -> Iterator[DeltaFile]:
    yield from argument.files
    decoder = msgspec.json.Decoder(ready(DeltaFile))
    for name in argument.lists:
        file_list = StoredFile.of(f"{argument.folder}/{name}" if argument.folder else name, context.arg)
        try:
            with file_list.open_to_read() as stream:
                lines = stream.read().splitlines()
        except FileNotFoundError:
            raise StepSourceMissing(f"{file_list.url}, a list of files, is gone") from None
        try:
            yield from (decoder.decode(line) for line in lines if line)
        except msgspec.MsgspecError as error:
            raise PermanentStepError(f"{file_list.url} is not a list of files: {error}") from error
