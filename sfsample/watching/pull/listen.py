"""Opens the pull door: the socket, the token, and the thread that accepts connections."""

import os
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from shlex import quote

from sfsample.errors import NoThread, SfsampleError
from sfsample.watching.options import Listen, read_secret
from sfsample.watching.pull.door import Door
from sfsample.watching.pull.server import Server

_TOKEN = re.compile(rb"[!-~]{16,}")
_ACCEPT_POLL_S = 0.1


@contextmanager
def listening(where: str | tuple[str, int], how: Listen, door: Door) -> Iterator[str]:
    """Answer requests while the context is entered; yield the address."""
    token = None if how.token_file is None else _token(how.token_file)
    try:
        with _free(where) if isinstance(where, str) else nullcontext():
            server = Server(where, door, token, how.hosts)
    except OSError as failure:
        name = f"unix:{where}" if isinstance(where, str) else ":".join(map(str, where))
        raise SfsampleError(f"cannot listen: {name}: {failure.strerror or failure}",
                            "choose another address or path after --listen") from None  # fmt: skip
    # block signals: in a thread of the server, a signal would not wake the main thread or the tracing thread
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=server.serve_forever, args=(_ACCEPT_POLL_S,), daemon=True).start()
    except RuntimeError:
        server.socket.close()
        raise NoThread from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield _shown(server)
    finally:
        door.has_ended = True
        server.shutdown()
        with suppress(RuntimeError):  # a thread could not be started
            server.server_close()
        if isinstance(where, str):
            with suppress(OSError):
                os.unlink(where)


@contextmanager
def _free(path: str) -> Iterator[None]:
    """Make new sockets private to this user; first remove an old one that no program listens on."""
    with suppress(FileNotFoundError):
        old = os.lstat(path)
        with socket.socket(socket.AF_UNIX) as probe:
            is_mine = stat.S_ISSOCK(old.st_mode) and old.st_uid == os.geteuid()
            if is_mine and probe.connect_ex(path):
                os.unlink(path)
    umask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(umask)


def _shown(server: Server) -> str:
    address = server.socket.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _token(path: str) -> bytes:
    token = read_secret(path).strip()
    if not _TOKEN.fullmatch(token):
        raise SfsampleError(f"no token of at least 16 letters, digits or signs: {path}",
                            f"make one: (umask 077; openssl rand -hex 32 > {quote(path)})")  # fmt: skip
    return token
