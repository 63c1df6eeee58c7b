"""Removes the folders of dead installations: no sidecar has run there for long.

A folder with scratch in it may be resumed from, so it is kept for a week; any other one holds a log and empty
locks, and is created again when needed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from distop.executor.host.sidecar_folder import SidecarFolder, take_lock

log = logging.getLogger(__name__)

IDLE_S = 3600.0
"""How long a folder must have been unused."""

IDLE_WITH_SCRATCH_S = 7 * 86_400.0

_NAME = re.compile(r"[0-9a-f]{16}")
_CONDEMNED = ".dead-"


def sweep_folders(own: SidecarFolder, *, now: float | None = None) -> list[Path]:
    """Remove dead folders next to ``own``; return them.

    Does nothing if ``own`` was set by hand: then the folders next to it are not ours.
    """
    base = own.folder.parent
    if base.name != f"distop-{os.getuid()}":
        return []
    removed = []
    now = time.time() if now is None else now
    for folder in sorted(base.iterdir()):
        if folder.name.startswith(_CONDEMNED):
            shutil.rmtree(folder, ignore_errors=True)  # a sweep was killed half-way
        elif folder != own.folder and _NAME.fullmatch(folder.name):
            place = SidecarFolder(folder)
            if _is_dead(place, now) and _remove(place):
                removed.append(folder)
    if removed:
        log.info("dead_folders_removed", extra={"folders": len(removed)})
    return removed


def _is_dead(place: SidecarFolder, now: float) -> bool:
    try:
        used = max(path.lstat().st_mtime for path in (place.folder, *place.folder.iterdir()))
        has_scratch = place.scratch.exists() and any(place.scratch.iterdir())
    except OSError:
        return False
    return now - used > (IDLE_WITH_SCRATCH_S if has_scratch else IDLE_S)


def _remove(place: SidecarFolder) -> bool:
    """Remove a folder, unless a sidecar runs there or is about to start."""
    locks: list[int] = []
    try:
        for path in (place.starting_lock, place.service_lock, place.serving_lock):
            lock = take_lock(path)
            if lock is None:
                return False
            locks.append(lock)
        # At once, and under a name that no process looks for: the next process makes a new one.
        condemned = place.folder.with_name(f"{_CONDEMNED}{place.folder.name}-{os.getpid()}")
        os.rename(place.folder, condemned)
        shutil.rmtree(condemned, ignore_errors=True)
    except OSError as error:
        log.info("folder_not_removed", extra={"folder": str(place.folder), "error": str(error)})
        return False
    finally:
        for lock in locks:
            with suppress(OSError):
                os.close(lock)
    return True
