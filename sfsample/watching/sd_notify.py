"""Reports the state of the service to systemd, if systemd has started it.  Source: sd_notify(3)."""

import os
import socket
import time
from contextlib import suppress

_ALIVE_INTERVAL_S = 30.0  # time between two messages; WatchdogSec= of the unit is longer (cli/service.py)


def notify(*states: str) -> None:
    """Send states to the socket that systemd has named, if any; a failure is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto("\n".join(states).encode(), address)


class Watchdog:
    """Tells systemd every 30 s that sfsample goes on."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def alive(self) -> None:
        """Tell systemd, if 30 s have passed; call this often."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _ALIVE_INTERVAL_S
            notify("WATCHDOG=1")
