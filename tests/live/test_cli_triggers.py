"""`sfsample watch` at a trigger, at SIGUSR1 and at SIGHUP: what is kept, and what is said."""

import json
import os
import re
import signal
import stat
from pathlib import Path

import pytest

from sfsample.report.formats import read_report
from tests.live.cli_runner import begun, ended, sfsample, wait_until_sampled
from tests.live.targets import Target, wait_until

pytestmark = [pytest.mark.live]
STAMP = r"sfsample: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*{suffix}"))


def test_signal_keeps_slices_a_dump_and_a_closer_look(leaf: Target, tmp_path: Path) -> None:
    where = ("--output-dir", tmp_path / "o", "--history", tmp_path / "h")
    with begun("watch", leaf.pid, "--every", "1s", *where, "--label", "team=shop") as child:
        wait_until(lambda: len(files(tmp_path / "o", ".json")) >= 2, "two slices")
        child.send_signal(signal.SIGUSR1)
        wait_until(lambda: files(tmp_path / "o", ".dump.txt"), "a dump")
        wait_until_sampled(leaf.pid)
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    [dump] = files(tmp_path / "o", ".dump.txt")
    assert "leaf_spin" in dump.read_text()
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600
    line = rf"{STAMP}trigger SIGUSR1 at [\d:]+Z: (\d+) slices pinned, \d+ s at \d+ of 99 Hz, dump in (.+)"
    said = re.search(line, "\n".join(done.err))
    assert done.code == 0
    assert said is not None, done.err
    assert said[2] == str(dump)
    *before, closer = (read_report(str(path)) for path in files(tmp_path / "o", ".json"))
    assert len(before) == int(said[1]) >= 2
    assert (closer.rate_hz, {report.rate_hz for report in before}) == (99, {19})
    assert [(report.labels or {}).get("trigger") for report in before] == [None] * len(before)
    assert {key: (closer.labels or {}).get(key) for key in ("trigger", "team")} == {
        "trigger": "SIGUSR1",
        "team": "shop",
    }
    rows = json.loads(sfsample("history", "list", "--json", "--history", tmp_path / "h").out)["slices"]
    assert [row["pinned"] for row in rows] == [True] * (len(before) + 1)
    leaf.assert_unharmed()


def test_condition_is_met_by_a_busy_target(leaf: Target, tmp_path: Path) -> None:
    words = (
        "watch",
        leaf.pid,
        "--every",
        "1s",
        "--history",
        tmp_path,
        "--trigger",
        "cpu>1",
        "--trigger",
        "stuck>1h",
    )
    with begun(*words) as child:
        wait_until(lambda: files(tmp_path, ".dump.txt"), "a dump in the history")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 0
    assert re.search(rf"{STAMP}trigger cpu>1 \(\d+ %\) at ", "\n".join(done.err)), done.err
    leaf.assert_unharmed()


def test_hangup_reads_the_configuration_again_in_the_same_process(leaf: Target, tmp_path: Path) -> None:
    config = tmp_path / "watch.toml"

    def write(directory: str, key: str = "pid") -> None:
        config.write_text(f'{key} = {leaf.pid}\nevery = "1s"\noutput-dir = "{tmp_path}/{directory}"\n')

    write("a")
    with begun("watch", "--config", config) as child:
        wait_until(lambda: files(tmp_path / "a", ".json"), "a slice")
        write("c", key="pit")
        count = len(files(tmp_path / "a", ".json"))
        child.send_signal(signal.SIGHUP)
        wait_until(lambda: len(files(tmp_path / "a", ".json")) >= count + 2, "the old configuration goes on")
        write("b")
        child.send_signal(signal.SIGHUP)
        wait_until(lambda: files(tmp_path / "b", ".json"), "a slice of the new configuration")
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 0
    assert re.search(
        rf"{STAMP}not reloaded: with {re.escape(str(config))}: unknown key: pit", "\n".join(done.err)
    )
    assert [line for line in done.err if line.endswith(" the configuration is read again")]
    assert not os.path.exists(tmp_path / "c")
    leaf.assert_unharmed()


def test_hangup_without_a_configuration_ends_the_watch(leaf: Target, tmp_path: Path) -> None:
    with begun("watch", leaf.pid, "--every", "1s", "--output-dir", tmp_path) as child:
        wait_until(lambda: files(tmp_path, ".json"), "a slice")
        child.send_signal(signal.SIGHUP)
        assert ended(child).code == 0
