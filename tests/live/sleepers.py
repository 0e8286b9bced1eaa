"""Starts threads that sleep, each in another system call, and reports each call that returns.

    python sleepers.py FD [NAME ...]        every call of CALLS, or those that are named

No call has a reason to return: each waits for an event that never comes, or for an hour.  So a line
`returned NAME ERRNO` means that a sampler disturbed the thread.  The program writes `ready PID` when every
thread is in its call; each thread has the name of its call.  Threads call libc's `syscall`, which does not
restart an interrupted call.
"""

import ctypes
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from sfsample.process.syscall_names import syscall_name

libc = ctypes.CDLL(None, use_errno=True)
Words = ctypes.c_long * 64
# new system calls have the same number on every architecture; python-ptrace does not know all of them
NUMBERS = {syscall_name(number): number for number in range(500)}
NUMBERS |= {"io_uring_enter": 426, "epoll_pwait2": 441, "futex_waitv": 449}
HOUR = Words(3600, 0)
NONE = ctypes.c_void_p(None)
ANY = ctypes.c_uint(~0)
CLOCK_MONOTONIC, FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_LOCK_PI = 1, 0, 9, 6
AF_UNIX_PAIR = socket.socketpair()
keep: list[object] = [AF_UNIX_PAIR]  # objects that the kernel points to


def words(*values: int) -> ctypes.Array[ctypes.c_long]:
    made = Words(*values)
    keep.append(made)
    return made


def empty_pipe() -> int:
    ends = os.pipe()
    keep.append(ends)
    return ends[0]


def pipe_to_fill() -> int:
    ends = os.pipe()
    keep.append(ends)
    return ends[1]


def full_pipe() -> int:
    _, end = os.pipe()
    os.set_blocking(end, False)
    try:
        while True:
            os.write(end, bytes(65536))
    except BlockingIOError:
        os.set_blocking(end, True)
    return end


def poll_entry() -> ctypes.Array[ctypes.c_int]:
    made = (ctypes.c_int * 2)(empty_pipe(), *struct.unpack("i", struct.pack("hh", 1, 0)))
    keep.append(made)
    return made


def read_set(fd: int) -> ctypes.Array[ctypes.c_long]:
    made = words()
    made[fd // 64] = 1 << fd % 64
    return made


def child() -> int:
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        time.sleep(3600)
        os._exit(0)
    return pid


def aio_context() -> int:
    context = ctypes.c_ulong(0)
    libc.syscall(NUMBERS["io_setup"], 8, ctypes.byref(context))
    return context.value


def uring() -> int:
    return int(libc.syscall(425, 4, (ctypes.c_char * 120)()))


def reader(fd: int) -> tuple[int, ...]:
    return (fd, words(), 8)


def timed_socket() -> int:
    ours, theirs = socket.socketpair()
    ours.settimeout(None)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3600, 0))
    keep.append((ours, theirs))
    return ours.fileno()


def queue() -> int:
    attributes = words(0, 1, 8)
    name = f"sfsample-{os.getpid()}".encode()
    made = int(libc.syscall(NUMBERS["mq_open"], name, os.O_CREAT | os.O_RDWR, 0o600, attributes))
    libc.syscall(NUMBERS["mq_unlink"], name)
    return made


def locked_file() -> int:
    """Lock a file through one open file description; return another, through which a thread can wait."""
    import fcntl

    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)  # noqa: S108
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    keep.append(fd)
    return again


def held_futex() -> ctypes.Array[ctypes.c_int]:
    """Return a priority-inheriting lock that the main thread holds."""
    made = (ctypes.c_int * 1)(os.getpid())
    keep.append(made)
    return made


def waiter() -> ctypes.Array[ctypes.c_long]:
    """Return a struct futex_waitv for a futex of 32 bits."""
    return words(0, ctypes.addressof(words(0)), *struct.unpack("l", struct.pack("II", 2, 0)))


def down() -> ctypes.Array[ctypes.c_long]:
    """Return a struct sembuf that decrements semaphore 0."""
    return words(*struct.unpack("l", struct.pack("Hhhh", 0, -1, 0, 0)))


def semaphores() -> int:
    made = int(libc.syscall(NUMBERS["semget"], 0, 1, 0o600))
    ipc.append((NUMBERS["semctl"], made))
    return made


def messages() -> int:
    made = int(libc.syscall(NUMBERS["msgget"], 0, 0o600))
    ipc.append((NUMBERS["msgctl"], made))
    return made


