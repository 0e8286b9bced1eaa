"""Names that depend on the process: perf maps in its own namespaces, real JITs, debug files in its root."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from tests.live.chains import needs_generated_code
from tests.live.cli_runner import NOBODY, Done, begun, ended, is_root, sampled, sfsample
from tests.live.hanging import calls
from tests.live.targets import HANG_S, LineReader, Target, fixture, running, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load]
TMP = Path("/tmp")  # noqa: S108 - where JITs write their maps


def can_run(*words: str) -> bool:
    return subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0


UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
needs_namespaces = pytest.mark.skipif(
    not can_run(*UNSHARE), reason="may not make mount and pid namespaces (needs root)"
)


def generated_code(pid: int) -> int:
    """Return the address of the target's anonymous executable page."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split()
        if "x" in words[1] and len(words) == 5:
            return int(words[0].partition("-")[0], 16)
    raise AssertionError("no generated code")


@contextmanager
def perf_map(directory: Path, pid: int, text: str) -> Iterator[Path]:
    path = directory / f"perf-{pid}.map"
    path.write_text(text)
    try:
        yield path
    finally:
        path.unlink()


@needs_generated_code
def test_perf_map_names_generated_code() -> None:
    with running(str(fixture("v3")), "framepointer") as target:
        before = sampled("-p", target.pid)
        assert all("_[j]" not in stack for stack in before.stacks())
        assert any(
            f"process {target.pid}: 1 place has no name: generated code" in line for line in before.err
        )
        text = f"{generated_code(target.pid):x} 1000 Interpreter:~run main.js:1\n"
        with perf_map(TMP, target.pid, text):
            done = sampled("-p", target.pid)
        assert done.stacks()
        for stack in done.stacks():
            assert "jit_caller;Interpreter:~run main.js:1_[j];jit_callback" in stack
        assert not any("generated code" in line for line in done.err)


@needs_namespaces
@needs_generated_code
def test_perf_map_of_the_targets_namespaces_is_read(tmp_path: Path) -> None:
    """The target has its own /tmp and pid namespace; here, the map of its outer pid is another process's."""
    inner = tmp_path / "inner"
    inner.mkdir()
    for name in ("target", "libcallee.so"):
        shutil.copy(Path(fixture("v3")).with_name(name), inner)
    script = f'mount --bind {inner} /tmp && exec "$0" "$@"'
    with inner_target([*UNSHARE, "sh", "-c", script, str(TMP / "target"), "framepointer"]) as pid:
        status = Path(f"/proc/{pid}/status").read_text()
        inside = int(re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)[1])
        assert inside != pid
        where = f"{generated_code(pid):x} 1000"
        with perf_map(TMP, pid, f"{where} wrong\n"), perf_map(inner, inside, f"{where} right\n"):
            done = sampled("-p", pid)
        assert done.stacks()
        assert all("jit_caller;right_[j];jit_callback" in stack for stack in done.stacks())


@contextmanager
def inner_target(words: list[str]) -> Iterator[int]:
    """Start a fixture in its own namespaces; yield its pid in the namespace of the test."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen([*words, str(write_end)], stdin=subprocess.PIPE, pass_fds=(write_end,))
    os.close(write_end)
    try:
        LineReader(read_end).number("ready")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(children[0])
        Target(process, LineReader(read_end)).assert_unharmed()
    finally:
        process.kill()
        process.stdin.close()
        process.wait(HANG_S)
        os.close(read_end)


@needs_namespaces
@pytest.mark.skipif(shutil.which("objcopy") is None, reason="objcopy is not installed")
@needs_generated_code
def test_debug_files_are_found_in_the_targets_root(tmp_path: Path) -> None:
    """The debug file of a stripped program is visible in the target's mount namespace only."""
    debug, program = tmp_path / "debug", tmp_path / "program"
    debug.mkdir()
    subprocess.run(["objcopy", "--only-keep-debug", fixture("v3"), debug / "program.debug"], check=True)
    shutil.copy(Path(fixture("v3")).with_name("libcallee.so"), tmp_path)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug / 'program.debug'}",
                    fixture("v3"), program], check=True)  # fmt: skip
    (tmp_path / ".debug").mkdir()
    script = f'mount --bind {debug} {tmp_path / ".debug"} && exec "$0" "$@"'
    with inner_target([*UNSHARE, "sh", "-c", script, str(program), "framepointer"]) as pid:
        assert not (tmp_path / ".debug" / "program.debug").exists()
        done = sampled("-p", pid)
        assert done.stacks()
        assert all("main;jit_caller;" in stack for stack in done.stacks()), (done.stacks(), done.err)


