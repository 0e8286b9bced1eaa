"""sfsample reports what the system does not provide: descriptors, threads, a visible /proc.

Each case is one line with a remedy and a documented exit code; the target is unharmed.
"""

import _thread
import os
import socket
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

import sfsample as library
from sfsample.process.facts import descriptors
from sfsample.process.procfs import ProcFs
from tests.live.cli_runner import NOBODY, Done, is_root, sampled, sfsample
from tests.live.targets import HANG_S, Target, tids

pytestmark = [pytest.mark.live, pytest.mark.any_load]


def refuse(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def has_result(done: Done) -> bool:
    return done.code == 0 or "no files" in done.err[0]


@pytest.mark.parametrize("run", [partial(sampled, "record", enough=has_result), partial(sfsample, "dump")],
                         ids=["record", "dump"])  # fmt: skip
def test_few_descriptors_are_reported(leaf: Target, run: Callable[..., Done]) -> None:
    """How many are enough depends on Python and its imports; the failure is never a traceback."""
    for limit in (10, 13, 16, 20):
        done = run("-p", leaf.pid, wrapper=["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"])
        if done.code or limit == 10:
            text = done.refused(1)
            assert text.startswith("sfsample: too many open files")
            assert "ulimit -n" in text
    leaf.assert_unharmed()


def test_missing_thread_is_reported(leaf: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(library.SfsampleError, match="cannot start a thread") as refusal:
        library.record(leaf.pid, 1)
    assert "ulimit -u" in str(refusal.value.help)


def test_memory_map_that_is_refused_later_ends_no_recording(
    leaf: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other users than root, prctl(PR_SET_DUMPABLE, 0) has this effect."""
    profile, read, refused = library.Profile(99), ProcFs.maps, []

    def maps(proc: ProcFs) -> object:
        if not profile.stats.samples:
            return read(proc)
        refused.append(proc)
        raise library.NotPermitted(proc.pid, "not permitted to read the memory map")

    monkeypatch.setattr(ProcFs, "maps", maps)
    library.record(leaf.pid, should_stop=lambda: bool(refused), profile=profile)
    assert profile.stats.samples
    assert (
        "not permitted to read the memory map any more; files mapped later have no names"
        in profile.stats.problems
    )


def hiding(level: int) -> list[str]:
    """Return words that run a command as user 65534, with a /proc that hides processes of other users."""
    mount = f'mount -t proc -o hidepid={level} proc /proc && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", *NOBODY]


def may_hide() -> bool:
    return is_root() and not subprocess.run([*hiding(2), "true"], capture_output=True, check=False).returncode


@pytest.mark.skipif(not may_hide(), reason="may not mount /proc (needs root)")
@pytest.mark.parametrize("level", [1, 2])
def test_hidden_process_is_reported(leaf: Target, level: int) -> None:
    text = sfsample("-p", leaf.pid, "-d", "100ms", wrapper=hiding(level)).refused(4)
    assert text.startswith(f"sfsample: not permitted to look at: {leaf.pid}\n")
    assert "hidepid" in text
    leaf.assert_unharmed()


# Uses 0.3 s of CPU time, then starts processes until the limit of the user is reached, and ends.
CROWD = """
import os, socket, sys, time
while time.process_time() < 0.3: pass
try:
    while os.fork(): pass
except BlockingIOError: sys.exit()
os.closerange(1, 3)
with socket.socket(socket.AF_UNIX) as end:
    end.connect("\\0" + sys.argv[1])
    end.recv(1)
"""


@pytest.mark.skipif(not is_root(), reason="needs a user that has no other process")
def test_finished_recording_is_named_and_written_if_no_thread_can_be_started() -> None:
    user, name = 61_000 + os.getpid() % 1000, f"sfsample-crowd-{os.getpid()}"
    limited = ["prlimit", "--nproc=10", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    with socket.socket(socket.AF_UNIX) as end:  # the crowd lives until it is closed
        end.bind(f"\0{name}")
        end.listen(20)
        done = sfsample("-d", HANG_S, "--", "/usr/bin/python3", "-c", CROWD, name, wrapper=limited)
    assert done.code == 0, done.err
    assert sum(done.stacks().values()) > 0
    assert not [line for line in done.err if "thread" in line and "cannot" in line]


def test_open_dump_goes_on_if_no_further_thread_can_be_started(
    leaf: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads open the process and try to attach; the calling one then looks and makes the result."""
    start, started = _thread.start_new_thread, []

    def start_one(*words: object) -> int:
        started.append(words)
        return start(*words) if len(started) <= 2 else refuse()  # type: ignore[arg-type]

    monkeypatch.setattr(_thread, "start_new_thread", start_one)
    assert [thread.tid for thread in library.dump(leaf.pid).threads] == tids(leaf.pid)
    assert len(started) > 2


def test_peer_is_unknown_if_no_thread_can_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of another network namespace; the dump goes on without its peer."""
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    monkeypatch.setattr(ProcFs, "link", lambda *_: "net:[1]")
    proc = ProcFs(os.getpid())
    assert descriptors._unix_peer_inode(proc, 1) is None
    proc.close()
