"""The inner side of a worker: it runs one call after the other, in the main thread of its process."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
import traceback
from contextlib import suppress
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

from distop.errors import Crashed
from distop.process.frames import ALIVE, ERROR, LOG, RESULT, Link

SIGN_OF_LIFE_S = 0.5
"""Shortest interval between a call's signs of life."""

_PARENT_S = 1.0


def main(file: int, parent: int) -> None:
    """Be a worker of this parent, at the other end of this socket, until either is gone."""
    threading.Thread(target=_outlive_nobody, args=(parent,), daemon=True).start()
    serve(Link(socket.socket(fileno=file)), logging.WARNING)
    os._exit(0)


def serve(link: Link, log_level: int) -> None:
    """Run the calls that come over a link until it ends."""
    global _parent
    _parent = link
    logging.basicConfig(level=log_level, handlers=[_ToParent(link)], force=True)
    with suppress(ConnectionError):  # the parent has gone
        while True:
            try:
                message = link.receive()
                if message is None:
                    return
                prepare, call = message[1]
                if prepare is not None:
                    prepare()
                # What was loaded for it is no part of the call, whose time begins now.
                link.send(ALIVE)
                result = call()
            except BaseException as error:  # sys.exit() in a hook must not end the worker either
                _failed(link, error)
            else:
                _succeeded(link, result)


_parent: Link | None = None
_shown = 0.0


def alive() -> None:
    """A sign of life of the call that this process runs: its time limit begins anew."""
    global _shown
    now = time.monotonic()
    if _parent is not None and now - _shown > SIGN_OF_LIFE_S:
        _shown = now
        _parent.send(ALIVE)


def _succeeded(link: Link, result: Any) -> None:
    try:
        link.send(RESULT, result)
    except ConnectionError:
        raise
    except Exception as error:  # such as a result that cannot be pickled
        _failed(link, error)


def _failed(link: Link, error: BaseException) -> None:
    carried = portable(error)
    try:
        pickle.loads(pickle.dumps(carried))
    except Exception:  # some errors cannot be sent
        carried = _stand_in(carried)
    link.send(ERROR, carried if isinstance(carried, Exception) else _stand_in(carried))


def portable(error: BaseException) -> BaseException:
    """An error that can be sent to another process, with its stack trace as a note."""
    note = "".join(traceback.format_exception(error)).rstrip()
    for each in (error, getattr(error, "cause", None)):
        if isinstance(each, BaseException):
            each.__notes__ = [*getattr(each, "__notes__", ()), f"in a separate process:\n{note}"]
    return error


def _stand_in(error: BaseException) -> Crashed:
    crashed = Crashed(f"{type(error).__name__}: {error}")
    crashed.__notes__ = list(getattr(error, "__notes__", ()))
    return crashed


class _ToParent(QueueHandler):
    """Sends log records to the parent, which logs them."""

    def __init__(self, link: Link) -> None:
        super().__init__(SimpleQueue())  # unused: see enqueue
        self._link = link

    def enqueue(self, record: logging.LogRecord) -> None:
        self._link.send(LOG, vars(record))


def _outlive_nobody(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(1)