@needs_generated_code
def test_stripped_program_is_reported(tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.skip("strip is not installed")
    program = tmp_path / "program"
    shutil.copy(Path(fixture("v3")).with_name("libcallee.so"), tmp_path)
    subprocess.run(["strip", "-o", program, fixture("v3")], check=True)
    with running(str(program), "framepointer") as target:
        stats = tmp_path / "stats"
        done = sampled("-p", target.pid, "--stats", stats)
        [line] = [line for line in done.err if f"{program}: " in line]
        assert "places have no name: stripped, and no debug file for build-id" in line
        assert line.endswith("; keep the unstripped file, and give its directory with --debug-dir")
        unnamed = json.loads(stats.read_text())["unnamed"]
        [entry] = [entry for entry in unnamed if entry["where"] == str(program)]
        assert line.endswith(f": {entry['why']}; {entry['hint']}")
        assert f": {entry['places']} places have" in line
        dumped = sfsample("dump", "-v", "-p", target.pid)
        assert [line for line in dumped.err if f"{program}: " in line]
        assert not [line for line in sfsample("dump", "-p", target.pid).err if f"{program}: " in line]


@needs_generated_code
def test_watch_reports_missing_names(tmp_path: Path) -> None:
    words = ("--every", "1s", "--for", "500ms", "--mode", "wall", "--output-dir", tmp_path)
    with running(fixture("v3"), "framepointer") as target, begun("watch", "-p", target.pid, *words) as child:
        wait_until(lambda: any(tmp_path.glob("*.json")), "a slice, which has samples")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    at = next(at for at, line in enumerate(done.err) if re.search(r"\.json: \d+ sample", line))
    report = "\n".join(takewhile(lambda line: line.startswith("  "), done.err[at + 1 :]))  # of this slice
    assert re.search(rf"(?m)^  unnamed   process {target.pid}: 1 place has no name: generated", report)


@pytest.mark.skipif(not is_root() or not can_run(*NOBODY), reason="needs root and setpriv")
def test_deleted_library_has_its_exported_names() -> None:
    """Without permission for /proc/PID/map_files, sfsample reads .dynsym from the target's memory."""
    with tempfile.TemporaryDirectory(prefix="sfsample-gone-") as directory:
        for name in ("target", "libcallee.so"):
            shutil.copy(Path(fixture("v3")).with_name(name), directory)
        Path(directory).chmod(0o755)
        with running(str(Path(directory, "target")), "library", wrapper=tuple(NOBODY)) as target:
            Path(directory, "libcallee.so").unlink()
            done = sampled("-p", target.pid, wrapper=NOBODY)
    assert done.stacks()
    assert all(";callee_entry" in stack for stack in done.stacks())
    assert any("using the copy in the target's memory" in line for line in done.err)


# -- code that is mapped a second time, as V8 does with its builtins

TWICE = """
import ctypes, mmap, os
path = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so.6" in line)
row = next(line.split() for line in open("/proc/self/maps") if path in line and "r-xp" in line)
start, end = (int(word, 16) for word in row[0].split("-"))
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
again = libc.mmap(None, end - start, 5, 2, os.open(path, os.O_RDONLY), int(row[2], 16))
pause = ctypes.cast(libc.pause, ctypes.c_void_p).value
print("on", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(pause - start + again)()
"""


def paused(code: str) -> Done:
    """Sample a Python program that prints `on`, and then calls pause(2)."""
    with spoken([sys.executable, "-c", code]) as pid:
        wait_until(lambda: calls(pid).keys() & {"pause", "poll"}, "it is in pause(3)")
        return sampled("-p", pid, "--mode", "wall")


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="elsewhere a copy needs its data at the same distance"
)
def test_code_that_is_mapped_twice_has_its_names() -> None:
    done = paused(TWICE)
    [stack] = done.stacks()
    assert re.search(r"pause;\[\w+\]$", stack)
    assert not any("another file is at this path" in line for line in done.err)


# -- the kernel


@contextmanager
def sleeper(*wrapper: str) -> Iterator[int]:
    with subprocess.Popen([*wrapper, "sleep", "1000"]) as child:
        try:
            wait_until(lambda: "nanosleep" in Path(f"/proc/{child.pid}/wchan").read_text(), "it sleeps")
            yield child.pid
        finally:
            child.kill()


