"""What the kernel must know so that a server which has vanished without a word is noticed in seconds.

By default data that nobody acknowledges are sent again for a quarter of an hour, and a connection on which nothing is
sent is believed to be alive for two hours. A server that failed over, or a firewall that forgot us, says nothing.
"""

from __future__ import annotations

import os
import socket
from typing import Any

SILENCE = 30
"""Seconds after which a peer that acknowledges nothing is gone."""
IDLE, BETWEEN, PROBES = 15, 5, 3
"""Seconds without traffic before the first probe, between two of them, and how many are sent."""


def libpq_options(dsn: str) -> dict[str, Any]:
    """The same as libpq calls it. What the dsn says about them is the caller's own choice."""
    options = {
        "keepalives_idle": IDLE, "keepalives_interval": BETWEEN, "keepalives_count": PROBES,
        "tcp_user_timeout": SILENCE * 1000,
    }  # fmt: skip
    return {name: value for name, value in options.items() if name not in dsn}


def watch(connection: Any) -> None:
    """Let the kernel notice when the peer of a connection of asyncpg's is gone; other sockets are left alone."""
    transport = getattr(connection, "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE), ("TCP_KEEPINTVL", BETWEEN), ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", SILENCE * 1000),
    ):  # fmt: skip
        if hasattr(socket, name):  # not every system has all of them
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(descriptor: int) -> None:
    """End a connection as if the server had: who waits for it is told at once."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        found.shutdown(socket.SHUT_RDWR)
