"""`sfsample record` as a script uses it: profile on stdout, summary on stderr; flags; targets by name."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.cli_runner import COMMAND, STOPPING, begun, ended, sampled, sfsample, wait_until_sampled
from tests.live.targets import HANG_S, Target, fixture, running

pytestmark = [pytest.mark.live, pytest.mark.any_load]
LEAF = "main;outer;middle;leaf_spin"


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[str, list[Target]]]:
    """Yield a name that no other process has, and two processes of that name."""
    name = f"sfs{os.getpid()}x"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    with running(tmp_path / name, "leaf") as first, running(tmp_path / name, "leaf", 7) as second:
        yield name, [first, second]


def test_record_prints_folded_stacks_on_stdout_and_summary_on_stderr(leaf: Target) -> None:
    done = sampled("-p", leaf.pid, *STOPPING)
    assert done.code == 0
    (stack,) = done.stacks()
    assert stack.startswith("target;")
    assert stack.endswith(LEAF)
    assert done.err[0].startswith("sfsample: ")
    assert all(line.startswith("  ") for line in done.err[1:])
    leaf.assert_unharmed()


def test_quiet_prints_no_summary(leaf: Target) -> None:
    done = sampled("-p", leaf.pid, "-q")
    assert (done.code, done.err) == (0, [])
    assert done.stacks()


def test_verbose_prints_the_modules_with_sframe(leaf: Target) -> None:
    text = "\n".join(sampled("-p", leaf.pid, "-v").err)
    assert f"sframe    {fixture('v3')}" in text


@pytest.mark.parametrize(
    "flags",
    [("--unwind", "eh_frame"), ("--unwind", "sframe,eh_frame"), ("--interval", "5ms"), ("-r", "200"),
     ("--mode", "wall"), ("-f", "folded"), ("--stack-bytes", "64K")],
)  # fmt: skip
def test_flags_of_sampling_do_not_change_the_stack(leaf: Target, flags: tuple[str, ...]) -> None:
    done = sampled("record", "-p", leaf.pid, *STOPPING, *flags)
    assert done.code == 0
    stacks = [stack.removesuffix(";[runnable: no CPU]") for stack in done.stacks()]
    assert all(stack.endswith(LEAF) and "truncated" not in stack for stack in stacks)
    assert done.stacks()


def test_threads_flag_makes_thread_the_first_frame(leaf: Target) -> None:
    (stack,) = sampled("-p", leaf.pid, *STOPPING, "-t").stacks()
    assert stack.startswith(f"target/{leaf.pid};")


def test_truncated_stack_is_marked_after_the_process(leaf: Target) -> None:
    (stack,) = sampled("-p", leaf.pid, *STOPPING, "--max-frames", "2").stacks()
    assert stack == "target;[truncated: max_frames];middle;leaf_spin"


def test_several_processes_are_sampled_once_each(leaf: Target, sleeper: Target, tmp_path: Path) -> None:
    words = (
        "-p",
        f"{leaf.pid},{sleeper.pid}",
        "-p",
        leaf.pid,
        "--mode",
        "wall",
        "-t",
        "--stats",
        tmp_path / "s",
    )
    done = sampled(*words, enough=lambda done: len({stack.partition(";")[0] for stack in done.stacks()}) == 2)
    assert done.code == 0
    assert {stack.partition(";")[0] for stack in done.stacks()} == {
        f"target/{leaf.pid}",
        f"target/{sleeper.pid}",
    }
    ticks = json.loads((tmp_path / "s").read_text())["ticks"]
    assert max(done.stacks().values()) <= ticks, "a process that is given twice is sampled once"


def test_idle_target_is_a_result(sleeper: Target, tmp_path: Path) -> None:
    done = sampled("-p", sleeper.pid, "-o", tmp_path / "out", enough=lambda done: done.code == 0)
    assert (done.code, done.out) == (0, b"")
    assert (tmp_path / "out").read_bytes() == b""
    assert "no thread ran" in done.err[1]
    assert "--mode wall" in done.err[2]


def test_progress_is_shown_on_a_terminal(leaf: Target) -> None:
    controller, terminal = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "-p", str(leaf.pid), "-d", "1s"], stdout=subprocess.DEVNULL, stderr=terminal
    ) as child:
        os.close(terminal)
        assert child.wait(HANG_S) == 0
    shown = os.read(controller, 65536).decode()
    os.close(controller)
    start, _, line = shown.partition("\r\n")
    assert start == f"sfsample: recording {leaf.pid}; Ctrl-C ends it"
    assert re.match(r"\r\x1b\[Ksfsample: [01] of 1 s, \d+ samples?", line)
    coverage = r"(coverage [^\r]*\r\n  )?"  # on a busy machine the summary begins with it
    summary = rf"\r\x1b\[Ksfsample: {coverage}\d+ samples? of 1 thread in "  # erases the progress line
    assert re.search(summary, line)


# -- by name


def test_name_selects_processes(named: tuple[str, list[Target]]) -> None:
    name, (first, second) = named
    listing = sfsample("-n", name, "-d", "100ms").refused(2).splitlines()
    assert listing[0] == f"sfsample: 2 processes match: {name}"
    assert [int(line.split()[0]) for line in listing[-2:]] == sorted([first.pid, second.pid])
    both = sampled("-n", name, "--all", "-t", enough=lambda done: len(done.stacks()) == 2)
    roots = {s.partition(";")[0] for s in both.stacks()}
    assert roots == {f"{name}/{first.pid}", f"{name}/{second.pid}"}
    # A part of a command line selects that process; the command line of sfsample itself does not count.
    command_line = Path(f"/proc/{second.pid}/cmdline").read_text()
    part = command_line.replace("\0", " ").rpartition("/")[2].strip()
    partial = sampled("-n", part, "-t")
    assert {s.partition(";")[0] for s in partial.stacks()} == {f"{name}/{second.pid}"}


def test_name_does_not_select_another_sampler(tmp_path: Path) -> None:
    words = f"of-{os.getpid()}-only"
    out = tmp_path / "out"
    with (
        running(fixture("v3"), "leaf", words) as target,
        begun(*STOPPING, "-n", words, "-o", out, "-r", "5") as other,
    ):
        wait_until_sampled(target.pid)
        done = sampled("-n", words, "-q")
        assert done.code == 0, done.err
        other.send_signal(signal.SIGTERM)
        assert ended(other).code == 0