@pytest.mark.skipif(not is_root(), reason="kernel stacks need root")
def test_kernel_functions_of_a_sleeping_thread() -> None:
    with sleeper() as pid:
        expected = Path(f"/proc/{pid}/stack").read_text().splitlines()
        functions = [line.partition("] ")[2].partition("+")[0] + "_[k]" for line in expected]
        plain, done = (sampled("-p", pid, "--mode", "wall", "--idle", *flags) for flags in ([], ["--kernel"]))
        dumped = sfsample("dump", "--kernel", "-p", pid)
    [stack], [without] = done.stacks(), plain.stacks()
    *frames, wait = without.split(";")
    assert stack == ";".join([*frames, *reversed(functions), wait])
    assert functions[0].removesuffix("_[k]") in dumped.out.decode()


@pytest.mark.skipif(not is_root() or not can_run(*NOBODY), reason="needs root and setpriv")
def test_missing_permission_for_kernel_stacks_is_reported() -> None:
    with sleeper(*NOBODY) as pid:
        flags = ("-p", pid, "--kernel")
        done = sampled(*flags, "--mode", "wall", wrapper=NOBODY)
        dumped = sfsample("dump", *flags, wrapper=NOBODY)
    assert all("_[k]" not in stack for stack in done.stacks())
    for result in (done, dumped):
        assert any("kernel stacks cannot be read: that needs CAP_SYS_ADMIN" in line for line in result.err)


# -- real JITs

NODE = (
    "function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }\n"
    "console.log('on'); while (true) { fib(20); [3, 1].sort() }"
)
PYTHON = (
    "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\nprint('on', flush=True)\nwhile True: fib(12)"
)


@contextmanager
def spoken(words: list[str]) -> Iterator[int]:
    """Run a program, wait until it prints `on`; kill it and delete its perf map at the end."""
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"on\n"
            yield child.pid
        finally:
            child.kill()
            (TMP / f"perf-{child.pid}.map").unlink(missing_ok=True)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node() -> None:
    with spoken(["node", "--perf-basic-prof", "-e", NODE]) as pid:
        path = TMP / f"perf-{pid}.map"
        wait_until(lambda: re.search(r" JS:\*fib ", path.read_text()), "fib is optimized")
        done = sampled("-p", pid, enough=lambda done: sum(done.stacks().values()) >= 20)
    frames = [frame for stack in done.stacks() for frame in stack.split(";")]
    assert any(re.fullmatch(r"JS:\*fib .*_\[j\]", frame) for frame in frames)
    assert not any("another file is at this path" in line for line in done.err)
    named = sum(count for stack, count in done.stacks().items() if "JS:*fib" in stack)
    assert named > sum(done.stacks().values()) / 2


def perf_python() -> str | None:
    """Return a Python that can write a perf map: 3.12 or later, built with the trampoline."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (14, 13, 12)]
    candidates += map(str, Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    for python in filter(None, candidates):
        code = "import sys; print(sys.is_stack_trampoline_active())"
        done = subprocess.run([python, "-X", "perf", "-c", code], capture_output=True, text=True, check=False)
        if done.stdout == "True\n":
            return python
    return None


def test_python() -> None:
    python = perf_python()
    if python is None:
        pytest.skip("no Python with a perf trampoline (3.12 or later) is installed")
    with spoken([python, "-X", "perf", "-c", PYTHON]) as pid:
        done = sampled("-p", pid, "--python", "off", enough=lambda done: sum(done.stacks().values()) >= 20)
    assert done.stacks()
    for stack in done.stacks():
        assert re.match(r"[^;]+;_start;.*;py::<module>:<string>_\[j\];", stack)
    assert any("py::fib:<string>_[j]" in stack for stack in done.stacks())


STUB = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("4883ec08 ffd7 4883c408 c3"))  # sub $8,%rsp; call *%rdi; add $8,%rsp; ret
stub = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print("on", flush=True)
stub(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stub is code for x86-64")
def test_stub_like_that_of_python_is_unwound() -> None:
    """The stub moves sp and sets no frame pointer; the caller's frame pointer would skip the caller."""
    done = paused(STUB)
    [stack] = done.stacks()
    assert re.match(r"[^;]+;_start;.*ffi[^;]*;\[0x[0-9a-f]+\];[^;]*pause;\[signal\]$", stack)
