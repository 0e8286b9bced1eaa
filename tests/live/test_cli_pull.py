"""`sfsample watch --listen` on real processes: profiles between slices; the targets stay unharmed."""

import json
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.report.formats import read_report
from sfsample.report.report import Report
from tests.live.cli_runner import begun, ended, sfsample, wait_until_sampled
from tests.live.targets import Target, fixture, running, wait_until
from tests.watching.pull.http_client import Reply, connected, get, read, request

pytestmark = [pytest.mark.live, pytest.mark.any_load]
PROFILE = "/debug/pprof/profile"
WALL = "&mode=wall"  # where each tick that is taken is a sample, on a busy machine too


@contextmanager
def watching(*words: object) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Run a watch with a pull door; yield it and where it listens."""
    with begun("watch", "--listen", "127.0.0.1:0", *words) as child:
        assert child.stderr is not None
        line = child.stderr.readline().decode()
        assert " listening on http://127.0.0.1:" in line
        yield child, line.split()[-1]


@pytest.fixture
def long_watch(leaf: Target, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A watch within its first slice, which takes an hour."""
    words = ["-p", leaf.pid, "--every", "1h", "--for", "1h", "--mode", "wall", "--no-perf-events"]
    with watching(*words, "--output-dir", tmp_path / "out") as (child, where):
        wait_until_sampled(leaf.pid)
        yield child, where
    leaf.assert_unharmed()


def report_of(reply: Reply, path: Path) -> Report:
    assert reply.status == 200, reply.body
    path.write_bytes(reply.body)
    return read_report(str(path))


def wait_for_profile(where: str, query: str) -> Reply:
    """Ask until no other profile is being recorded."""
    replies: list[Reply] = []
    wait_until(
        lambda: replies.append(get(where, f"{PROFILE}?{query}")) or replies[-1].status == 200, "a profile"
    )
    return replies[-1]


@contextmanager
def profiling(where: str) -> Iterator[socket.socket]:
    """Ask for a profile of 120 s; yield the connection when it is the one that the loop serves."""
    while True:
        with connected(where) as client:
            client.sendall(request(f"{PROFILE}?seconds=120{WALL}"))
            while get(where, f"{PROFILE}?seconds=1").status == 200 and not has_answer(client):
                pass
            if not has_answer(client):  # otherwise the other request was first
                yield client
                return


def wait_until_recorded(where: str, target: Target) -> None:
    """Wait until the slice of an hour is closed, and the profile has samples."""

    def count(name: str) -> int:
        match = re.search(rf"^{name} (\d+)$", get(where, "/metrics").body.decode(), flags=re.MULTILINE)
        assert match
        return int(match[1])

    closed, delivered = "sfsample_slices_total", "sfsample_pulled_profiles_total"
    wait_until(lambda: count(closed) > count(delivered), "the slice is closed")
    wait_until_sampled(target.pid, 20)


