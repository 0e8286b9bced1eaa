"""`sfsample watch` records slices on schedule; each file is complete when it appears.

No test waits for time to pass.  tests/cli/test_watch.py tests the schedule itself, with a simulated clock.
"""

import gc
import os
import re
import shutil
import signal
import subprocess
import tracemalloc
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsample.cli import watch
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.parse import parse
from sfsample.cli.values import FORMATS, format_of
from sfsample.core.arch import AMD64
from sfsample.process.find import start_time
from tests.live.cli_runner import STOPPING, begun, ended, parse_folded, sfsample, wait_until_sampled
from tests.live.targets import ARCH, HANG_S, Target, fixture, running, wait_until
from tests.live.test_cli_errors import unused_pid

pytestmark = pytest.mark.live
# Slices that are long enough for samples.
SAMPLED = ("--every", "1s", "--for", "900ms") if ARCH is AMD64 else ("--every", "6s", "--for", "5s")
FILE = re.compile(r"(.+)-\d{8}T\d{6}Z\.folded")


@pytest.fixture(scope="module")
def leaf() -> Iterator[Target]:
    with running(fixture("v3"), "leaf") as target:
        yield target


def slices(directory: Path) -> list[str]:
    """Return the files in the directory; each must be complete."""
    names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    for name in names:
        assert FILE.fullmatch(name)
        assert all(stack.endswith(";leaf_spin") for stack in parse_folded((directory / name).read_bytes()))
    return names


def wait_for_slices(directory: Path, count: int) -> None:
    wait_until(lambda: len(slices(directory)) >= count, f"{count} slices")


