"""Processes are found by control group, user and CPU time; the files of /proc are made by the tests."""

import os
from pathlib import Path

import pytest

from sfsample.process import search
from sfsample.process.search import CpuTimes, groups_by_cgroup, groups_by_user, programs

ID = "4f1d" * 16


def process(proc: Path, pid: int, *, cgroup: str = "0::/\n", command: bytes = b"x\0", uids: str = "0 0 0 0",
            name: str = "x") -> None:  # fmt: skip
    (proc / str(pid)).mkdir()
    files = {"cgroup": cgroup, "comm": f"{name}\n", "status": f"Name:\t{name}\nUid:\t{uids}\n"}
    for file, text in files.items():
        (proc / str(pid) / file).write_text(text)
    (proc / str(pid) / "cmdline").write_bytes(command)


def test_processes_are_grouped_by_container_pod_and_control_group(tmp_path: Path) -> None:
    for pid in (20, 3):
        process(tmp_path, pid, cgroup=f"0::/system.slice/docker-{ID}.scope\n")
    process(tmp_path, 4)
    (tmp_path / "5").mkdir()  # has ended
    assert groups_by_cgroup("container", str(tmp_path)).keys() == {ID}
    assert sorted(groups_by_cgroup("container", str(tmp_path))[ID]) == [3, 20]
    assert groups_by_cgroup("pod", str(tmp_path)) == {}
    assert sorted(groups_by_cgroup("cgroup", str(tmp_path))["/system.slice"]) == [3, 20]


def test_user_is_the_effective_one(tmp_path: Path) -> None:
    process(tmp_path, 3, uids="0\t33\t0\t33")
    process(tmp_path, 4, uids="0\t0\t0\t0")
    (tmp_path / "5").mkdir()
    assert groups_by_user(str(tmp_path)) == {33: [3], 0: [4]}


def test_kernel_threads_zombies_and_sfsample_are_no_targets(tmp_path: Path) -> None:
    process(tmp_path, 3, command=b"")
    process(tmp_path, 4, command=b"/usr/bin/python3\0-m\0sfsample\0watch\0")
    process(tmp_path, 5, command=b"/usr/bin/python3\0/usr/bin/sfsample\0", name="sfsample")
    process(tmp_path, 6, command=b"nginx: master process\0")
    process(tmp_path, 8, command=b"/usr/bin/python3\0-I\0/opt/lib/sfsample/__main__.py\0watch\0")
    process(tmp_path, os.getpid())
    assert programs([3, 4, 5, 6, 7, 8, os.getpid()], str(tmp_path)) == [6]


def test_name_that_the_kernel_cut_is_completed_by_the_command_line(tmp_path: Path) -> None:
    process(tmp_path, 3, command=b"/opt/a-rather-long-name\0-v\0", name="a-rather-long-n")
    process(tmp_path, 4, command=b"/opt/a-rather-long-name\0-v\0", name="worker")
    names = [search._name(pid, search._command(pid, str(tmp_path)), str(tmp_path)) for pid in (3, 4)]
    assert names == ["a-rather-long-name", "worker"]


def test_busiest_are_those_with_most_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    times = CpuTimes()
    looks = iter(
        [
            {(1, 0): 900, (2, 0): 100, (3, 0): 50},
            {(1, 0): 901, (2, 0): 130, (3, 0): 60},
            {(1, 0): 990, (2, 7): 120, (3, 0): 60, (4, 9): 20},  # another process has the pid 2
            {(1, 0): 990, (3, 0): 60, (4, 9): 20},
        ]
    )
    monkeypatch.setattr(times, "_look", lambda: next(looks))
    monkeypatch.setattr(search, "programs", lambda pids: [pid for pid in pids if pid != 4])
    monkeypatch.setattr(search.time, "sleep", lambda _: None)
    assert times.busiest(2) == [2, 3]
    assert times.busiest(2) == [2, 1]
    assert times.busiest(9) == [1, 3], "where none ran, those that have run most"
