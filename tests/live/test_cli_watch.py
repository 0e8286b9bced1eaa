"""`sfsample watch` records slices on schedule; each file is complete, and has samples, when it appears.

No test waits for time to pass.  tests/watching/test_loop.py tests the schedule, with a simulated clock,
and tests/watching/test_slice_files.py which files are deleted.
"""

import gc
import os
import re
import shutil
import signal
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sfsample import api
from sfsample.core.arch import AMD64
from sfsample.process.permission.check import start_time
from sfsample.report.formats import read_report
from sfsample.report.suffixes import FORMATS, format_of
from sfsample.watching import loop
from tests.builders.watches import watch_of
from tests.live.cli_runner import STOPPING, begun, ended, parse_folded, sfsample, wait_until_sampled
from tests.live.targets import ARCH, HANG_S, Target, fixture, running, wait_until
from tests.live.test_cli_errors import unused_pid

pytestmark = [pytest.mark.live, pytest.mark.any_load]
# Slices that are long enough for samples.
SAMPLED = ("--every", "1s", "--for", "900ms") if ARCH is AMD64 else ("--every", "6s", "--for", "5s")
FILE = re.compile(r"(.+)-\d{8}T\d{6}Z\.json")
LINE = r"sfsample: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def stacks_of(path: Path, *, threads: bool = False) -> dict[str, int]:
    """Return the stacks of a slice as folded lines; `threads`: with the thread as root."""
    return parse_folded(api.render(read_report(str(path)), "folded", threads=threads))


def slices(directory: Path) -> list[str]:
    """Return the files in the directory; each must be complete."""
    names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    for name in names:
        assert FILE.fullmatch(name)
        stacks = stacks_of(directory / name)
        assert stacks
        assert all(stack.removesuffix(";[runnable: no CPU]").endswith(";leaf_spin") for stack in stacks)
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
    assert all(re.match(LINE, line) for line in done.err if not line.startswith("  "))
    outcomes = [line for line in done.err if f" {directory}/" in line]
    for name, line in zip(names, outcomes, strict=True):
        count = sum(stacks_of(directory / name).values())
        assert re.match(f"{LINE}{re.escape(str(directory / name))}: {count} sample", line)
    leaf.assert_unharmed()


def test_missing_name_is_reported_once(tmp_path: Path) -> None:
    stripped, directory = tmp_path / "stripped", tmp_path / "slices"
    shutil.copy(fixture("v3").with_name("libcallee.so"), tmp_path)
    subprocess.run(["strip", "-o", stripped, fixture("v3")], check=True)
    with running(stripped, "leaf") as target:
        words = (*SAMPLED, "--output-dir", directory)
        with begun("watch", "-p", target.pid, *words) as child:
            wait_until(lambda: len(list(directory.glob("*.json"))) >= 3, "3 slices")
            child.send_signal(signal.SIGTERM)
            done = ended(child)
        target.assert_unharmed()
    [report] = [line for line in done.err if f"unnamed   {stripped}" in line]
    assert "no name: stripped" in report
    assert len([line for line in done.err if line.startswith("sfsample: ")]) >= 3


@pytest.mark.parametrize("format_name", sorted(set(FORMATS) - {"json"}))
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
    assert len(slices(tmp_path)) == 1
    leaf.assert_unharmed()


def test_sigterm_between_slices_ends_watch(leaf: Target, tmp_path: Path) -> None:
    words = ["watch", "-p", leaf.pid, "--every", "1h", "--for", "200ms", "--output-dir", tmp_path]
    with begun(*words, "--mode", "wall") as child:
        wait_for_slices(tmp_path, 1)
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0
    assert len(slices(tmp_path)) == 1