def test_slices_appear_until_sigterm(leaf: Target, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "directory"
    with begun(
        "watch", "-p", leaf.pid, "--every", "1s", "--for", "200ms", "--output-dir", directory
    ) as child:
        wait_until(directory.is_dir, "the directory exists")
        wait_for_slices(directory, 3)
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    names = slices(directory)
    assert (done.code, done.out) == (0, b"")
    assert sorted(os.listdir(directory)) == names
    assert {FILE.fullmatch(name)[1] for name in names} == {str(leaf.pid)}  # type: ignore[index]
    outcomes = [line for line in done.err if not line.startswith("  ")]
    for name, line in zip(names, outcomes, strict=True):
        count = sum(parse_folded((directory / name).read_bytes()).values())
        assert line.startswith(f"sfsample: {directory}/{name}: {count} samples")
    leaf.assert_unharmed()


def test_missing_name_is_reported_once(tmp_path: Path) -> None:
    stripped, directory = tmp_path / "stripped", tmp_path / "slices"
    shutil.copy(fixture("v3").with_name("libcallee.so"), tmp_path)
    subprocess.run(["strip", "-o", stripped, fixture("v3")], check=True)
    with running(stripped, "leaf") as target:
        words = (*SAMPLED, "--output-dir", directory)
        with begun("watch", "-p", target.pid, *words) as child:
            wait_until(lambda: sum(path.stat().st_size > 0 for path in directory.glob("*.folded")) >= 3,
                       "3 slices that are not empty")  # fmt: skip
            child.send_signal(signal.SIGTERM)
            done = ended(child)
        target.assert_unharmed()
    [report] = [line for line in done.err if f"unnamed   {stripped}" in line]
    assert "no name: stripped" in report
    assert len([line for line in done.err if line.startswith("sfsample: ")]) >= 3


@pytest.mark.parametrize("format_name", sorted(set(FORMATS) - {"folded"}))
def test_slices_have_any_format(leaf: Target, tmp_path: Path, format_name: str) -> None:
    with begun("watch", "-p", leaf.pid, "-f", format_name, "--every", "1s", "--for", "200ms", "--keep", "1",
               "--output-dir", tmp_path) as child:  # fmt: skip
        wait_until(lambda: any(name[0] != "." for name in os.listdir(tmp_path)), "a slice")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    [name] = os.listdir(tmp_path)
    assert (done.code, done.out) == (0, b"")
    assert re.fullmatch(r"\d+-\d{8}T\d{6}Z\..+", name)
    assert format_of(name) == format_name
    assert (tmp_path / name).stat().st_size > 0


def test_sigterm_writes_the_slice(leaf: Target, tmp_path: Path) -> None:
    words = ["watch", "-p", leaf.pid, "--every", "1h", "--for", "1h", "--output-dir", tmp_path, "-q", "-t"]
    with begun(*words, "--mode", "wall") as child:  # where every stop is a sample
        wait_until_sampled(leaf.pid)
        assert os.listdir(tmp_path) == []
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert (done.code, done.out, done.err) == (0, b"", [])
    (name,) = slices(tmp_path)
    assert set(parse_folded((tmp_path / name).read_bytes())) != set()
    leaf.assert_unharmed()


def test_sigterm_between_slices_ends_watch(leaf: Target, tmp_path: Path) -> None:
    with begun("watch", "-p", leaf.pid, "--every", "1h", "--for", "100ms", "--output-dir", tmp_path) as child:
        wait_for_slices(tmp_path, 1)
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0
    assert len(slices(tmp_path)) == 1


def test_keep_deletes_older_slices(leaf: Target, tmp_path: Path) -> None:
    old = [f"{leaf.pid}-2020010{day}T000000Z.folded" for day in (1, 2, 3)]
    others = ["other-20200101T000000Z.folded", "notes.txt"]
    for name in (*old, *others):
        (tmp_path / name).touch()
    words = [
        "watch",
        "-p",
        leaf.pid,
        "--every",
        "1s",
        "--for",
        "100ms",
        "--output-dir",
        tmp_path,
        "--keep",
        "2",
    ]
    with begun(*words) as child:
        wait_until(lambda: not set(old) & set(os.listdir(tmp_path)), "old slices are deleted")
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0
    names = set(os.listdir(tmp_path))
    assert set(others) <= names
    assert len(names - set(others)) == 2


def test_name_is_looked_up_for_every_slice(tmp_path: Path) -> None:
    name, directory = f"sfw{os.getpid()}", tmp_path / "out"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    words = ["watch", "-n", name, *SAMPLED, "--output-dir", directory, "-t"]

    def roots() -> set[str]:
        names = slices(directory) if directory.is_dir() else []
        return {s.partition(";")[0] for n in names for s in parse_folded((directory / n).read_bytes())}

    with begun(*words) as child:
        pids = []
        for _ in range(2):
            with running(tmp_path / name, "leaf") as target:
                wait_until(lambda pid=target.pid: f"{name}/{pid}" in roots(), "the new process is recorded")  # type: ignore[misc]
                pids.append(target.pid)
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 0
    assert roots() == {f"{name}/{pid}" for pid in pids}
    assert {FILE.fullmatch(n)[1] for n in slices(directory)} == {name}  # type: ignore[index]


@pytest.mark.parametrize(
    ("flag", "name", "error"),
    [("-n", "no-such-name", "no process matches no-such-name"),
     ("--unit", "no-such-thing", "no process is in the systemd unit no-such-thing")],
)  # fmt: skip
def test_missing_target_is_reported_for_every_slice(tmp_path: Path, flag: str, name: str, error: str) -> None:
    words = [
        "watch",
        flag,
        name,
        "--every",
        "1s",
        "--for",
        "100ms",
        "--output-dir",
        tmp_path,
    ]
    with begun(*words) as child:
        assert child.stderr is not None
        lines = [child.stderr.readline() for _ in range(4)]  # two slots, two lines each
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait(HANG_S) == 0
    assert lines[0] == lines[2] == f"sfsample: no such process: {error}\n".encode()
    assert os.listdir(tmp_path) == []


def test_end_of_process_ends_watch(tmp_path: Path) -> None:
    with running(fixture("v3"), "leaf", ends=True) as target:
        words = ["watch", "-p", target.pid, "--every", "1h", "--for", "10m", "--output-dir", tmp_path]
        with begun(*words, *STOPPING) as child:
            wait_until_sampled(target.pid)
            target.signal(signal.SIGKILL)
            done = ended(child)  # at once, an hour before the next slot; the zombie is not reaped yet
    assert done.code == 0
    assert done.err[-1] == f"sfsample: process has ended: {target.pid}"
    assert len(slices(tmp_path)) == 1


def test_end_of_one_process_of_two_is_no_error(leaf: Target, tmp_path: Path) -> None:
    def roots_since(first: int) -> set[str]:
        later = (parse_folded((tmp_path / name).read_bytes()) for name in slices(tmp_path)[first:])
        return {stack.partition(";")[0] for stacks in later for stack in stacks}

    with running(fixture("v3"), "leaf", ends=True) as other:
        words = ["watch", "-p", f"{leaf.pid},{other.pid}", *SAMPLED, "-t"]
        with begun(*words, "--mode", "wall", "--output-dir", tmp_path) as child:
            wait_for_slices(tmp_path, 1)
            other.process.kill()
            other.process.wait(HANG_S)
            first = len(slices(tmp_path)) + 1  # the first slice that began after its death
            wait_until(lambda: roots_since(first), "a slice after its death has samples")
            child.send_signal(signal.SIGTERM)
            assert ended(child).code == 0
    assert roots_since(first) == {f"target/{leaf.pid}"}


def test_missing_process_is_an_error(tmp_path: Path) -> None:
    text = sfsample("watch", "-p", unused_pid(), "--output-dir", tmp_path / "new").refused(3)
    assert text.startswith("sfsample: no such process: ")
    assert os.listdir(tmp_path) == [], "no directory is made"


def test_recycled_pid_is_another_process(leaf: Target, tmp_path: Path) -> None:
    assert watch._alive({leaf.pid: start_time(leaf.pid), unused_pid(): 0}) == [leaf.pid]
    assert watch._alive({leaf.pid: start_time(leaf.pid) - 1}) == []


def test_directory_that_cannot_be_made_is_an_error(leaf: Target, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "x", ""):
        text = sfsample("watch", "-p", leaf.pid, "--output-dir", directory).refused(1)
        assert text.startswith(f"sfsample: cannot write: {directory or repr('')}: ")


def test_unwritable_slice_does_not_end_watch(leaf: Target, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    words = ["watch", "-p", leaf.pid, "--every", "1s", "--for", "100ms", "--output-dir", directory]
    with begun(*words) as child:
        assert child.stderr is not None
        wait_until(lambda: directory.is_dir() and slices(directory), "a slice")
        directory.rename(tmp_path / "moved")
        lines = [child.stderr.readline().decode()]
        while "cannot write" not in lines[-1]:
            lines.append(child.stderr.readline().decode())
        (tmp_path / "moved").rename(directory)
        count = len(slices(directory))
        wait_for_slices(directory, count + 1)
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def test_slices_leak_no_memory_and_no_files(leaf: Target, tmp_path: Path) -> None:
    words = ["watch", "-p", str(leaf.pid), "--output-dir", str(tmp_path), "-q", "--keep", "3", "-r", "1000"]
    arguments: Namespace = parse(words)
    interrupt = Interrupt()

    def record_slices(count: int) -> tuple[int, int]:
        """Record slices; return the bytes of memory and the number of open files after them."""
        for _ in range(count):
            watch._record_slice(arguments, [leaf.pid], 0.02, interrupt, set())
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))

    tracemalloc.start()
    try:
        record_slices(5)
        memory, files = record_slices(1)
        later, files_later = record_slices(25)
    finally:
        tracemalloc.stop()
    assert files_later == files
    assert later - memory < 100_000, "a slice of this process takes about a megabyte while it runs"
    assert len(os.listdir(tmp_path)) == 3
