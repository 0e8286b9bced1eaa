"""`sfsample replay` unwinds a saved copy as it was unwound in the live process."""

import os
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.core.stack import StopReason
from sfsample.process.process import LiveProcess
from sfsample.saved_stacks.format import from_json, save, to_json
from sfsample.saved_stacks.replay import replay
from sfsample.unwind.unwinder import ALWAYS, DEFAULT_STEPPERS, Unwinder
from tests.live.chains import listed_chains
from tests.live.recording import captured
from tests.live.targets import fixture, running, wait_until

pytestmark = pytest.mark.live


def saved_from(target, steppers):
    process = LiveProcess(target.pid)
    try:
        snapshot = captured(process)
        process.modules.refresh()
        stack = Unwinder(process.modules, steppers).walk(snapshot)
        return save("target", snapshot, stack, process.modules), stack
    finally:
        process.close()


SCENARIOS = ("deep", "frame", "signal-main", "qsort", "library", "framepointer", "nullcall")
CHAINS = listed_chains(str(fixture("v3")))  # some need x86-64


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name in CHAINS])
@pytest.mark.parametrize("steppers", [DEFAULT_STEPPERS, ALWAYS], ids=["whole", "truncated"])
def test_replay_gives_the_same_stack(scenario, steppers):
    with running(fixture("v3"), scenario) as target:
        saved, stack = saved_from(target, steppers)
    found = replay(from_json(to_json(saved)), steppers=steppers)

    assert found.stack == stack
    assert (stack.stop_reason is StopReason.OUTERMOST) == (steppers is DEFAULT_STEPPERS)
    assert saved.vdso or stack.stop_reason is StopReason.OUTERMOST  # the stack may continue in the vdso
    assert replay(saved).stack.stop_reason is StopReason.OUTERMOST


def test_replay_by_the_command_line(tmp_path, capsys):
    path = tmp_path / "stack.json"
    with running(fixture("v3"), "leaf") as target:
        saved, _ = saved_from(target, ALWAYS)
    path.write_text(to_json(saved))

    assert main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("then: 1 frames, no_row at ")
    assert lines[2].endswith(" frames, outermost")
    assert [line.split()[2] for line in lines[3:7]] == ["leaf_spin", "middle", "outer", "main"]

    assert main(["replay", "--unwind", "eh_frame", str(path)]) == 0
    frames = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [words[2] for words in frames][:4] == ["leaf_spin", "middle", "outer", "main"]
    assert {words[-1] for words in frames[1:]} == {"eh_frame"}


def test_replay_reports_missing_files(tmp_path, capsys):
    path = tmp_path / "stack.json"
    with running(fixture("v3"), "leaf") as target:
        saved, _ = saved_from(target, ALWAYS)
    path.write_text(to_json(saved))

    assert main(["replay", "--sysroot", str(tmp_path), str(path)]) == 1
    assert "target: cannot be opened: No such file or directory" in capsys.readouterr().err
    path.write_text("{}")
    assert main(["replay", str(path)]) == 1
    assert "is not a saved stack" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert main(["replay", str(tmp_path)]) == 1


def recorded_bad(target, directory):
    """Record for 0.2 s, which may be too short for a sample; return the files of saved stacks."""
    flags = ["-d", "0.2", "--unwind", "sframe", "--save-bad", str(directory), "-o", os.devnull]
    assert main(["record", "-p", str(target.pid), *flags]) in (0, 1)
    return [*directory.iterdir()]


def test_recording_saves_incomplete_stacks(tmp_path, capsys):
    """With SFrame alone a stack ends in libc, which has none; replay uses .eh_frame too."""
    bad = tmp_path / "bad"
    with running(fixture("v3"), "leaf") as target:
        wait_until(lambda: recorded_bad(target, bad), "a stack was saved")
    summary = capsys.readouterr().err

    [path] = bad.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"saved     1 incomplete stack in {bad}" in summary
    saved = from_json(path.read_text())
    assert (saved.process, saved.stop_reason) == ("target", "no_row")
    assert replay(saved).stack.stop_reason is StopReason.OUTERMOST


def test_environment_is_not_saved(tmp_path):
    """Environment and arguments lie above the stack of the first thread, and may be secret."""
    secret, word = b"not for you", b"of the chain"
    bad = tmp_path / "bad"
    wrapper = ("env", f"TOKEN={secret.decode()}")
    with running(fixture("v3"), "leaf", word.decode(), wrapper=wrapper) as target:
        assert secret in Path(f"/proc/{target.pid}/environ").read_bytes()
        assert word in Path(f"/proc/{target.pid}/cmdline").read_bytes()
        wait_until(lambda: recorded_bad(target, bad), "a stack was saved")

    for path in bad.iterdir():
        saved = b"".join(data for _, data in from_json(path.read_text()).pieces)
        assert len(saved) > 200
        assert secret not in saved
        assert word not in saved
