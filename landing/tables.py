"""Feeds many tables from one folder: each folder in it is the landing folder of the table of its name."""

from __future__ import annotations

from distop.client.blocking import Client
from distop.landing.folder import Landing, Problems, Report
from distop.landing.walk import (
    BACKFILL,
    HISTORY_DONE,
    SUCCESS,
    OpenFileSystem,
    Scope,
    Walk,
    open_file_system,
)


class Landings:
    """Feeds every table with a folder. See ``folder.Landing`` for the parameters."""

    def __init__(
        self,
        client: Client,
        url: str,
        *,
        type: str = "ingest",
        replace: bool = False,
        open_file_system: OpenFileSystem = open_file_system,
    ) -> None:
        self._client, self._url, self._type, self._replace = client, url.rstrip("/"), type, replace
        self._open = open_file_system
        self._feeds: dict[str, Landing] = {}
        self._problems = Problems()

    def poll(self) -> dict[str, Report]:
        """Look once into the folder of each table; return a report by table. An empty name: problems of the
        folder itself.

        Its configuration applies to all tables; a nearer one takes precedence. Problems of one table are
        reported, and do not affect others. Raises :class:`~distop.errors.Unavailable` when the service does
        not answer.
        """
        fs, root = self._open(self._url)
        fs.invalidate_cache()
        walk = Walk(fs, root.rstrip("/"))
        scope = walk.scope(Scope())
        walk.misplaced((SUCCESS, HISTORY_DONE, BACKFILL), "a table's folder")
        walk.search_hidden(root.rstrip("/"), walk.entries)
        self._problems.tell("", walk.problems)
        reports = {"": Report(problems=walk.problems)} if walk.problems else {}
        if scope is None:
            return reports  # nothing is published with an unreadable configuration
        for table in walk.folders():
            reports[table] = self._feed(table).poll(scope)
        return reports

    def _feed(self, table: str) -> Landing:
        if table not in self._feeds:
            self._feeds[table] = Landing(
                self._client,
                table,
                f"{self._url}/{table}",
                type=self._type,
                replace=self._replace,
                open_file_system=self._open,
            )
        return self._feeds[table]
