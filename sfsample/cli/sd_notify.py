"""Tells systemd how a service is: READY=1, STATUS=..., WATCHDOG=1.  Elsewhere it does nothing.

Source: sd_notify(3).
"""

import os
import socket
from contextlib import suppress


def notify(*states: str) -> None:
    """Send states to the socket that systemd has named; a failure is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(
            "\n".join(states).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address
        )
