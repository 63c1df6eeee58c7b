"""A table of distop as an asset."""

# No annotations as texts here: Dagster compares that of an asset's context with its class.

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterExecutionInterruptedError,
    Failure,
    MaterializeResult,
    MetadataValue,
    PartitionsDefinition,
    asset,
)

from distop.client import Client, Operation, TableHandle
from distop.errors import DistopError, NotFound
from distop.proto.messages import plain
from distop_dagster.resource import DistopResource

CANCELLED = "the run in Dagster was interrupted"
CANCEL_S = 20.0
"""How long an interrupted run waits for its operation to end, to take its batch out."""


def distop_asset(
    *,
    table: str,
    argument: Mapping[str, Any],
    type: str = "ingest",
    partitions_def: PartitionsDefinition[Any] | None = None,
    name: str | None = None,
    **settings: Any,
) -> AssetsDefinition:
    """An asset that is a table of distop.

    With partitions, each is a batch of the table's backlog: it is applied in its order, and when it is
    materialized again, its rows are replaced in one transaction. A run materializes one partition. Without
    partitions, each run starts an operation.

    A step that is retried finds what an earlier try has queued or started. So does a run that repeats a run
    after its failure; any other run of a partition that was applied replaces it. A run that is interrupted
    cancels what it waits for; one that is killed leaves it running, for the next.

    Parameters
    ----------
    table, type, argument:
        The operation. In texts of the argument of a batch ``{{ batch }}`` is the partition's key, and
        ``{{ tick | date('%Y/%m') }}`` the time that it shows.
    partitions_def:
        Keys are ordered byte by byte, as those of days are.
    name:
        Of the asset. Default: the table's, with underscores in place of dots.
    settings:
        Others of ``dagster.asset``: ``deps``, ``retry_policy``, ``group_name``, ...

    Raises
    ------
    Failure
        What was started has failed, or the batch was skipped. With ``allow_retries=False`` the reason does
        not pass by itself.
    """

    @asset(name=name or table.replace(".", "_"), partitions_def=partitions_def, **settings)
    def materialize(context: AssetExecutionContext, distop: DistopResource) -> MaterializeResult[Any]:
        with distop.client() as client:
            try:
                if partitions_def is None:
                    operation = _run(context, client, table, type, argument)
                else:
                    operation = _apply(context, client, client.table(table), type, argument)
            except DistopError as error:
                raise Failure(
                    f"{error.code}: {error}",
                    metadata={name: value for name, value in plain(error.fields()).items() if value},
                    allow_retries=error.retryable,
                ) from error
        shown = {name: value for name, value in plain(operation.facts).items() if value is not None}
        page = distop.page_of(operation.name)
        return MaterializeResult(
            metadata={
                "operation": MetadataValue.url(page) if page else operation.name,
                **({"dagster/row_count": shown["rows"]} if "rows" in shown else {}),
                **shown,
            }
        )

    return materialize


def _first_run(context: AssetExecutionContext) -> str:
    """The id of the run whose work this one does: the first of those whose failure it repeats, else its own.

    That of a run that repeats one which has succeeded is its own: it does the work once more.
    """
    run = context.run
    while run.parent_run_id and (parent := context.instance.get_run_by_id(run.parent_run_id)) is not None:
        if parent.is_success:
            break
        run = parent
    return run.run_id


def _run(
    context: AssetExecutionContext, client: Client, table: str, type: str, argument: Mapping[str, Any]
) -> Operation:
    """The operation of a run without partitions, at its end."""
    run = f"dagster/{context.asset_key.to_user_string()}/{_first_run(context)}"
    handle = None
    try:
        handle = client.start(table, type, argument, run=run)
        context.log.info("operation %s", handle.name)
        return handle.result()
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        with suppress(DistopError):
            # Without its answer the start may have been done: another one finds the operation.
            (handle or client.start(table, type, argument, run=run)).cancel(CANCELLED)
        raise


def _apply(
    context: AssetExecutionContext, client: Client, table: TableHandle, type: str, argument: Mapping[str, Any]
) -> Operation:
    """The operation that has applied the batch of a run."""
    batch = context.partition_key
    before = _applied_before(context, table, batch)
    try:
        replace = bool(before) and _applied_by(table, batch) == before
        table.backfill([batch], type, argument, replace=replace, retry_failed=True)
        _wait(context, table, batch)
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        _take_out(client, table, batch)
        raise
    queued = table.batch(batch)
    if queued.state == "applied" and queued.operation != before:
        return client.operation(queued.operation).get()
    why = "the table still has the rows of before: its replacement was skipped or taken out"
    if queued.state != "applied":
        why = (
            f"it was skipped by {queued.decided_by or 'somebody'}; if its rows are not in the table, publish "
            f"it again, with its argument: distop batch add {table.name} {batch} --republish"
        )
    raise Failure(f"batch {batch!r} of table {table.name!r} was not applied: {why}", allow_retries=False)


def _applied_before(context: AssetExecutionContext, table: TableHandle, batch: str) -> str:
    """What had applied the batch before this run, or the failed ones that it repeats; empty: nothing had.

    What the first try finds is kept as a tag of the first run, before anything is done.
    """
    first = _first_run(context)
    tag = f"distop/{table.name}/{batch}/{first}"  # a run that repeats another one may have a copy of its tags
    tags = context.instance.get_run_by_id(first).tags  # type: ignore[union-attr]
    if tag not in tags:
        tags = {tag: _applied_by(table, batch)}
        context.instance.add_run_tags(first, tags)
    return str(tags[tag])


def _applied_by(table: TableHandle, batch: str) -> str:
    with suppress(NotFound):
        if (queued := table.batch(batch)).state == "applied":
            return queued.operation
    return ""


def _wait(context: AssetExecutionContext, table: TableHandle, batch: str) -> None:
    """Wait until the batch has come to its end, and log what it waits for."""
    logged = ""
    for progress in table.watch_backfill([batch]):
        progress.raise_for_outcome()
        if not progress.done and (why := table.why()).sentence != logged and why.mood in ("waiting", "stuck"):
            logged = why.sentence
            context.log.warning("batch %s waits: %s", batch, logged)


def _take_out(client: Client, table: TableHandle, batch: str) -> None:
    """Cancel what applies the batch, and take it out, so that it does not block the table."""
    with suppress(DistopError):
        queued = table.batch(batch)
        if queued.state == "running":
            running = client.operation(queued.operation)
            running.cancel(CANCELLED)
            running.wait(CANCEL_S)
        table.remove_batch(batch, CANCELLED)
