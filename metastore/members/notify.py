"""A word to the service manager that started this process, as systemd's ``sd_notify`` sends it."""

from __future__ import annotations

import contextlib
import os
import socket

_PATIENCE_S = 1.0


def tell_manager(state: str) -> None:
    """Send ``READY=1``, say, to the socket that ``NOTIFY_SOCKET`` names; nothing where there is none.

    A manager that does not listen is no reason not to serve.
    """
    if not (place := os.environ.get("NOTIFY_SOCKET")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_PATIENCE_S)
        # "@" stands for the zero byte of an abstract name.
        channel.sendto(state.encode(), f"\0{place[1:]}" if place.startswith("@") else place)
