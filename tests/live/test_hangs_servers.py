"""Hangs of real servers, redis and PostgreSQL, and of a file system that does not answer.

The servers are Debian's packages, which scripts/setup installs.  Mounting a file system needs root.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.cli_runner import is_root
from tests.live.hanging import Dumped, calls, find
from tests.live.targets import HANG_S, assert_untraced, first_line, states, status, wait_until
from tests.live.test_cli_errors import wchan

pytestmark = [pytest.mark.live, pytest.mark.any_load]
REDIS, INITDB, POSTGRES, PSQL = (find(name) for name in ("redis-server", "initdb", "postgres", "psql"))


@contextmanager
def child(*words: object, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until the end of the block."""
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    with subprocess.Popen([*map(str, words)], **quiet) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            process.wait(HANG_S)


# -- redis


def answers(path: Path) -> bool:
    """Whether redis answers PING."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16) == b"+PONG\r\n"
    except OSError:
        return False


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_redis_in_debug_sleep_says_how_long(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    flags = (
        "--port",
        0,
        "--unixsocket",
        path,
        "--save",
        "",
        "--dir",
        tmp_path,
        "--enable-debug-command",
        "yes",
    )
    with child(REDIS, *flags) as server:
        wait_until(lambda: answers(path), "redis answers")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"DEBUG SLEEP 1000\r\n")
            wait_until(lambda: calls(server.pid)["clock_nanosleep"], "it sleeps")
            dumped = Dumped(server.pid)
            assert dumped.kinds == ["main"]
            dumped.assert_says(
                rf"^=> the main thread \({server.pid}\) sleeps (9\d\d|1000)\.\d s "
                r"more of 1000 s, in debugCommand <- call <- processCommand$"
            )
            assert_untraced(server.pid)


# -- PostgreSQL


def as_postgres() -> list[str]:
    """Return the command prefix that runs a program as a user that PostgreSQL accepts."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if is_root() else []


def succeeds(words: list[str]) -> bool:
    return subprocess.run(words, capture_output=True, check=False, timeout=2 * HANG_S).returncode == 0


@contextmanager
def postgres(directory: Path) -> Iterator[list[str]]:
    """Run a server; yield the command line of its psql."""
    if is_root():
        os.chown(directory, 65534, 65534)
    data, user = directory / "data", as_postgres()
    environment = {**os.environ, "PGUSER": "tester", "LC_ALL": "C"}
    run = {"env": environment, "cwd": "/", "stdout": subprocess.DEVNULL, "timeout": 120}
    words = [*user, str(INITDB), "-D", str(data), "-A", "trust", "-N", "-U", "tester"]
    subprocess.run(words, check=True, **run)  # type: ignore[call-overload]
    flags = ["-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off"]
    flags += ["-c", "deadlock_timeout=1h"]  # after it a waiting backend wakes up
    with child(*user, POSTGRES, *flags, env=environment, cwd="/") as server:
        psql = [*user, str(PSQL), "-h", str(directory), "-U", "tester", "-q", "-d", "postgres"]
        wait_until(lambda: succeeds([*psql, "-c", "select"]), "PostgreSQL answers")
        yield psql
        server.send_signal(2)  # SIGINT: fast shutdown, which does not wait for clients


def waiting(directory: Path) -> list[int]:
    """Return the backends that wait for a lock, as their titles say."""
    lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
    with open(f"/proc/{lines[0]}/task/{lines[0]}/children", encoding="ascii") as file:
        pids = [int(word) for word in file.read().split()]
    return [pid for pid in pids if title(pid).endswith(b" UPDATE waiting")]


def title(pid: int) -> bytes:
    """Return the title of a backend; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Yield a directory that another user can reach; those of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="sfsample-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.mark.skipif(not (INITDB and POSTGRES and PSQL), reason="PostgreSQL is not installed")
def test_postgresql_backend_waits_for_a_row_lock(public_path: Path) -> None:
    with postgres(public_path) as psql:
        subprocess.run([*psql, "-c", "create table t as select 1 as i"], check=True, timeout=2 * HANG_S)
        with child(*psql, "-At", stdout=subprocess.PIPE) as holder:
            assert holder.stdin is not None
            holder.stdin.write(b"begin; update t set i = 2; select 'held';\n")
            holder.stdin.flush()
            assert first_line(holder) == "held"
            with child(*psql, "-c", "update t set i = 3"):
                wait_until(lambda: waiting(public_path), "an update waits")
                assert_waits_for_lock(*waiting(public_path))


def assert_waits_for_lock(pid: int) -> None:
    wait_until(lambda: states(pid) == {"S"}, "asleep")
    dumped = Dumped(pid)
    assert dumped.kinds == ["database lock"]
    dumped.assert_says(
        rf"^=> process {pid} \(postgres\) has waited [0-9.]+ s for a PostgreSQL lock: "
        rf"SELECT pg_blocking_pids\({pid}\) names the process that holds it,"
    )
    assert f"process {pid} postgres: postgres: tester postgres [local] UPDATE waiting" in dumped.text
    assert_untraced(pid)


# -- a file system that does not answer

FUSE = """
import ctypes, os, struct, sys
# mount a FUSE file system, answer the first request of the kernel, and no other
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse.silent", 0, options):
    print("no", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit(0)
print("mounted", flush=True)
request = os.read(fd, 1 << 17)
length, opcode, unique = struct.unpack_from("=IIQ", request)
assert opcode == 26  # FUSE_INIT
body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 10, 1 << 16, 1, 32, 0, 0)
os.write(fd, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
while os.read(fd, 1 << 17):
    pass
"""

READER = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
os.stat(sys.argv[1])
"""


@pytest.mark.skipif(not is_root() or not os.access("/dev/fuse", os.R_OK), reason="needs root and /dev/fuse")
def test_silent_file_system_blocks_uninterruptibly(tmp_path: Path) -> None:
    """A thread that opens a file on it sleeps; after a signal only SIGKILL ends that sleep: state D."""
    with child(sys.executable, "-c", FUSE, tmp_path, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        if daemon.stdout.readline() != b"mounted\n":
            pytest.skip("file systems may not be mounted here")
        try:
            with child(sys.executable, "-c", READER, tmp_path / "file") as reader:
                wait_until(lambda: wchan(reader.pid) == b"request_wait_answer", "it waits for an answer")
                reader.send_signal(signal.SIGUSR1)
                wait_until(lambda: status(reader.pid)["State"].startswith("D"), "in state D")
                dumped = Dumped(reader.pid)
                assert dumped.kinds == ["kernel"]
                dumped.assert_says(
                    rf"process {reader.pid} \(python\S*\) has waited [0-9.]+ s for the kernel for "
                    rf"\w+\({tmp_path}/file\), uninterruptibly, in request_wait_answer: "
                    ".*; signals, often even kill -9, take effect only when the call ends"
                )
                daemon.kill()
        finally:
            daemon.kill()
            subprocess.run(["umount", "-l", tmp_path], check=False)
