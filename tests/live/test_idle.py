"""sfsample says why a process had no sample: what the process and its children do."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sfsample.process.descendants import why_no_samples
from tests.live.cli_runner import sfsample
from tests.live.targets import HANG_S, LineReader, fixture, running, states, wait_until

pytestmark = pytest.mark.live
ATTEMPTS = 20  # on a busy machine the children may not run for a tenth of a second


@contextmanager
def shell(code: str) -> Iterator[int]:
    """Run shell code that prints a line; yield its pid, and end it and its children."""
    read_end, write_end = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", code],
        os.environ,
        setsid=True,
        file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1)],
    )
    os.close(write_end)
    try:
        LineReader(read_end).line(HANG_S)
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)


@pytest.mark.parametrize(
    ("code", "cause"),
    [("while :; do :; done & echo x; wait", "its child runs"),
     ("(while :; do :; done & wait) & echo x; wait", "its children run"),
     ("echo x; while :; do sh -c 'for i in 1 2 3 4 5 6 7 8; do :; done'; done", "run")],
)  # fmt: skip
def test_children_that_run_are_named(code: str, cause: str) -> None:
    with shell(code) as pid:
        found = next(filter(None, (why_no_samples([pid]) for _ in range(ATTEMPTS))))
    assert found[0].startswith("idle, while ")
    assert cause in found[0]
    assert found[1] == "to sample them too: -s"


def test_sleeping_process_with_sleeping_children_is_just_idle() -> None:
    with shell("sleep 1000 & echo x; wait") as pid:
        assert why_no_samples([pid]) is None
        assert why_no_samples([pid, os.getpid()]) is None, "sfsample is a child that does not count"


def test_stopped_process_is_named() -> None:
    with running(fixture("v3"), "leaf", stopped=True) as target:
        target.signal(signal.SIGSTOP)
        wait_until(lambda: states(target.pid) == {"T"}, "it is stopped")
        assert why_no_samples([target.pid]) == ("it is stopped", f"to resume it: kill -CONT {target.pid}")
        done = sfsample(target.pid, "-d", "300ms")
    assert done.code == 0
    assert "ticks taken: it is stopped" in done.err[1]
