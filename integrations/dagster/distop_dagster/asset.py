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

from distop.client import Batch, Client, Operation, TableHandle
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
    after its failure; a new run of a partition that was applied replaces it. A run that is interrupted
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
        What was started has failed. With ``allow_retries=False`` the reason does not pass by itself.
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


def _run(
    context: AssetExecutionContext, client: Client, table: str, type: str, argument: Mapping[str, Any]
) -> Operation:
    """The operation of a run without partitions, at its end."""
    run = f"{context.asset_key.to_user_string()}.{context.run.root_run_id or context.run_id}"
    handle = client.start(table, type, argument, run=run)
    context.log.info("operation %s", handle.name)
    try:
        return handle.result()
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        handle.cancel(CANCELLED)
        raise


def _apply(
    context: AssetExecutionContext, client: Client, table: TableHandle, type: str, argument: Mapping[str, Any]
) -> Operation:
    """The operation that has applied the batch of a run."""
    batch = context.partition_key
    replace = _is_to_be_replaced(context, table, batch)
    try:
        table.backfill([batch], type, argument, replace=replace, retry_failed=True)
        *_, progress = table.watch_backfill([batch])
        progress.raise_for_outcome()
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        _take_out(client, table, batch)
        raise
    return client.operation(table.batch(batch).operation).get()


def _is_to_be_replaced(context: AssetExecutionContext, table: TableHandle, batch: str) -> bool:
    """Whether the batch was applied before this run, and not since by an earlier try of it.

    What the first try finds is kept as a tag of the run, before anything is done. A run that repeats a failed
    one has its tags.
    """
    tag = f"distop/{table.name}/{batch}"
    found = _known(table, batch)
    applied_by = found.operation if found is not None and found.state == "applied" else ""
    before = context.instance.get_run_by_id(context.run_id).tags.get(tag)  # type: ignore[union-attr]
    if before is None:
        before = applied_by
        context.instance.add_run_tags(context.run_id, {tag: before})
    return bool(before) and applied_by == before


def _known(table: TableHandle, batch: str) -> Batch | None:
    with suppress(NotFound):
        return table.batch(batch)
    return None


def _take_out(client: Client, table: TableHandle, batch: str) -> None:
    """Cancel what applies the batch, and take it out, so that it does not block the table."""
    with suppress(DistopError):
        found = table.batch(batch)
        if found.state == "running":
            running = client.operation(found.operation)
            running.cancel(CANCELLED)
            running.wait(CANCEL_S)
        table.remove_batch(batch, CANCELLED)
