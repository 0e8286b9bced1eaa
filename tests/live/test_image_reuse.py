"""A watch opens its target and the files of the target once, not again in each slice."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import sfsample
from sfsample.errors import AlreadyTraced
from sfsample.process import image_cache
from sfsample.process import process as process_module
from sfsample.process.image_cache import ImageCache
from tests.builders.watches import watch_of

pytestmark = [pytest.mark.live, pytest.mark.any_load]


def test_second_slice_opens_no_file_again(tmp_path, monkeypatch):
    opened = []
    image = image_cache.ElfImage
    monkeypatch.setattr(image_cache, "ElfImage", lambda *given: opened.append(given[1]) or image(*given))
    with subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:  # fmt: skip
        target.stdout.readline()
        recorder = watch_of("-p", str(target.pid), "--output-dir", str(tmp_path))._recorder
        recorder._sinks = []
        numbers = []
        for _ in range(2):
            assert recorder.record([target.pid], 0.3, lambda: False, None).samples
            numbers.append(len(opened))
        assert os.path.exists(f"/proc/{target.pid}")
        target.communicate(b"\n")
    assert target.returncode == 0
    assert numbers[0] == numbers[1] > 1


_FIRST = """import os, sys
print("ready", flush=True)
for line in sys.stdin:
    if line == "exec\\n":
        code = "import sys\\ndef after(): input()\\nprint('ready', flush=True)\\nafter()"
        os.execv(sys.executable, [sys.executable, "-c", code])
    print("ready", flush=True)
"""


@contextmanager
def _target():
    """A Python program that answers each line; after the line `exec`, it is another program."""
    with subprocess.Popen([sys.executable, "-c", _FIRST], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as target:  # fmt: skip
        target.stdout.readline()
        yield target
        assert "TracerPid:\t0\n" in Path(f"/proc/{target.pid}/status").read_text()
        target.communicate(b"\n")
    assert target.returncode == 0


def _ask(target, word):
    target.stdin.write(word + b"\n")
    target.stdin.flush()
    assert target.stdout.readline() == b"ready\n"


def _record(target, images):
    options = sfsample.RecordOptions(rate=50.0, mode="wall")
    return sfsample.record(target.pid, 0.1, options, images=images)


def test_process_stays_open_until_execve(monkeypatch):
    images = ImageCache()
    with _target() as target:
        _record(target, images)
        process = images.processes[target.pid]
        closed, close = [], process.close
        monkeypatch.setattr(process, "close", lambda: closed.append(True) or close())
        _ask(target, b"go on")
        _record(target, images)
        assert images.processes[target.pid] is process, "opened once"
        _ask(target, b"exec")
        assert ";after" in sfsample.folded(_record(target, images))
        assert images.processes[target.pid] is not process, "another program"
        assert closed
        images.processes.pop(target.pid).close()


def test_process_is_opened_anew_now_and_then(monkeypatch):
    """What captures have learned takes memory, and a watch runs for months."""
    monkeypatch.setattr(process_module, "_MAX_RECORDINGS", 2)
    images, opened = ImageCache(), []
    with _target() as target:
        for _ in range(4):
            assert _record(target, images).stats.samples
            opened.append(images.processes[target.pid])
        images.processes.pop(target.pid).close()
    assert [process is opened[0] for process in opened] == [True, True, False, False]
    assert opened[2] is opened[3]


def test_process_that_a_recording_does_not_use_is_closed():
    images = ImageCache()
    with _target() as first, _target() as second:
        _record(first, images)
        _record(second, images)
        assert [*images.processes] == [second.pid]
        images.processes.pop(second.pid).close()


def test_each_recording_counts_its_own_problems_and_cpu_time(monkeypatch):
    images = ImageCache()
    with _target() as target:
        _record(target, images)
        process = images.processes[target.pid]
        _, capturer = process.capturer
        capturer.kernel_refused = True
        used_ns = process.proc.cpu_ns()
        process.accounted_ns = 0
        assert _record(target, images).stats.cpu_charged_ns < used_ns, "only what it has used meanwhile"
        assert process is images.processes[target.pid]
        assert process.capturer[1] is not capturer
        _, capturer = process.capturer
        assert not capturer.problems.total()
        _record(target, images)
        assert process.capturer[1] is capturer, "no problem: its caches are used again"
        sfsample.record(target.pid, 0.1, sfsample.RecordOptions(mode="wall", max_frames=9), images=images)
        assert process.capturer[1] is not capturer, "other options"
        images.processes.pop(target.pid).close()


def test_process_that_a_debugger_traces_by_now_is_refused():
    images = ImageCache()
    with _target() as target:
        _record(target, images)
        code = f"from sfsample.process import ptrace; ptrace.seize({target.pid}); print('ready', flush=True)"
        code += "; input()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as debugger:  # fmt: skip
            assert debugger.stdout.readline() == b"ready\n"
            with pytest.raises(AlreadyTraced):
                _record(target, images)
            debugger.communicate(b"\n")
        assert not images.processes, "closed"
        assert _record(target, images).stats.samples
        images.processes.pop(target.pid).close()
