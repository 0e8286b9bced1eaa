"""Every mistake that a user can make with a target or a file is one line, with help and the right exit code.

The line names what happened and to what; the target is left as it was.
"""

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.cli_runner import COMMAND, NOBODY, is_root, sampled, sfsample
from tests.live.targets import HANG_S, Target, first_line, fixture, python, running, status, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load]
EVERY = [("record", "-d", "100ms"), ("dump",), ("watch", "--output-dir", "/nonexistent-dir", "--for", "1s")]
as_root = pytest.mark.skipif(not is_root(), reason="needs root, to act as two users")


@pytest.fixture(params=EVERY, ids=[words[0] for words in EVERY])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    make_public(tmp_path)
    return [str(tmp_path) if word == "/nonexistent-dir" else word for word in request.param]


def make_public(directory: Path) -> None:
    """Let another user reach and write a directory of the test."""
    if is_root():
        directory.chmod(0o777)
        for above in directory.parents:
            if not above.stat().st_mode & 0o077:  # pytest has made it, and private
                above.chmod(0o755)


def unused_pid() -> int:
    """Return a pid that was just used, so that it will not be used again soon."""
    with subprocess.Popen(["true"]) as child:
        child.wait(HANG_S)
    return child.pid


def test_sfsample_cannot_sample_itself(words: list[str]) -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" -p $$', "sh"]
    assert sfsample(*words, wrapper=shell).refused(1).startswith("sfsample: cannot sample itself: ")


def test_name_without_match_is_an_error() -> None:
    text = sfsample("-n", "no-such-name \x1b[31m", "-d", "1").refused(3)
    assert text.startswith("sfsample: no such process: no process matches no-such-name ?[31m\n  ")


def test_32_bit_program_is_an_error(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "spin32"
    code = b"\xeb\xfe"  # jmp .
    base, size = 0x08048000, 52 + 32
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    header = struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + size, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, base, base, size + len(code), size + len(code), 5, 4096)
    path.write_bytes(ident + header + segment + code)
    path.chmod(0o755)
    try:
        child = subprocess.Popen([path])
    except OSError:
        pytest.skip("this kernel does not run 32-bit programs")
    try:
        text = sfsample(*words, "-p", child.pid).refused(1)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(HANG_S)
    assert text.startswith(f"sfsample: 32-bit program: {child.pid} (")
    assert "only 64-bit targets are supported" in text


# -- not permitted


@as_root
def test_process_of_another_user_is_not_permitted(sleeper: Target, words: list[str]) -> None:
    text = sfsample(*words, "-p", sleeper.pid, wrapper=NOBODY).refused(4)
    assert text.startswith(f"sfsample: not permitted to trace: {sleeper.pid}\n")
    assert "it belongs to uid 0 and you are uid 65534 without CAP_SYS_PTRACE" in text
    sleeper.assert_unharmed()


@pytest.mark.skipif(is_root(), reason="as root, see the test above")
def test_process_of_root_is_not_permitted() -> None:
    assert "without CAP_SYS_PTRACE" in sfsample("-p", 1, "-d", "100ms").refused(4)


SPIN = "import os\nos.write(1, b'ready\\n')\nwhile True: pass"
HIDE = "import ctypes\nassert ctypes.CDLL(None).prctl(4, 0) == 0\n"