def has_answer(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


def test_profile_is_recorded_between_two_slices(
    leaf: Target, long_watch: tuple["subprocess.Popen[bytes]", str], tmp_path: Path
) -> None:
    child, where = long_watch
    report = report_of(get(where, f"{PROFILE}?seconds=1&rate=50{WALL}"), tmp_path / "out.pprof")
    own = [next(f for f in map(report.frames.__getitem__, s.frames) if f.kind != "w") for s in report.stacks]
    assert {frame.text for frame in own} == {"leaf_spin"}
    assert {thread.pid for thread in report.threads} == {leaf.pid}
    assert report.rate_hz == 50
    assert report.duration_ns is not None
    assert report.duration_ns > 0.9e9
    wait_until_sampled(leaf.pid)  # the slice goes on
    child.send_signal(signal.SIGTERM)
    assert ended(child).code == 0
    first, second = sorted((tmp_path / "out").iterdir())
    stats = [json.loads(path.read_text())["stats"] for path in (first, second)]
    assert all(each["samples"] for each in stats)
    assert [each["rate_hz"] for each in stats] == [19, 19]


def test_client_that_leaves_ends_the_recording(
    leaf: Target, long_watch: tuple["subprocess.Popen[bytes]", str], tmp_path: Path
) -> None:
    _, where = long_watch
    with profiling(where):
        wait_until_recorded(where, leaf)
    assert report_of(wait_for_profile(where, f"seconds=1{WALL}"), tmp_path / "out.pprof").total()


def test_sigterm_ends_and_delivers_the_profile(
    leaf: Target, long_watch: tuple["subprocess.Popen[bytes]", str], tmp_path: Path
) -> None:
    child, where = long_watch
    with profiling(where) as client:
        wait_until_recorded(where, leaf)
        child.send_signal(signal.SIGTERM)
        assert report_of(read(client), tmp_path / "out.pprof").total()
    assert ended(child).code == 0


def test_many_requests_leave_the_target_unharmed(
    leaf: Target, long_watch: tuple["subprocess.Popen[bytes]", str]
) -> None:
    child, where = long_watch
    paths = [f"{PROFILE}?seconds=1{WALL}", "/metrics", "/healthz", f"{PROFILE}?seconds=0", "/x"] * 10
    with ThreadPoolExecutor(len(paths)) as pool:
        replies = list(pool.map(lambda path: get(where, path), paths))
    assert {reply.status for reply in replies} <= {200, 400, 404, 503}
    assert any(reply.status == 200 for path, reply in zip(paths, replies, strict=True) if WALL in path)
    wait_until_sampled(leaf.pid)
    child.send_signal(signal.SIGTERM)
    done = ended(child)
    assert done.code == 0
    assert not any("Exception" in line for line in done.err)


def test_request_between_slices_is_recorded_at_once(leaf: Target, tmp_path: Path) -> None:
    words = ["-p", leaf.pid, "--every", "1h", "--for", "100ms", "--mode", "wall"]
    with watching(*words, "--output-dir", tmp_path / "out") as (child, where):
        wait_until(
            lambda: b"sfsample_slices_total 1\n" in get(where, "/metrics").body, "the first slice is closed"
        )
        assert report_of(get(where, f"{PROFILE}?seconds=1"), tmp_path / "out.pprof").total()
        assert get(where, "/healthz").body == b"ok\n"
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def test_idle_target_gives_an_empty_profile(tmp_path: Path) -> None:
    with (
        running(fixture("v3"), "sleep") as sleeper,
        watching("-p", sleeper.pid, "--every", "1h", "--for", "100ms", "--output-dir", tmp_path) as (
            _,
            where,
        ),
    ):
        assert report_of(get(where, f"{PROFILE}?seconds=1&mode=cpu"), tmp_path / "out.pprof").total() == 0


def test_missing_target_is_said(tmp_path: Path) -> None:
    words = ["-n", f"none{os.getpid()}x", "--every", "1h", "--output-dir", tmp_path]
    with watching(*words) as (child, where):
        reply = get(where, f"{PROFILE}?seconds=1")
        assert reply.status == 503
        assert reply.body.startswith(b"no such process: ")
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0


def test_door_that_cannot_be_opened_is_an_error(leaf: Target, tmp_path: Path) -> None:
    words = ["watch", "-p", leaf.pid, "--output-dir", tmp_path, "--listen"]
    assert "cannot listen: unix:/proc/x" in sfsample(*words, "unix:/proc/x").refused(1)
    assert "cannot listen: unix:/" in sfsample(*words, f"unix:/{'x' * 200}").refused(1)
    text = sfsample(*words, "0.0.0.0:0", "--listen-token-file", tmp_path / "none").refused(1)
    assert "cannot read: " in text


def test_end_of_target_ends_the_watch(tmp_path: Path) -> None:
    with running(fixture("v3"), "leaf", ends=True) as target:
        words = [
            "-p",
            target.pid,
            "--every",
            "1s",
            "--for",
            "100ms",
            "--mode",
            "wall",
            "--output-dir",
            tmp_path,
        ]
        with watching(*words) as (child, where):
            wait_until_sampled(target.pid)
            with profiling(where) as client:
                target.signal(signal.SIGKILL)
                assert read(client).status in (200, 503)
            assert ended(child).code == 0
