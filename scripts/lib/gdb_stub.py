"""Reads registers and memory of a program under qemu's user emulation, through qemu's gdb stub.

It uses a few packets of the gdb manual, "Remote Protocol".  The program is killed at the end.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_MAX_WAIT_S = 20.0


class Stub:
    """A connection to the stub."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, command: str) -> str:
        """Send a packet; return the text of the answer."""
        self._connection.sendall(f"${command}#{sum(command.encode()) % 256:02x}".encode())
        data = b""
        while data.count(b"#") == 0 or len(data.partition(b"#")[2]) < 2:
            received = self._connection.recv(4096)
            if not received:
                raise ConnectionError(f"qemu closed the connection after {command!r}")
            data += received
        self._connection.sendall(b"+")
        return data.partition(b"$")[2].partition(b"#")[0].decode()

    def read(self, address: int, size: int) -> bytes:
        """Return memory."""
        return bytes.fromhex(self.ask(f"m{address:x},{size:x}"))


@contextmanager
def stopped_at_start(qemu: str, program: Path, port: int = 14321) -> Iterator[Stub]:
    """Run a program under qemu, stopped before its first instruction."""
    with subprocess.Popen([qemu, "-g", str(port), program], stderr=subprocess.DEVNULL) as process:
        try:
            with closing(_connect(port)) as connection:
                yield Stub(connection)
        finally:
            process.kill()


def _connect(port: int) -> socket.socket:
    end = time.monotonic() + _MAX_WAIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), _MAX_WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