@contextmanager
def beside(code: str, wrapper: list[str]) -> Iterator[int]:
    """Run Python code in a process; yield its pid after its first line, `ready`."""
    with subprocess.Popen([*wrapper, sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert first_line(child) == "ready"
            yield child.pid
            assert child.poll() is None
            assert status(child.pid)["TracerPid"] == "0"
        finally:
            child.kill()


def test_undumpable_process_is_not_permitted() -> None:
    wrapper = NOBODY if is_root() else []
    with beside(SPIN, wrapper) as pid:
        assert sampled("-p", pid, wrapper=wrapper).code == 0, "a process of the same user can be sampled"
    with beside(HIDE + SPIN, wrapper) as pid:
        text = sfsample("-p", pid, "-d", "1s", wrapper=wrapper).refused(4)
        assert "it is not dumpable" in text


TRACE = """
import os, sys
from ptrace.binding.func import ptrace
pid = int(sys.argv[1])
ptrace(0x4206, pid)
if sys.argv[2:] == ["stop"]:
    ptrace(0x4207, pid)
    os.waitpid(pid, 0x40000000)
print("traced", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["run", "stop"])
def test_traced_process_is_not_permitted(sleeper: Target, how: str) -> None:
    with python(TRACE, sleeper.pid, how) as tracer:
        assert first_line(tracer) == "traced"
        text = sfsample("-p", sleeper.pid, "-d", "100ms").refused(4)
        assert f"process {tracer.pid} (" in text
        assert f"kill {tracer.pid}" in text
        assert status(sleeper.pid)["TracerPid"] == str(tracer.pid)
    sleeper.assert_unharmed()


def may_unshare() -> bool:
    return subprocess.run(["unshare", "-U", "-r", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="user namespaces are not allowed here")
def test_process_of_outer_user_namespace_is_not_permitted(sleeper: Target) -> None:
    text = sfsample("-p", sleeper.pid, "-d", "100ms", wrapper=["unshare", "-U", "-r"]).refused(4)
    assert "it runs in another user namespace" in text
    with running(fixture("v3"), "leaf", wrapper=("unshare", "-U", "-r")) as inner:
        assert not is_root() or sampled("-p", inner.pid).stacks()


# -- files


@as_root
def test_proc_of_another_pid_namespace_is_an_error(sleeper: Target, words: list[str]) -> None:
    """For the kernel the pid may be another process, or none."""
    text = sfsample(*words, "-p", sleeper.pid, wrapper=["unshare", "--pid", "--fork"]).refused(1)
    assert f"cannot tell which process is {sleeper.pid}: /proc shows another pid namespace" in text
    assert "--mount-proc" in text


@as_root
def test_missing_proc_is_an_error() -> None:
    wrapper = ["unshare", "--mount", "/bin/sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    text = sfsample("-n", "anything", "-d", "100ms", wrapper=wrapper).refused(4)
    assert text.startswith("sfsample: not permitted to look for: anything\n  /proc is mounted with hidepid")


def test_unwritable_output_is_an_error(sleeper: Target, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    for flag in ("-o", "--stats"):
        for path in (tmp_path / "dir", tmp_path / "no" / "out", "", f"{tmp_path}/dir/"):
            text = sfsample("-p", sleeper.pid, "-d", "100ms", flag, path).refused(1)
            assert text.startswith(f"sfsample: cannot write: {path or repr('')}: ")
    assert sfsample("dump", "-p", sleeper.pid, "-o", tmp_path / "dir").refused(1)
    assert os.listdir(tmp_path) == ["dir"]


@as_root
def test_output_of_another_user_is_an_error(tmp_path: Path) -> None:
    make_public(tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("before")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "file").write_text("before")
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky" / "file").touch()
    (tmp_path / "sticky" / "file").chmod(0o666)
    with beside(SPIN, NOBODY) as pid:
        for name in ("file", "new", "open/file", "sticky/file"):
            text = sfsample("-p", pid, "-d", "100ms", "-o", tmp_path / name, wrapper=NOBODY).refused(1)
            assert re.search("(Permission denied|Operation not permitted)", text)
        words = ("-p", pid, "-o", tmp_path / "open/new")
        assert sampled(*words, wrapper=NOBODY, enough=lambda done: done.code == 0).code == 0
        watch = ["watch", "-p", pid, "--output-dir", tmp_path / "closed"]
        assert "cannot write" in sfsample(*watch, wrapper=NOBODY).refused(1)
    assert (tmp_path / "file").read_text() == (tmp_path / "open/file").read_text() == "before"


def test_ctrl_c_before_the_recording_aborts(tmp_path: Path) -> None:
    """A FIFO without a reader blocks sfsample; Ctrl-C ends that at once."""
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(
        [*COMMAND, "-p", "1", "-o", str(tmp_path / "fifo")], stderr=subprocess.PIPE
    ) as child:
        wait_until(lambda: b"fifo" in wchan(child.pid) or wchan(child.pid) == b"wait_for_partner", "it waits")
        child.send_signal(signal.SIGINT)
        assert child.wait(HANG_S) == 1
        assert child.stderr is not None
        assert child.stderr.read() == b"sfsample: aborted\n"


def wchan(pid: int) -> bytes:
    with open(f"/proc/{pid}/wchan", "rb") as file:
        return file.read()
