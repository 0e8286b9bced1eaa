"""`sfsample dump`: its text, its JSON, and threads that cannot be captured.

The JSON has the documented keys and types, with `null` where a value is unknown.  No thread is left out.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfsample.core.arch import AMD64
from tests.live.cli_runner import STOPPING, begun, ended, sampled, sfsample, stops_of
from tests.live.hanging import hung
from tests.live.targets import (
    ARCH,
    HANG_S,
    Target,
    first_line,
    fixture,
    python,
    running,
    states,
    status,
    tids,
    wait_until,
)
from tests.live.test_cli_errors import TRACE, unused_pid

pytestmark = [pytest.mark.live, pytest.mark.any_load]

HEX = re.compile("0x[0-9a-f]+")
NONE = type(None)
PROCESS = {
    "pid": int, "name": str, "cmdline": list, "exe": (str, NONE), "consistent": (bool, NONE),
    "goroutines": (list, NONE), "groups": list, "threads": list,
}  # fmt: skip
READ = {"x86_64": 0, "aarch64": 63, "s390x": 3}  # number of the system call
THREAD = {
    "tid": int, "name": str, "state": str, "idle_s": (float, NONE), "cpu_ns": (int, NONE),
    "moving": (bool, NONE), "signal": NONE, "capture": str, "stop_ns": (int, NONE), "error": (str, NONE),
    "syscall": (dict, NONE), "wchan": (str, NONE), "kernel_stack": list, "waits_for": (dict, NONE),
    "gil": (str, NONE), "python": (list, NONE), "tasks": (list, NONE), "stop_reason": (str, NONE),
    "request": NONE, "frames": list,
}  # fmt: skip
SYSCALL = {
    "number": int, "name": (str, NONE), "args": list, "refers_to": list, "fds": list, "connections": list,
    "timeout_s": (float, NONE), "left_s": (float, NONE),
}  # fmt: skip
WAIT = {"kind": str, "what": str, "tid": (int, NONE), "pids": list, "note": str}
FINDING = {"kind": str, "text": str, "details": list, "threads": list, "goroutines": list}
FRAME = {
    "pc": str, "sp": str, "cfa": (str, NONE), "function": (str, NONE), "offset": (int, NONE),
    "module": (str, NONE), "module_offset": (str, NONE), "build_id": (str, NONE), "found": str,
    "file": (str, NONE), "line": (int, NONE), "inlined": bool,
}  # fmt: skip


def check(value: dict[str, Any], keys: dict[str, Any]) -> None:
    """Assert that a value has exactly the documented keys (document a new one, and add it here)."""
    assert value.keys() == keys.keys()
    for key, kind in keys.items():
        assert isinstance(value[key], kind), (key, value[key])


def dump(*words: object, code: int = 0) -> dict[str, Any]:
    """Return a JSON dump, its keys and types checked."""
    began = time.time()
    done = sfsample("dump", "--json", *words)
    assert done.code == code, done.err
    assert done.out.isascii()
    assert done.out.endswith(b"}\n")
    document: dict[str, Any] = json.loads(done.out)
    assert list(document) == ["schema", "time", "host", "verdict", "processes"]
    assert document["schema"] == "sfsample.dump/1"
    assert began <= document["time"] <= time.time()
    assert document["host"] == os.uname().nodename
    for finding in document["verdict"]:
        check(finding, FINDING)
    for process in document["processes"]:
        check(process, PROCESS)
        assert sorted(tid for group in process["groups"] for tid in group) == [
            thread["tid"] for thread in process["threads"]
        ]
        assert all(isinstance(word, str) for word in process["cmdline"])
        for thread in process["threads"]:
            check_thread(thread)
    return document


def check_thread(thread: dict[str, Any]) -> None:
    check(thread, THREAD)
    assert thread["capture"] in ("stopped", "read", "failed")
    assert (thread["error"] is not None) == (thread["capture"] == "failed") == (thread["stop_reason"] is None)
    assert (thread["stop_ns"] is not None) == (thread["capture"] == "stopped")
    assert bool(thread["frames"]) == (thread["capture"] != "failed")
    if thread["syscall"]:
        check(thread["syscall"], SYSCALL)
        assert len(thread["syscall"]["args"]) == 6
        assert all(HEX.fullmatch(word) for word in thread["syscall"]["args"])
    if thread["waits_for"]:
        check(thread["waits_for"], WAIT)
    for frame in thread["frames"]:
        check(frame, FRAME)
        assert all(
            frame[key] is None or HEX.fullmatch(frame[key]) for key in ("pc", "sp", "cfa", "module_offset")
        )
        assert (frame["function"] is None) == (frame["offset"] is None)
        assert (frame["module"] is None) == (frame["module_offset"] is None)
    assert [frame["found"] == "context" for frame in thread["frames"]] == [
        i == 0 for i in range(len(thread["frames"]))
    ]


def functions(thread: dict[str, Any]) -> list[str | None]:
    return [frame["function"] for frame in thread["frames"]]


def test_running_thread_is_stopped_and_has_its_stack(leaf: Target) -> None:
    (process,) = dump("-p", leaf.pid)["processes"]
    assert (process["pid"], process["name"], process["exe"]) == (leaf.pid, "target", str(fixture("v3")))
    assert process["cmdline"] == leaf.process.args
    (thread,) = process["threads"]
    assert (thread["tid"], thread["name"], thread["state"], thread["syscall"]) == (
        leaf.pid,
        "target",
        "R",
        None,
    )
    assert (thread["capture"], thread["stop_reason"]) == ("stopped", "outermost")
    assert functions(thread)[:4] == ["leaf_spin", "middle", "outer", "main"], "innermost first"
    inner, caller = thread["frames"][:2]
    assert (inner["found"], caller["found"]) == ("context", "sframe")
    assert inner["module"] == process["exe"]
    assert re.fullmatch("[0-9a-f]{40}", inner["build_id"])
    assert int(inner["sp"], 16) < int(caller["sp"], 16)
    leaf.assert_unharmed()


def test_dump_has_every_thread_with_its_name() -> None:
    with running(fixture("v3"), "threads") as target:
        (process,) = dump("-p", target.pid)["processes"]
        assert [thread["tid"] for thread in process["threads"]] == tids(target.pid)
        assert [t["name"] for t in process["threads"]] == ["target", *(f"worker-{i}" for i in range(4))]
        workers = {name for thread in process["threads"][1:] for name in functions(thread)[1:2]}
        assert workers == {"worker_alpha", "worker_beta", "worker_gamma", "worker_delta"}


def test_sleeping_thread_has_its_system_call() -> None:
    with hung(fixture("v3"), "sleep", read=1) as target:
        (thread,) = dump("-p", target.pid)["processes"][0]["threads"]
        assert thread["state"] == "S"
        assert (thread["syscall"]["number"], thread["syscall"]["name"]) == (READ[ARCH.name], "read")
        text = sfsample("dump", "-p", target.pid)
        assert (text.code, text.err) == (0, [])
        assert re.search(
            rf"\nthread {target.pid} target: sleeping for [0-9.]+ s, in read\(\d+ <pipe \d+, read end>\)",
            text.out.decode(),
        )


def test_text_has_verdict_thread_and_frames(leaf: Target) -> None:
    done = sfsample("dump", "-p", leaf.pid)
    lines = done.out.decode().splitlines()
    assert lines[0] == f"process {leaf.pid} target: {' '.join(leaf.process.args)}"  # type: ignore[arg-type]
    assert lines[1].startswith(f"=> process {leaf.pid} (target) "), "the verdict comes first"
    begin = lines.index("") + 1
    assert re.fullmatch(rf"thread {leaf.pid} target: running, CPU [0-9.]+ (s|min)(, moving)?", lines[begin])
    assert re.fullmatch(r"  #0   0x[0-9a-f]{16}  leaf_spin\+0x[0-9a-f]+  \(target\)", lines[begin + 1])
    assert "truncated" not in done.out.decode()
    cut = sfsample("dump", "-p", leaf.pid, "--max-frames", "2").out.decode().splitlines()
    begin = cut.index("")
    assert len(cut) == begin + 5
    assert cut[-1].startswith("  [truncated: max_frames at ")


def test_depth_limits_the_frames_that_are_shown(leaf: Target) -> None:
    whole = dump("-p", leaf.pid)["processes"][0]["threads"][0]["frames"]
    [thread] = dump("-p", leaf.pid, "--depth", "2")["processes"][0]["threads"]
    text = sfsample("dump", leaf.pid, "--depth", "2").out.decode()

    assert [frame["function"] for frame in thread["frames"]] == [frame["function"] for frame in whole[:2]]
    assert thread["stop_reason"] == "outermost"
    assert text.count("  #") == 2
    assert text.endswith(f"  ... and {len(whole) - 2} more\n")


def test_dump_of_several_processes_to_a_file(leaf: Target, tmp_path: Path) -> None:
    with running(fixture("v3"), "sleep") as other:
        pids = [leaf.pid, other.pid]
        document = dump("-p", f"{leaf.pid},{other.pid}", "-p", leaf.pid)
        assert [process["pid"] for process in document["processes"]] == pids
        done = sfsample("dump", "--json", "-p", f"{leaf.pid},{other.pid}", "-o", tmp_path / "out")
        assert (done.code, done.out, os.listdir(tmp_path)) == (0, b"", ["out"])
        assert [p["pid"] for p in json.loads((tmp_path / "out").read_text())["processes"]] == pids
        text = sfsample("dump", "-p", f"{leaf.pid},{other.pid}").out.decode()
        assert [line.split()[1] for line in text.splitlines() if line.startswith("process ")] == [
            str(p) for p in pids
        ]


def test_missing_process_beside_another_is_reported(leaf: Target) -> None:
    missing = unused_pid()
    document = dump("-p", f"{missing},{leaf.pid}", code=5)
    assert [process["pid"] for process in document["processes"]] == [leaf.pid]
    done = sfsample("dump", "-p", f"{missing},{leaf.pid}")
    assert (done.code, done.err[0], len(done.err)) == (5, f"sfsample: no such process: {missing}", 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_wait_for_the_next_sample(leaf: Target, number: signal.Signals) -> None:
    before = stops_of(leaf.pid)
    with begun("dump", "-p", leaf.pid, "--looks", 2, "--interval", f"{HANG_S * 10}s") as child:
        wait_until(lambda: stops_of(leaf.pid) > before, "the first sample")
        child.send_signal(number)
        done = ended(child)
    assert (done.code, done.out.split()[:2]) == (0, [b"process", b"%d" % leaf.pid])
    leaf.assert_unharmed()


def test_failed_dump_keeps_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before")
    sfsample("dump", "-p", unused_pid(), "-o", tmp_path / "out").refused(3)
    assert (tmp_path / "out").read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


# -- threads that cannot be captured


# elsewhere the caller of a leaf is in a register, which is read by a stop; not if another process traces it
ASLEEP = {"read"} if ARCH is AMD64 else {"read", "stopped"}
HELD = {"outermost"} if ARCH is AMD64 else {"outermost", "register_unknown"}


def dumped_until(pid: int, expected: dict[int, set[str]]) -> dict[int, dict[str, Any]]:
    """Dump until each thread was captured as expected: on a busy machine a thread may not stop in time."""
    found: dict[int, dict[str, Any]] = {}

    def is_captured() -> bool:
        (process,) = json.loads(sfsample("dump", "--json", "-p", pid).out)["processes"]
        found.update((t["tid"], t) for t in process["threads"] if t["capture"] in expected[t["tid"]])
        return found.keys() == expected.keys()

    wait_until(is_captured, "each thread is captured")
    return found


@pytest.mark.parametrize("how", ["run", "stop"])
def test_one_thread_traced_by_another_process(how: str) -> None:
    with running(fixture("v3"), "threads") as target:
        traced = tids(target.pid)[2]
        with python(TRACE, traced, how) as tracer:
            assert first_line(tracer) == "traced"
            # a thread that its tracer has stopped does not run, so it can be read
            expected = {tid: {"stopped"} for tid in tids(target.pid)} | {target.pid: ASLEEP}
            expected[traced] = {"failed" if how == "run" else "read"}
            threads = dumped_until(target.pid, expected)
            text = sfsample("dump", "-p", target.pid)
            assert (text.code == 5) == ("  not captured: " in text.out.decode())
            if how == "run":
                assert text.code == 5
                assert str(tracer.pid) in threads[traced]["error"]
            else:
                assert threads[traced]["stop_reason"] in HELD
        wait_until(lambda: status(target.pid, traced)["TracerPid"] == "0", "released")


def test_every_thread_traced_by_another_process(leaf: Target) -> None:
    """A thread that its tracer lets run cannot be captured; a thread that it has stopped is read."""
    for how, code, capture in (("run", 5, "failed"), ("stop", 0, "read")):
        with python(TRACE, leaf.pid, how) as tracer:
            assert first_line(tracer) == "traced"
            (thread,) = dump("-p", leaf.pid, code=code)["processes"][0]["threads"]
            assert thread["capture"] == capture
            if how == "stop":
                assert thread["stop_reason"] in HELD
                chain = ["leaf_spin", "middle", "outer", "main"]
                known = 4 if thread["stop_reason"] == "outermost" else 1
                assert functions(thread)[:known] == chain[:known]
                words = rf"has been stopped for [0-9.]+ s by process {tracer.pid} \(\S+\), which traces it"
                assert re.search(words, sfsample("dump", "-p", leaf.pid).out.decode())
    leaf.assert_unharmed()


def test_stopped_process_is_read() -> None:
    with running(fixture("v3"), "threads", stopped=True) as target:
        target.stop_and_wait()
        done = sfsample("dump", "-p", target.pid)
        words = rf"=> process {target.pid} \(target\) has been stopped( by SIGSTOP)? for [0-9.]+ s; resume it"
        text = " ".join(done.out.decode().split())
        assert re.search(words, text)
        assert text.count("kill -CONT") == 1
        assert {t["capture"] for t in dump("-p", target.pid)["processes"][0]["threads"]} <= ASLEEP


def test_no_stop_leaves_a_running_thread_out(leaf: Target) -> None:
    (thread,) = dump("-p", leaf.pid, "--no-stop", code=5)["processes"][0]["threads"]
    assert (thread["capture"], thread["state"]) == ("failed", "R")


def test_thread_in_uninterruptible_sleep_is_read() -> None:
    """The parent of a vfork(2) is in state D as long as the child lives.

    Where a call leaves the return address in a register, only a stop would show the caller of vfork.
    """
    whole = "100 % reached the outermost frame" if ARCH.pushed_ra else "100 % register_unknown"
    with running(fixture("v3"), "vfork") as target:
        wait_until(lambda: states(target.pid) == {"D"}, "the parent waits for its child")
        (process,) = dump("-p", target.pid)["processes"]
        (thread,) = process["threads"]
        assert (thread["state"], thread["capture"], thread["stop_ns"]) == ("D", "read", None)
        recorded = sampled("-p", target.pid, "--mode", "wall", "--stats", "/dev/null")
        assert recorded.code == 0
        assert any(whole in line for line in recorded.err), recorded.err
        idle = sampled("-p", target.pid, enough=lambda done: done.code == 0)
        assert idle.code == 0, "in cpu mode the thread is idle"


# -- hostile names

# ESC, newline, not UTF-8, right-to-left mark and override
NAME = b"e\x1b[31mv\n;\xff\xe2\x80\x8f\xe2\x80\xae"
ARGUMENT = b"7\x1b]0;x\x07\n\xe2\x80\xa8\xfe"


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    path = os.path.join(os.fsencode(tmp_path), NAME)
    shutil.copy(fixture("v3"), path)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    with subprocess.Popen([path, b"leaf", ARGUMENT], stdout=subprocess.PIPE) as child:
        try:
            assert first_line(child) == f"ready {child.pid}"
            yield child
        finally:
            child.kill()


def test_dump_replaces_control_characters_in_names(hostile: "subprocess.Popen[bytes]") -> None:
    done = sfsample("dump", "-p", hostile.pid, "-v")
    assert done.code == 0
    text = done.out.decode("utf-8")
    assert all(line.isprintable() for line in text.split("\n"))
    assert len([line for line in text.split("\n") if line.startswith("  #")]) == text.count("  #")
    assert "leaf_spin" in text, "symbols are found in spite of the name"
    (process,) = dump("-p", hostile.pid)["processes"]
    assert process["name"].startswith("e\x1b[31mv\n;\ufffd")
    assert process["cmdline"][2] == ARGUMENT.decode("utf-8", "replace")
    assert functions(process["threads"][0])[:4] == ["leaf_spin", "middle", "outer", "main"]


def test_folded_stacks_replace_control_characters_in_names(
    hostile: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    for flags in (["-t"], ["-v"], ["--stats", "-"]):
        done = sampled("-p", hostile.pid, *STOPPING, *flags)
        assert done.code == 0
        for stack in done.stacks():
            assert stack.startswith("e?[31mv?:")
            assert stack.endswith(";main;outer;middle;leaf_spin")
    words = [b"-d", b"100ms", b"-p", str(hostile.pid).encode(), b"-o", os.fsencode(tmp_path) + b"/no/" + NAME]
    assert sfsample(*map(os.fsdecode, words)).refused(1).startswith("sfsample: cannot write: ")


def test_process_listing_replaces_control_characters_in_names(
    hostile: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    path = os.path.join(os.fsencode(tmp_path), NAME)
    with subprocess.Popen([path, b"leaf", ARGUMENT], stdout=subprocess.PIPE) as other:
        try:
            assert first_line(other) == f"ready {other.pid}"
            text = sfsample("dump", "-n", os.fsdecode(NAME)).refused(2)
            assert str(hostile.pid) in text
            assert str(other.pid) in text
            assert "\ufffd" not in text
        finally:
            other.kill()
