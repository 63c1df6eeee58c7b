"""Many tables fed from one folder: each folder in it is the landing folder of the table of its name."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable

import fsspec

from distop.client.blocking import Client
from distop.errors import DistopError
from distop.spark_jobs.landing.folder import FileSystem, Landing, Report

log = logging.getLogger(__name__)


class Landings:
    """Feeds every table that has a folder. See ``folder.Landing`` for the parameters."""

    def __init__(
        self,
        client: Client,
        url: str,
        *,
        type: str = "ingest",
        open_file_system: Callable[[str], tuple[FileSystem, str]] = fsspec.core.url_to_fs,
    ) -> None:
        self._client, self._url, self._type = client, url.rstrip("/"), type
        self._open = open_file_system
        self._feeds: dict[str, Landing] = {}
        self._told: dict[str, str] = {}

    def poll(self) -> dict[str, Report]:
        """Look once into the folder of each table; table -> what that came to.

        What is wrong with one table is reported, and keeps no other. Raises when the service does not answer,
        or the folder cannot be read at all.
        """
        fs, root = self._open(self._url)
        fs.invalidate_cache()
        try:
            entries = fs.ls(root, detail=True)
        except FileNotFoundError:
            return {}  # not there yet
        names = sorted(
            posixpath.basename(entry["name"].rstrip("/"))
            for entry in entries
            if entry["type"] == "directory" and entry["name"].rstrip("/") != root.rstrip("/")
        )
        return {table: self._look(table) for table in names if not table.startswith(("_", "."))}

    def _look(self, table: str) -> Report:
        feed = self._feeds.get(table)
        if feed is None:
            feed = Landing(
                self._client, table, f"{self._url}/{table}", type=self._type, open_file_system=self._open
            )
            self._feeds[table] = feed
        try:
            return feed.poll()
        except DistopError as error:
            if error.retryable:
                raise
            problem = f"{error.code}: {error.message}"
        if self._told.get(table) != problem:
            self._told[table] = problem
            log.warning("landing_problem", extra={"table": table, "problem": problem})
        return Report(problems={"": problem})
