"""A program that knows pyiceberg and nothing else: ``python -m chaos.catalog_program PHASE SPACE ID WRITER``.

``make``: makes a namespace and two tables in it, ``a`` and ``b``, and appends a row to ``a``. ``move``:
appends another row to ``a``, renames it to ``c``, and drops ``b`` and a namespace of its own. Several do the
same at the same time; one that is started again after it was killed goes on where it stopped.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from distop.catalog.catalog import EtcdCatalog
from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.etcd.config import EtcdConfig

NOT_KNOWN = (CommitStateUnknownException, OutcomeUnknown)
SCHEMA = pa.schema([("id", pa.int64()), ("batch", pa.string()), ("kind", pa.string())])


def main(phase: str, space: str, identity: str, writer: str) -> None:
    etcd = EtcdConfig.from_env()
    catalog = EtcdCatalog("chaos", **{"etcd.endpoints": ",".join(etcd.endpoints), "etcd.prefix": etcd.prefix})
    first, second, renamed = ((space, name) for name in "abc")
    aside = f"{space}-{writer}"
    if phase == "make":
        properties = {"location": sys.argv[5]}
        for name in (space, aside):
            retry_until_known(
                partial(catalog.create_namespace, name, properties), NamespaceAlreadyExistsError
            )
        for table in (first, second):
            retry_until_known(partial(catalog.create_table, table, SCHEMA), TableAlreadyExistsError)
        append(catalog, int(identity), first)
    else:
        append(catalog, int(identity), first, renamed)
        gone = (NoSuchTableError, TableAlreadyExistsError)
        retry_until_known(lambda: catalog.rename_table(first, renamed), *gone)
        retry_until_known(lambda: catalog.drop_table(second), NoSuchTableError)
        retry_until_known(lambda: catalog.drop_namespace(aside), NoSuchNamespaceError)


def retry_until_known(call: Callable[[], Any], *done: type[Exception]) -> None:
    """Call until it is known that it was done, be it by an earlier call or by somebody else."""
    while True:
        try:
            call()
        except done:
            return
        except (*NOT_KNOWN, CommitFailedException):
            continue
        except DistopError as error:
            if not error.retryable:
                raise
        else:
            return


def append(catalog: EtcdCatalog, identity: int, *names: tuple[str, str]) -> None:
    """Append a row to a table, whichever of these names it has, unless it is there."""
    row = {"id": [identity], "batch": ["foreign"], "kind": ["f"]}
    while True:
        table = present(catalog, *names)
        if table.scan(row_filter=f"id = {identity}").to_arrow().num_rows:
            return
        # It may have been renamed since it was loaded; then nothing has happened.
        with suppress(CommitFailedException, NoSuchTableError, *NOT_KNOWN):
            table.append(pa.table(row, schema=SCHEMA))


def present(catalog: EtcdCatalog, *names: tuple[str, str]) -> Table:
    """The table, by whichever name it has. It goes from the first to the last."""
    while True:
        for name in names:
            with suppress(NoSuchTableError):
                return catalog.load_table(name)


if __name__ == "__main__":
    main(*sys.argv[1:5])
