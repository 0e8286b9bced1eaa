"""A read of /proc/PID that fails for want of memory or files, or by an I/O error, does not end a process.

The failures are injected into sfsample's own calls, one or several in a row, at each of the first reads.
"""

import json
import signal
import sys

import pytest

from tests.live.cli_runner import begun, ended
from tests.live.cli_runner import sfsample as sfsample_run
from tests.live.targets import extended, fixture, running, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load]

# Runs sfsample; opening files of that name below a directory of /proc fails from the N-th time on, so often.
FAULTS = """
import errno, os, sys
number, name, first, times, *words = sys.argv[1:]
number, first, last, seen = getattr(errno, number), int(first), int(first) + int(times), 0
real_open = os.open

def failing_open(path, flags, *rest, **named):
    global seen
    if "dir_fd" in named and str(path).rpartition("/")[2] == name:
        seen += 1
        if first <= seen < last:
            raise OSError(number, os.strerror(number), path)
    return real_open(path, flags, *rest, **named)

os.open = failing_open
from sfsample.cli import main
sys.argv = ["sfsample", *words]
code = main()
print("injected", max(0, min(seen + 1, last) - first), file=sys.stderr)
sys.exit(code)
"""


def with_faults(error: str, name: str, first: int, times: int) -> list[str]:
    return [sys.executable, "-c", FAULTS, error, name, str(first), str(times)]


@pytest.fixture
def faulty(monkeypatch):
    """Return a function after which each command of the test runs with that failure."""

    def use(*fault):
        monkeypatch.setattr("tests.live.cli_runner.COMMAND", with_faults(*fault))

    return use


@pytest.mark.parametrize(
    ("error", "first"),
    [("ENOMEM", 12), ("EIO", 15), ("ESRCH", 15), *(extended("ENOMEM", n) for n in range(8, 24) if n != 12)],
)
def test_failed_read_ends_no_watch(faulty, tmp_path, error, first):
    """The loop and the recording open the file for each slice; one of these calls fails."""
    faulty(error, "stat", first, 1)
    with running(fixture("v3"), "leaf") as target:
        words = ("-p", target.pid, "--for", "1s", "--every", "1s", "--output-dir", tmp_path, "--no-history")
        with begun("watch", *words) as child:
            wait_until(lambda: len(list(tmp_path.glob("*.json"))) >= 4, "there are slices")
            child.send_signal(signal.SIGTERM)
            done = ended(child)
    assert done.code == 0
    assert "injected 1" in done.err
    assert not any("has ended" in line for line in done.err)


@pytest.mark.parametrize(("error", "times"), [("ENOMEM", 3), extended("EIO", 1)])
def test_failed_read_is_a_counted_loss_of_a_recording(faulty, tmp_path, error, times):
    """The files of the counters are opened at the first tick of a thread."""
    faulty(error, "schedstat", 1, times)
    with running(fixture("v3"), "leaf") as target:
        words = ("-p", target.pid, "-d", "2", "--no-perf-events", "-o", tmp_path / "out")
        done = sfsample_run(*words, "--stats", tmp_path / "stats")
    stats = json.loads((tmp_path / "stats").read_text())
    assert (done.code, stats["samples"] > 0) == (0, True)
    assert done.err[-1] == f"injected {times}"
    assert stats["captures"]["failed"] >= 1
    said = f"not captured: cannot look at {target.pid}: "
    assert any(text.startswith(said) for text in stats["problems"])


def test_failed_read_costs_a_dump_one_thread(faulty):
    faulty("ENOMEM", "wchan", 2, 1)
    with running(fixture("v3"), "threads") as target:
        done = sfsample_run("dump", target.pid, "--json", "--looks", "1")
    threads = json.loads(done.out)["processes"][0]["threads"]
    failed = [thread["error"] for thread in threads if thread["error"]]
    assert (done.code, len(threads) > 1) == (5, True)
    assert failed == [f"cannot look at {target.pid}: Cannot allocate memory"]
