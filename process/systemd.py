"""Notifies the service manager that started this process, like systemd's ``sd_notify``."""

from __future__ import annotations

import contextlib
import os
import socket

_PATIENCE_S = 1.0


def notify_manager(state: str) -> None:
    """Send a text such as ``READY=1`` to the socket in ``NOTIFY_SOCKET``; without one: nothing.

    A failure is ignored: it does not prevent serving.
    """
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(_PATIENCE_S)
        # "@" means the zero byte of an abstract name.
        channel.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
