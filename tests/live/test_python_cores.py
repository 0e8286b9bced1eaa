"""Python frames in core files are those that the program stated before (sys._current_frames)."""

import json
import re
import subprocess
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Any

import pytest

from tests.live.cli_runner import sfsample
from tests.live.hanging import find
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced, wait_until
from tests.live.test_python_frames import started

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(find("gcore") is None, reason="gdb, which writes core files, is not installed"),
]
_PHDR = 56  # bytes of a program header
_PT_LOAD = 1


def core_of(pid: int, directory: Path) -> Path:
    subprocess.run(["gcore", "-o", directory / "core", str(pid)], check=True, capture_output=True)
    assert_untraced(pid)
    return directory / f"core.{pid}"


def mappings(pid: int, *, written: bool) -> set[int]:
    """Return where the mappings begin that the process has, or has not, written to (smaps, Anonymous)."""
    text = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"^([0-9a-f]+)-.*?^Anonymous: +(\d+) kB", text, re.MULTILINE | re.DOTALL)
    return {int(start, 16) for start, size in found if (size != "0") == written}


def take_out(core: Path, starts: set[int]) -> int:
    """Take the memory of some mappings from a core file; return how many bytes that were."""
    data, taken = bytearray(core.read_bytes()), 0
    [first], [count] = unpack_from("<Q", data, 32), unpack_from("<H", data, 56)
    for at in range(first, first + count * _PHDR, _PHDR):
        kind, _, _, start, _, size = unpack_from("<IIQQQQ", data, at)
        if kind == _PT_LOAD and start in starts:
            pack_into("<Q", data, at + 32, 0)
            taken += size
    core.write_bytes(data)
    return taken


def dumped(core: Path, *flags: str) -> dict[str, Any]:
    """Return the threads of a core file by their id."""
    done = sfsample("dump", "--core", core, "--json", *flags)
    assert done.code == 0, done.err
    [process] = json.loads(done.out)["processes"]
    return {str(thread["tid"]): thread for thread in process["threads"]}


def stacks(threads: dict[str, Any]) -> dict[str, Any]:
    return {tid: [[frame["file"], frame["function"], frame["line"]] for frame in thread["python"]]
            for tid, thread in threads.items()}  # fmt: skip


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_core_file_has_the_stacks_that_the_program_states(python: Path, tmp_path: Path) -> None:
    with started(python) as (target, truth):
        core, unwritten = core_of(target.pid, tmp_path), mappings(target.pid, written=False)
    whole = stacks(dumped(core))
    assert {tid: whole[tid] for tid in truth} == truth
    text = sfsample("dump", "--core", core).out.decode()
    assert text.count("  py0   Condition.wait  ") >= 2
    assert "truncated" not in text
    assert take_out(core, unwritten)  # as the kernel does
    assert stacks(dumped(core)) == whole
    assert {thread["python"] for thread in dumped(core, "--python", "off").values()} == {None}


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_core_file_says_which_thread_holds_the_gil(python: Path, tmp_path: Path) -> None:
    with started(python, "python_gil.py") as (target, ids):
        expected = {str(tid): "holds" if name == "holds" else "waits" for name, tid in ids.items()}

        def have_all_waited() -> bool:
            """Write a core file.  A thread waits for 5 ms again and again, and may be between two waits."""
            found = {tid: thread["gil"] for tid, thread in dumped(core_of(target.pid, tmp_path)).items()}
            assert [tid for tid, state in found.items() if state == "holds"] == [str(ids["holds"])]
            return found == expected

        wait_until(have_all_waited, "a core file in which all wait")
    core = tmp_path / f"core.{target.pid}"
    text = sfsample("dump", "--core", core).out.decode()
    text = " ".join(text.split())
    assert re.search(rf"=> the GIL: .* wait for the main thread \({target.pid}\), which ", text)


def test_core_file_without_data_says_that_python_is_missing(tmp_path: Path) -> None:
    with started(PYTHONS[0]) as (target, _):
        core = core_of(target.pid, tmp_path)
        take_out(core, mappings(target.pid, written=True))
    done = sfsample("dump", "--core", core)
    assert done.code == 0
    assert any(line.startswith("sfsample: no Python frames: ") for line in done.err), done.err
    assert " py0 " not in done.out.decode()
