"""A program whose interpreter has lists without an end loses its Python frames; others lose nothing.

What is read of it is counted, so no test depends on how long that takes.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

import sfsample
from sfsample.core.budget import CAPTURE_NS, READ_NS
from sfsample.core.snapshot import Capture
from sfsample.dumping.run import DumpOptions, dump_all
from sfsample.process import python_capture
from sfsample.process.process import LiveProcess
from sfsample.process.vm import read_memory
from sfsample.runtimes.cpython.find import find_interpreter
from tests.live.cli_runner import sfsample as run_cli
from tests.live.pythons import PYTHONS
from tests.live.recording import fewer
from tests.live.targets import assert_untraced

pytestmark = [pytest.mark.live, pytest.mark.any_load]

PROGRAM = Path(__file__).parents[1] / "data" / "python_hostile.py"
SAMPLES = fewer(100)  # of the neighbour
NO_FRAMES = "no Python frames of process {}: its interpreters, threads and frames need more than 20,000 reads"
CASES = [(python, way) for python in PYTHONS for way in ("interpreters", "tables")
         if way == "interpreters" or python.name[:10] not in ("python3.11", "python3.12")]  # fmt: skip


@contextmanager
def program(python: Path, way: str) -> "Iterator[subprocess.Popen[str]]":
    words = [python, PROGRAM, way]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdin is not None
        assert target.stdout is not None
        try:
            assert target.stdout.readline() == "running\n"
            if way != "nothing":
                process = LiveProcess(target.pid, attach=False)
                found = find_interpreter(process.modules, partial(read_memory, target.pid))
                process.close()
                assert found is not None
                head = found.runtime + found.layout.interpreters
                target.stdin.write(json.dumps({**found.layout._asdict(), "head": head}) + "\n")
                target.stdin.flush()
                assert target.stdout.readline() == "changed\n"
            yield target
            assert target.poll() is None
            assert_untraced(target.pid)
        finally:
            target.kill()


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def pids(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Return the pids of a hostile program and of its neighbour."""
    python, way = request.param
    with ExitStack() as stack:
        hostile, neighbour = (stack.enter_context(program(python, each)) for each in (way, "nothing"))
        yield hostile.pid, neighbour.pid


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the reads for Python frames by thread; a large read counts as several."""
    found: Counter[int] = Counter()

    def counted(tid: int, address: int, size: int) -> bytes | None:
        found[tid] += 1 + size // 4096
        return read_memory(tid, address, size)

    monkeypatch.setattr(python_capture, "read_memory", counted)
    return found


def test_neighbour_has_all_its_samples(pids, reads):
    hostile, neighbour = pids
    profile = sfsample.Profile(99)
    stats = profile.stats
    options = sfsample.RecordOptions(mode="wall", perf_events=False)
    sfsample.record(pids, None, options, profile=profile, should_stop=lambda: stats.taken_ticks > SAMPLES)
    [problem] = [text for text in stats.problems if "Python" in text]
    assert problem.startswith(NO_FRAMES.format(hostile))
    assert 0 < reads[hostile] <= CAPTURE_NS // READ_NS
    counted: Counter[int] = Counter()
    for key, count in profile.counts.items():
        counted[key.tid] += count
        assert any(place.python for place in key.locations) == (key.tid == neighbour)
    assert counted[neighbour] + stats.captures[Capture.FAILED] >= SAMPLES


def test_dump_shows_the_neighbour_whole(pids, reads):
    hostile, neighbour = pids
    dumps, failures = dump_all(pids, DumpOptions(looks=2))
    assert not failures
    by_pid = {dump.pid: dump for dump in dumps}
    [problem] = [text for text in by_pid[hostile].problems if "Python" in text]
    assert problem.startswith(NO_FRAMES.format(hostile))
    assert reads[hostile] <= CAPTURE_NS // READ_NS
    [thread] = by_pid[hostile].threads
    assert thread.stack is not None
    assert thread.python is None
    [thread] = by_pid[neighbour].threads
    assert thread.python is not None
    assert thread.python.is_whole
    assert not any("Python" in text for text in by_pid[neighbour].problems)


def test_command_line_says_it_in_one_line(pids):
    hostile, neighbour = pids
    done = run_cli("-p", hostile, "-p", neighbour, "-d", "1", "--mode", "wall", "--python", "only")
    assert done.code == 0
    assert any(NO_FRAMES.format(hostile) in line for line in done.err)
    assert not any("Traceback" in line for line in done.err)
    done = run_cli("dump", hostile, neighbour)
    assert done.code == 0
    assert any(NO_FRAMES.format(hostile) in line for line in done.err)
    assert not any("Traceback" in line for line in done.err)
