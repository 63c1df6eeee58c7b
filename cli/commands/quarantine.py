"""``distop quarantine``: the rows that ingests could not read: list, show, export and ingest them again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import typer

from distop.cli.commands.operations import Name, Starting, follow_started
from distop.cli.commands.table_operations import DryRun
from distop.cli.options.bundles import command
from distop.cli.options.ingest import Csv, Reading
from distop.cli.options.parsing import absolute
from distop.cli.options.session import Connected, Limit, TableName, complete_branch, page_size
from distop.client.quarantine import QuarantinedRow, replay_of
from distop.errors import InvalidArgument, PreconditionFailed

group = typer.Typer()


@command(group, "list")
def list_quarantines(session: Connected, table: TableName, limit: Limit = 100) -> None:
    """List the operations of a table that have put rows into quarantine, the newest first.

    Example: distop quarantine list flights
    """
    session.listed("quarantines", session.client.table(table).quarantines(), limit)


@command(group)
def show(session: Connected, operation: Name, limit: Limit = 20) -> None:
    """Show rows in quarantine: where each comes from, why it was bad, and its text.

    Example: distop quarantine show flights/ingest/17 --limit 5
    """
    rows = session.client.operation(operation).quarantined_rows(page_size=page_size(limit))
    session.listed("quarantined", rows, limit)


@command(group)
def export(
    session: Connected,
    operation: Name,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder, on this machine.")],
) -> None:
    """Write rows in quarantine to a file of the format in which they came, to be put right by hand.

    CSV with different headers goes to several files. Ingest them with: distop quarantine replay OPERATION
    --file FOLDER

    Example: distop quarantine export flights/ingest/17 bad-rows
    """
    count, names = _written(session.client.operation(operation).quarantined_rows(), folder)
    session.out.facts(
        f"rows of {operation}", {"rows": count, "files": [str(folder / name) for name in names]}
    )


@command(group)
def replay(
    reading: Reading,
    csv: Csv,
    options: Starting,
    session: Connected,
    operation: Name,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="The rows, put right: files or folders that executors can read. Repeatable. "
            "Default: the rows as they were.",
        ),
    ] = None,
    reingest: Annotated[
        bool, typer.Option("--reingest", help="Replay rows that were replayed before; duplicates them.")
    ] = False,
    branch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write to this branch.", autocompletion=complete_branch),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Ingest rows in quarantine, once: for a repeated command the answer is the operation of the first one.

    They are read as they were the first time, except for what options say. Rows that are bad again go into
    the quarantine of the new operation; if all are, it fails, and they can be replayed again. After a
    rollback that took the rows out, --again replays them.

    Example: distop quarantine replay flights/ingest/17 --on-wider-types widen --wait
    """
    argument = reading.argument() | csv.argument() | {"branch": branch, "reingest": reingest or None}
    argument = {name: value for name, value in argument.items() if value is not None}
    if file:
        argument["paths"] = [absolute(path) for path in file]
    handle = session.client.operation(operation)
    of, digest = handle.get(), _digest(argument.get("paths", ()))
    given, run = replay_of(of, argument, digest)
    if dry_run:
        session.out.preview(session.client.preview(of.table, "ingest", given))
        return
    how = options.given(run=run)
    follow_started(session, options, lambda: handle.replay(argument, digest=digest, **how))


def _written(rows: Iterator[QuarantinedRow], folder: Path) -> tuple[int, list[str]]:
    """Write all rows, or leave nothing; how many, and the names of the files."""
    count, names, at = 0, dict[str, str](), ""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidArgument(
            f"{folder} exists", hint="name a new folder", details={"field": "folder"}
        ) from None
    with ExitStack() as undo, ExitStack() as opened:
        undo.callback(folder.rmdir)
        stream: BinaryIO | None = None
        for row in rows:
            _check_text(row)
            if row.header not in names:
                suffix = f"-{len(names) + 1}" if names else ""
                names[row.header] = f"rows{suffix}.{row.format}"
                path = folder / names[row.header]
                path.write_bytes(f"{row.header}\n".encode() if row.header else b"")
                undo.callback(path.unlink)
            if stream is None or row.header != at:
                opened.close()
                stream, at = opened.enter_context((folder / names[row.header]).open("ab")), row.header
            # In JSON a line break can only be where a space can.
            stream.write((row.text.replace(b"\n", b" ") if row.format == "jsonl" else row.text) + b"\n")
            count += 1
        if count:
            undo.pop_all()
    return count, list(names.values()) if count else []


def _check_text(row: QuarantinedRow) -> None:
    if row.format not in ("csv", "jsonl"):
        raise PreconditionFailed(
            f"{row.position}: rows of {row.format} are no text that could be exported",
            hint="distop quarantine show --limit 0 --output json has what is known of them",
        )
    if row.cut:
        raise PreconditionFailed(
            f"{row.position}: only the beginning of this row was kept", hint="take it from its source"
        )


def _digest(paths: Any) -> str:
    """The digest of local files: other content under the same name is other rows."""
    digest = sha256()
    for path in paths if isinstance(paths, list) else [paths]:
        if urlsplit(path).scheme:
            continue
        root = Path(path)
        inside = [Path(top, name) for top, _, names in os.walk(root) for name in names]
        for each in sorted(inside) or [root]:
            try:
                with each.open("rb") as stream:
                    digest.update(file_digest(stream, "sha256").digest())
            except OSError as error:
                raise InvalidArgument(f"{each} cannot be read: {error}", details={"field": "file"}) from None
    return digest.hexdigest()