ipc: list[tuple[int, int]] = []
SIGNALS = words(1 << 11)  # SIGUSR2, blocked everywhere
# name: system call, its arguments
CALLS: dict[str, tuple[str, Callable[[], tuple[object, ...]]]] = {
    "read_pipe": ("read", lambda: reader(empty_pipe())),
    "read_eventfd": ("read", lambda: reader(os.eventfd(0))),
    "read_inotify": ("read", lambda: reader(libc.inotify_init())),
    "write_pipe": ("write", lambda: (full_pipe(), words(1), 8)),
    "write_partly": ("write", lambda: (pipe_to_fill(), bytes(1 << 17), 1 << 17)),
    "poll": ("poll", lambda: (poll_entry(), 1, -1)),
    "poll_timeout": ("poll", lambda: (poll_entry(), 1, 3_600_000)),
    "ppoll": ("ppoll", lambda: (poll_entry(), 1, NONE, NONE, 8)),
    "select": ("select", lambda: (64, read_set(empty_pipe()), NONE, NONE, NONE)),
    "pselect6": ("pselect6", lambda: (64, read_set(empty_pipe()), NONE, NONE, words(3600), NONE)),
    "nanosleep": ("nanosleep", lambda: (HOUR, NONE)),
    "clock_nanosleep": ("clock_nanosleep", lambda: (CLOCK_MONOTONIC, 0, HOUR, NONE)),
    "nanosleep_until": ("clock_nanosleep", lambda: (CLOCK_MONOTONIC, 1, words(1 << 32), NONE)),
    "futex": ("futex", lambda: (words(0), FUTEX_WAIT, 0, NONE)),
    "futex_timeout": ("futex", lambda: (words(0), FUTEX_WAIT, 0, HOUR)),
    "futex_bitset": ("futex", lambda: (words(0), FUTEX_WAIT_BITSET, 0, words(1 << 32), NONE, ANY)),
    "futex_lock_pi": ("futex", lambda: (held_futex(), FUTEX_LOCK_PI, 0, NONE)),
    "futex_waitv": ("futex_waitv", lambda: (waiter(), 1, 0, NONE, 0)),
    "wait4": ("wait4", lambda: (child(), NONE, 0, NONE)),
    "waitid": ("waitid", lambda: (1, child(), words(), 4, NONE)),
    "pause": ("pause", lambda: ()),
    "rt_sigsuspend": ("rt_sigsuspend", lambda: (words(1 << 11), 8)),
    "rt_sigtimedwait": ("rt_sigtimedwait", lambda: (SIGNALS, NONE, NONE, 8)),
    "epoll_wait": ("epoll_wait", lambda: (libc.epoll_create1(0), words(), 1, -1)),
    "epoll_pwait": ("epoll_pwait", lambda: (libc.epoll_create1(0), words(), 1, -1, NONE, 8)),
    "epoll_pwait2": ("epoll_pwait2", lambda: (libc.epoll_create1(0), words(), 1, NONE, NONE, 8)),
    "semop": ("semop", lambda: (semaphores(), down(), 1)),
    "semtimedop": ("semtimedop", lambda: (semaphores(), down(), 1, HOUR)),
    "msgrcv": ("msgrcv", lambda: (messages(), words(), 8, 0, 0)),
    "mq_timedreceive": ("mq_timedreceive", lambda: (queue(), words(), 8, NONE, NONE)),
    "io_getevents": ("io_getevents", lambda: (aio_context(), 1, 1, words(), NONE)),
    "io_pgetevents": ("io_pgetevents", lambda: (aio_context(), 1, 1, words(), NONE, NONE)),
    "io_uring_enter": ("io_uring_enter", lambda: (uring(), 0, 1, 1, NONE, 8)),
    "recvfrom": ("recvfrom", lambda: (socket_end(), words(), 8, 0, NONE, NONE)),
    "recvfrom_timeout": ("recvfrom", lambda: (timed_socket(), words(), 8, 0, NONE, NONE)),
    "read_socket_timeout": ("read", lambda: reader(timed_socket())),
    "accept": ("accept", lambda: (listener(), NONE, NONE)),
    "flock": ("flock", lambda: (locked_file(), 2)),
    "open_fifo": ("open", lambda: (fifo(), os.O_RDONLY)),
}
CALLS = {name: call for name, call in CALLS.items() if call[0] in NUMBERS}  # not every architecture has all


def socket_end() -> int:
    ends = socket.socketpair()
    keep.append(ends)
    return ends[0].fileno()


def listener() -> int:
    made = socket.socket(socket.AF_UNIX)
    made.bind(f"\0sfsample-{os.getpid()}")
    made.listen()
    keep.append(made)
    return made.fileno()


def fifo() -> bytes:
    import tempfile

    directory = tempfile.TemporaryDirectory()
    keep.append(directory)
    path = os.path.join(directory.name, "fifo")
    os.mkfifo(path)
    return path.encode()


def sleep_in(name: str, arguments: tuple[object, ...], say: Callable[[str], None]) -> None:
    tid = threading.get_native_id()
    passed = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    with open(f"/proc/self/task/{tid}/comm", "w", encoding="ascii") as comm:
        comm.write(name[:15])
    while True:
        ctypes.set_errno(0)
        libc.syscall(*passed)
        number = ctypes.get_errno()
        say(f"returned {name} {number}")
        if number not in (0, 4):
            return


def asleep(tid: int) -> bool:
    with open(f"/proc/self/task/{tid}/syscall", encoding="ascii") as file:
        return file.read().split()[0] not in ("running", "-1")


def main() -> None:
    fd, *names = sys.argv[1:]
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def say(line: str) -> None:
        os.write(int(fd), line.encode() + b"\n")

    # forks come before threads
    prepared = {name: (NUMBERS[call], *arguments()) for name, (call, arguments) in CALLS.items()
                if name in names or not names}  # fmt: skip
    threads = [
        threading.Thread(target=sleep_in, args=(name, arguments, say), daemon=True)
        for name, arguments in prepared.items()
    ]
    for thread in threads:
        thread.start()
    while not all(asleep(thread.native_id) for thread in threads if thread.is_alive()):
        time.sleep(0.01)
    say(f"ready {os.getpid()}")
    sys.stdin.buffer.read(1)  # until the parent writes a byte or ends
    for number, made in ipc:
        libc.syscall(number, made, 0, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