@pytest.mark.parametrize("flag", [("--keep", "2"), ("--keep-for", "1w")])
def test_old_slices_are_deleted(leaf: Target, tmp_path: Path, flag: tuple[str, str]) -> None:
    old = [f"{leaf.pid}-2020010{day}T000000Z.json" for day in (1, 2, 3)]
    others = ["other-20200101T000000Z.json", "notes.txt", f"{leaf.pid}-20200101T000000Z.folded"]
    for name in (*old, *others):
        (tmp_path / name).touch()
    words = ["watch", "-p", leaf.pid, "--every", "1s", "--for", "100ms", "--output-dir", tmp_path, *flag]
    with begun(*words) as child:
        wait_until(lambda: not set(old) & set(os.listdir(tmp_path)), "old slices are deleted")
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0
    new = set(os.listdir(tmp_path)) - set(others)
    assert len(new) == 2 if flag[0] == "--keep" else new
    assert set(others) <= set(os.listdir(tmp_path))


def test_slice_without_a_sample_is_no_file_and_deletes_none(tmp_path: Path) -> None:
    with running(fixture("v3"), "sleep") as sleeper:
        old = f"{sleeper.pid}-20200101T000000Z.json"
        (tmp_path / old).touch()
        words = ["watch", "-p", sleeper.pid, "--every", "1s", "--for", "200ms", "--output-dir", tmp_path]
        with begun(*words, "--mode", "cpu", "--keep", "1", "--keep-for", "1d") as child:
            lines = [read_line(child) for _ in range(3)]
            child.send_signal(signal.SIGTERM)
            assert ended(child).code == 0
    assert os.listdir(tmp_path) == [old]
    assert re.match(
        rf"{LINE}no slice: no sample in 0\.\d s: no thread ran at any of the \d+ ticks? taken: idle", lines[0]
    )
    assert lines[1] == "  to record sleeping threads: --mode wall\n"
    assert re.match(f"{LINE}no slice: ", lines[2]), "the remedy is given once"


def read_line(child: "subprocess.Popen[bytes]") -> str:
    """Return the next line of a command's stderr."""
    assert child.stderr is not None
    return child.stderr.readline().decode()


def test_name_is_looked_up_for_every_slice(tmp_path: Path) -> None:
    name, directory = f"sfw{os.getpid()}", tmp_path / "out"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    words = ["watch", "-n", name, *SAMPLED, "--output-dir", directory, "-t"]

    def roots() -> set[str]:
        names = slices(directory) if directory.is_dir() else []
        return {s.partition(";")[0] for n in names for s in stacks_of(directory / n, threads=True)}

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


def test_target_that_is_started_again_within_a_slot_is_recorded(tmp_path: Path) -> None:
    name, directory = f"sfr{os.getpid()}", tmp_path / "out"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)

    def recorded(count: int) -> bool:
        return directory.is_dir() and len(slices(directory)) == count

    with begun("watch", "-n", name, "--every", "1h", "--output-dir", directory) as child:
        for count in (1, 2):
            with running(tmp_path / name, "leaf", ends=True) as target:
                wait_until_sampled(target.pid)
                target.signal(signal.SIGKILL)
            wait_until(lambda count=count: recorded(count), f"slice {count}, before the hour is over")  # type: ignore[misc]
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def test_missing_target_is_said_once_and_found_later(tmp_path: Path) -> None:
    name, directory = f"sfw{os.getpid()}", tmp_path / "out"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    with begun("watch", "-n", name, "--every", "1s", "--for", "100ms", "--output-dir", directory) as child:
        for _ in range(2):
            while f"no such process: no process matches {name}" not in said(child):
                pass
            with running(tmp_path / name, "leaf") as target:
                assert re.fullmatch(f"{LINE}found {name}: process {target.pid}\n", said(child))
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def said(child: "subprocess.Popen[bytes]") -> str:
    """Return the next line of a command's stderr that is no help line; it has a time stamp."""
    while (line := read_line(child)).startswith("  "):
        pass
    assert re.match(LINE, line)
    return line


def test_end_of_process_ends_watch(tmp_path: Path) -> None:
    with running(fixture("v3"), "leaf", ends=True) as target:
        words = ["watch", "-p", target.pid, "--every", "1h", "--for", "10m", "--output-dir", tmp_path]
        with begun(*words, *STOPPING) as child:
            wait_until_sampled(target.pid)
            target.signal(signal.SIGKILL)
            done = ended(child)  # at once, an hour before the next slot; the zombie is not reaped yet
    assert done.code == 0
    assert re.fullmatch(f"{LINE}process has ended: {target.pid}", done.err[-1])
    assert len(slices(tmp_path)) == 1


def test_end_of_one_process_of_two_is_no_error(leaf: Target, tmp_path: Path) -> None:
    def roots_since(first: int) -> set[str]:
        later = (stacks_of(tmp_path / name, threads=True) for name in slices(tmp_path)[first:])
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


def test_recycled_pid_is_another_process(leaf: Target, tmp_path: Path) -> None:
    assert loop._alive({leaf.pid: start_time(leaf.pid), unused_pid(): 0}) == [leaf.pid]
    assert loop._alive({leaf.pid: start_time(leaf.pid) - 1}) == []


def test_directory_that_cannot_be_made_is_an_error(leaf: Target, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "x", ""):
        text = sfsample("watch", "-p", leaf.pid, "--output-dir", directory).refused(1)
        assert text.startswith(f"sfsample: cannot write: {directory or repr('')}: ")


def test_directory_that_was_removed_is_made_again(leaf: Target, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    with begun("watch", "-p", leaf.pid, *SAMPLED, "--output-dir", directory) as child:
        wait_until(lambda: directory.is_dir() and slices(directory), "a slice")
        directory.rename(tmp_path / "moved")
        wait_until(lambda: directory.is_dir() and slices(directory), "a slice")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 0
    assert not any("cannot write" in line for line in done.err)


def test_directory_that_is_a_file_meanwhile_does_not_end_watch(leaf: Target, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    with begun("watch", "-p", leaf.pid, *SAMPLED, "--output-dir", directory) as child:
        wait_until(lambda: directory.is_dir() and slices(directory), "a slice")
        directory.rename(tmp_path / "moved")
        directory.touch()
        assert lost_and_found(child, directory, directory.unlink) == "Not a directory"
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def lost_and_found(child: "subprocess.Popen[bytes]", directory: Path, mend: Callable[[], None]) -> str:
    """Wait until a slice is lost, mend it, and wait until one is written; return why it was lost."""
    while not (lost := re.fullmatch(rf"{LINE}cannot write: {directory}: (.*)\n", said(child))):
        pass
    mend()
    assert re.fullmatch(rf"{LINE}slices are written again: \d+ slices? lost\n", said(child))
    return lost[1]


# Words before a command and its directory: it runs where that is a file system that is full.
FULL_DISK = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=256k tmpfs "$0" && { dd if=/dev/zero of="$0/fill" 2> "$0/../dd"; exec "$@"; }',
]


def test_full_disk_never_ends_watch(leaf: Target, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    wrapper = [*FULL_DISK, str(disk)]
    if subprocess.run(
        [*wrapper, "test", "-e", str(disk / "fill")], check=False, capture_output=True
    ).returncode:
        pytest.skip("mount namespaces are not allowed here")
    with begun("watch", "-p", leaf.pid, *SAMPLED, "--output-dir", disk / "new", wrapper=wrapper) as child:
        seen = Path(f"/proc/{child.pid}/root{disk}")
        assert lost_and_found(child, disk / "new", (seen / "fill").unlink) == "No space left on device"
        assert all(FILE.fullmatch(name) for name in os.listdir(seen / "new")), "no part of a file"
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def test_slices_leak_no_memory_and_no_files(leaf: Target, tmp_path: Path) -> None:
    words = ["-p", str(leaf.pid), "--output-dir", str(tmp_path), "-q", "--keep", "3", "-r", "1000"]
    keeping = watch_of(*words, "--mode", "wall")

    def record_slices(count: int) -> tuple[int, int]:
        """Record slices; return the bytes of memory and the number of open files after them."""
        for _ in range(count):
            keeping.slot(0.02)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))

    tracemalloc.start()
    try:
        memory, files = record_slices(5)
        later, files_later = record_slices(6)
    finally:
        tracemalloc.stop()
    assert files_later == files
    assert later - memory < 24_000, "a slice of this process takes about a megabyte while it runs"
    assert len(os.listdir(tmp_path)) == 3
